#include "engine_messages.h"

#include <bit>

#include "base/error.h"
#include "base/fields.h"
#include "journal/wire.h"

namespace invar::server {

namespace {

void put_flag(ByteWriter& out, bool flag) {
  out.put(static_cast<uint8_t>(flag));
}

bool get_flag(ByteReader& in) {
  const uint8_t flag = in.get<uint8_t>();
  if (flag > 1) fail("a message: expected a flag as 0 or 1, found {}", flag);
  return flag == 1;
}

void put_logprob(ByteWriter& out, const TokenLogprob& p) {
  out.put(p.token);
  out.put(std::bit_cast<uint32_t>(p.logprob));
  out.put(p.rank);
}

constexpr size_t kLogprobBytes = 12;

void get_logprob(ByteReader& in, TokenLogprob& p) {
  p.token = in.get<int32_t>();
  p.logprob = std::bit_cast<float>(in.get<uint32_t>());
  p.rank = in.get<int32_t>();
}

void put_logprobs(ByteWriter& out, const TokenLogprobs& p) {
  put_logprob(out, p);
  out.put(static_cast<uint64_t>(p.top.size()));
  for (const TokenLogprob& one : p.top) put_logprob(out, one);
}

TokenLogprobs get_logprobs(ByteReader& in) {
  TokenLogprobs p;
  get_logprob(in, p);
  p.top.resize(in.get_count(kLogprobBytes));
  for (TokenLogprob& one : p.top) get_logprob(in, one);
  return p;
}

FinishReason get_finish(ByteReader& in) {
  const uint8_t reason = in.get<uint8_t>();
  if (reason > static_cast<uint8_t>(FinishReason::failed))
    fail("a message: expected a finish reason from 0 to 3, found {}", reason);
  return static_cast<FinishReason>(reason);
}

RequestOutput output_from(std::string bytes) {
  RequestOutput output{.bytes = std::move(bytes)};
  ByteReader in(output.bytes, "an output");
  const uint8_t kind = in.get<uint8_t>();
  if (kind > 2) fail("a message: expected an output of kind 0, 1 or 2, found {}", kind);
  output.kind = static_cast<RequestOutput::Kind>(kind);
  if (output.kind == RequestOutput::Kind::prompt) {
    output.prompt.request = in.get<int64_t>();
    output.prompt.position = in.get<int32_t>();
    output.prompt.logprobs = get_logprobs(in);
  } else if (output.kind == RequestOutput::Kind::pooled) {
    output.pooled.request = in.get<int64_t>();
    output.pooled.numbers.resize(in.get_count(sizeof(uint32_t)));
    for (float& number : output.pooled.numbers) number = std::bit_cast<float>(in.get<uint32_t>());
  } else {
    TokenOutput& token = output.token;
    token.request = in.get<int64_t>();
    token.token = in.get<int32_t>();
    token.index = in.get<int32_t>();
    if (get_flag(in)) token.logprobs = get_logprobs(in);
    token.finish = get_finish(in);
    token.logits_hash = in.get<Digest>();
    output.error = in.get_text();
    token.routed_experts = in.get_vector<int16_t>();
  }
  in.expect_end();
  return output;
}

}  // namespace

std::string to_bytes(const Hello& hello) {
  return invar::to_bytes(hello);
}
Hello hello_from(std::string_view bytes) {
  return from_bytes<Hello>(bytes, "a hello");
}

namespace {

template <typename T>
void put(ByteWriter& out, const T& value) {
  fields::write(out, value);
}
void put(ByteWriter& out, const SamplingParams& params) {
  put_params(out, params);
}
void put(ByteWriter& out, const std::shared_ptr<const RequestAdapter>& adapter) {
  put_flag(out, adapter != nullptr);
  if (adapter) fields::write(out, *adapter);
}

template <typename T>
void get(ByteReader& in, T& value) {
  fields::read(in, value);
}
void get(ByteReader& in, SamplingParams& params) {
  params = get_params(in);
}
void get(ByteReader& in, std::shared_ptr<const RequestAdapter>& adapter) {
  if (!get_flag(in)) return;
  RequestAdapter read;
  fields::read(in, read);
  adapter = std::make_shared<const RequestAdapter>(std::move(read));
}

}  // namespace

std::string to_bytes(const Request& request) {
  ByteWriter out;
  for_each_field<&FieldFacts::crosses>(request,
                                       [&](const auto&, const auto& value) { put(out, value); });
  return out.take();
}

Request request_from(std::string_view bytes) {
  ByteReader in(bytes, "a request");
  Request request;
  for_each_field<&FieldFacts::crosses>(request, [&](const auto&, auto& value) { get(in, value); });
  in.expect_end();
  return request;
}

std::string to_bytes(const Taken& taken) {
  return invar::to_bytes(taken);
}
Taken taken_from(std::string_view bytes) {
  return from_bytes<Taken>(bytes, "an answer to new weights");
}

std::string to_bytes(const Sleep& sleep) {
  ByteWriter out;
  put_flag(out, sleep.kv_cache);
  out.put(static_cast<uint8_t>(sleep.weights));
  return out.take();
}

Sleep sleep_from(std::string_view bytes) {
  ByteReader in(bytes, "an order to sleep");
  Sleep sleep{.kv_cache = get_flag(in)};
  const uint8_t weights = in.get<uint8_t>();
  if (weights > static_cast<uint8_t>(Sleep::Weights::lost))
    fail("an order to sleep: expected 0 to 2 for the weights, found {}", weights);
  sleep.weights = static_cast<Sleep::Weights>(weights);
  in.expect_end();
  return sleep;
}

std::string to_bytes(const Wake& wake) {
  return invar::to_bytes(wake);
}
Wake wake_from(std::string_view bytes) {
  return from_bytes<Wake>(bytes, "an order to wake up");
}

std::string cancel_bytes(int64_t request) {
  ByteWriter out;
  out.put(request);
  return out.take();
}

int64_t cancel_from(std::string_view bytes) {
  ByteReader in(bytes, "a cancellation");
  const int64_t request = in.get<int64_t>();
  in.expect_end();
  return request;
}

std::string to_bytes(const TokenOutput& output) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(RequestOutput::Kind::token));
  out.put(output.request);
  out.put(output.token);
  out.put(output.index);
  put_flag(out, output.logprobs.has_value());
  if (output.logprobs) put_logprobs(out, *output.logprobs);
  out.put(static_cast<uint8_t>(output.finish));
  out.put(output.logits_hash);
  out.put_text(output.error ? output.error : "");
  out.put_vector(output.routed_experts);
  return out.take();
}

