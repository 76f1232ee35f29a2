#include <fmt/format.h>

#include <algorithm>

#include "base/ends.h"
#include "frontend/llama_server.h"
#include "frontend/openai_parts.h"

namespace invar::llama_server {

namespace {

double milliseconds(int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

// The time that a number of tokens took: in all, for each, and how many in a second.
void add_speed(const char* name, int64_t tokens, int64_t ns, json::Value& timings) {
  const double ms = milliseconds(ns), count = static_cast<double>(std::max<int64_t>(tokens, 1));
  timings.set(fmt::format("{}_n", name), tokens);
  timings.set(fmt::format("{}_ms", name), ms);
  timings.set(fmt::format("{}_per_token_ms", name), ms / count);
  timings.set(fmt::format("{}_per_second", name), ms > 0 ? count / ms * 1e3 : 0.0);
}

json::Value timings_of(const TextAnswer& answer, const AnswerTimes& times) {
  const int64_t cached = answer.cached.value_or(0);
  json::Value timings = json::Object{{"cache_n", cached}};
  add_speed("prompt", std::ssize(answer.prompt_tokens) - cached, times.prompt_ns, timings);
  add_speed("predicted", std::ssize(answer.tokens), times.answer_ns, timings);
  return timings;
}

// The settings that the answer was sampled with.
json::Value settings_of(const openai::Request& request, const openai::Head& head) {
  const SamplingParams& p = request.base.params;
  return json::Object{{"n_predict", openai::shown_length(request)},
                      {"seed", head.seed},
                      {"temperature", p.temperature},
                      {"top_k", p.top_k},
                      {"top_p", p.top_p},
                      {"min_p", p.min_p},
                      {"repeat_penalty", p.repetition_penalty},
                      {"repeat_last_n", -1},
                      {"presence_penalty", p.presence_penalty},
                      {"frequency_penalty", p.frequency_penalty},
                      {"ignore_eos", p.ignore_eos},
                      {"n_probs", p.logprobs.value_or(0)},
                      {"stream", request.stream}};
}

const char* stop_type_of(const TextAnswer& answer) {
  if (answer.finish == FinishReason::length) return "limit";
  if (answer.finish != FinishReason::stop) return "none";
  return answer.stop.empty() ? "eos" : "word";
}

json::Value probability_of(const Tokenizer& tokenizer, const TokenLogprobs& one) {
  int64_t offset = 0;
  const json::Value shown =
      openai::logprobs_of(openai::Endpoint::chat, {tokenizer}, {&one, 1}, offset);
  json::Value entry = first_of(shown.find("content")->as_array());
  const auto rename = [](json::Value& value) {
    value.set("id", *value.find("token_id"));
    std::erase_if(value.as_object(),
                  [](const json::Member& member) { return member.first == "token_id"; });
  };
  rename(entry);
  json::Array top = entry.find("top_logprobs")->as_array();
  for (json::Value& other : top) rename(other);
  entry.set("top_logprobs", std::move(top));
  return entry;
}

void set_probabilities(const openai::Request& request, const Tokenizer& tokenizer,
                       std::span<const TokenLogprobs> some, json::Value& body) {
  if (!request.base.params.logprobs) return;
  json::Array all;
  for (const TokenLogprobs& one : some) all.push_back(probability_of(tokenizer, one));
  body.set("completion_probabilities", std::move(all));
}

// "timings/prompt_n" is that member, under its own name.
json::Value selected(const json::Value& body, const std::vector<std::string>& fields) {
  if (fields.empty()) return body;
  json::Value some = json::Object();
  for (const std::string& field : fields) {
    const json::Value* at = &body;
    size_t begin = 0, end = 0;
    for (; at && begin <= field.size(); begin = end + 1) {
      end = std::min(field.find('/', begin), field.size());
      at = at->find(std::string_view(field).substr(begin, end - begin));
    }
    const size_t slash = field.rfind('/');
    if (at) some.set(slash == field.npos ? field : field.substr(slash + 1), *at);
  }
  return some;
}

// The whole of an answer; of a stream its last event, without what was shown before.
json::Value end_of(const openai::Request& request, const TextAnswer& answer, size_t index,
                   const openai::Head& head, const AnswerTimes& times, const Tokenizer& tokenizer,
                   bool shows_text) {
  json::Value body = json::Object{
      {"index", static_cast<int64_t>(index)},
      {"content", shows_text && !request.prompt_only ? answer.text : std::string()},
      {"tokens", request.token_ids && shows_text ? openai::ids_of(answer.tokens) : json::Array()},
      {"id_slot", -1},
      {"stop", true},
      {"model", head.model},
      {"tokens_predicted", request.prompt_only ? int64_t{0} : std::ssize(answer.tokens)},
      {"tokens_evaluated", std::ssize(answer.prompt_tokens)},
      {"generation_settings", settings_of(request, head)},
      {"prompt", openai::echo_of(request.prompt_of(index), tokenizer)},
      {"has_new_line", answer.text.find('\n') != std::string::npos},
      {"truncated", false},
      {"stop_type", stop_type_of(answer)},
      {"stopping_word", answer.stop},
      {"tokens_cached", answer.cached.value_or(0)},
      {"timings", timings_of(answer, times)},
      {"system_fingerprint", head.system_fingerprint}};
  if (request.logits_hash) body.set("logits_hash", to_hex(answer.logits_hash));
  return body;
}

}  // namespace

json::Value answer_body(const openai::Request& request, const std::vector<TextAnswer>& answers,
                        const Tokenizer& tokenizer, const openai::Head& head,
                        const AnswerTimes& times) {
  json::Array all;
  for (const TextAnswer& answer : answers) {
    json::Value body = end_of(request, answer, all.size(), head, times, tokenizer, true);
    set_probabilities(request, tokenizer, answer.logprobs, body);
    all.push_back(selected(body, request.shown_fields));
  }
  return all.size() == 1 ? first_of(all) : json::Value(std::move(all));
}

void EventWriter::show(const TokenOutput& output, const std::string& piece, std::string& out) {
  if (output.has_token()) ids_.push_back(output.token);
  if (!piece.empty() && !request_.prompt_only) {
    json::Value body = json::Object{{"index", 0},
                                    {"content", piece},
                                    {"tokens", openai::ids_of(std::exchange(ids_, {}))},
                                    {"stop", false},
                                    {"id_slot", -1},
                                    {"tokens_predicted", std::ssize(written().tokens)},
                                    {"tokens_evaluated", std::ssize(written().prompt_tokens)}};
    set_probabilities(request_, tokenizer_, new_logprobs(), body);
    out += "data: " + json::dump(body) + "\n\n";
  }
  if (written().finish == FinishReason::none) return;
  const json::Value body = end_of(request_, written(), 0, head_, times_, tokenizer_, false);
  out += "data: " + json::dump(selected(body, request_.shown_fields)) + "\n\n";
}

void EventWriter::show_error(const Failure& failure, std::string& out) {
  const json::Value error = json::Object{
      {"code", failure.status}, {"message", failure.message}, {"type", failure.type()}};
  out += "data: " + json::dump(json::Object{{"error", error}}) + "\n\n";
}

}  // namespace invar::llama_server