std::string to_bytes(const PromptOutput& output) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(RequestOutput::Kind::prompt));
  out.put(output.request);
  out.put(output.position);
  put_logprobs(out, output.logprobs);
  return out.take();
}

std::string to_bytes(const PooledOutput& output) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(RequestOutput::Kind::pooled));
  out.put(output.request);
  out.put(static_cast<uint64_t>(output.numbers.size()));
  for (const float number : output.numbers) out.put(std::bit_cast<uint32_t>(number));
  return out.take();
}

std::string outputs_bytes(const std::vector<std::string>& outputs,
                          const std::vector<RequestBegun>& begun,
                          const std::vector<StepRecord>& steps, const BackendStats& stats) {
  ByteWriter out;
  out.put(static_cast<uint64_t>(outputs.size()));
  for (const std::string& output : outputs) out.put_text(output);
  out.put_vector(begun);
  out.put_vector(steps);
  fields::write(out, stats);
  return out.take();
}

StepOutputs outputs_from(std::string_view bytes) {
  ByteReader in(bytes, "a step's outputs");
  StepOutputs step;
  step.outputs.resize(in.get_count(sizeof(uint64_t)));
  for (RequestOutput& output : step.outputs) output = output_from(in.get_text());
  step.begun = in.get_vector<RequestBegun>();
  step.steps = in.get_vector<StepRecord>();
  fields::read(in, step.stats);
  in.expect_end();
  return step;
}

}  // namespace invar::server
