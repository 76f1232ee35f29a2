#include "answer_streams.h"

#include <algorithm>
#include <set>

#include "base/ends.h"
#include "errors.h"
#include "sampling/constraint_cursor.h"
#include "sampling/sampler.h"

namespace invar::server {

namespace {

json::Value receipts_of(const openai::Request& request, const std::vector<TextAnswer>& answers) {
  json::Array all;
  for (size_t i = 0; i < answers.size(); ++i) all.push_back(request.make_receipt(answers[i], i));
  return json::Object{{"object", "list"}, {"data", std::move(all)}};
}

json::Value body_of(const openai::Request& request, const std::vector<TextAnswer>& answers,
                    const Tokenizer& tokenizer, const openai::Head& head) {
  if (request.receipt_only) return receipts_of(request, answers);
  if (request.endpoint == openai::Endpoint::responses)
    return openai::response_body(request, first_of(answers), head);
  if (request.endpoint == openai::Endpoint::messages)
    return anthropic::message_body(request, first_of(answers), head);
  return openai::answer_body(request, answers, tokenizer, &head);
}

// Whose text is too large to be made at once.
bool is_long(const std::vector<TextAnswer>& answers) {
  constexpr size_t kMany = 2000;
  size_t numbers = 0;
  for (const TextAnswer& answer : answers)
    for (const auto* all : {&answer.logprobs, &answer.prompt_logprobs})
      for (const TokenLogprobs& one : *all) numbers += 1 + one.top.size();
  return numbers > kMany;
}

// The error of an answer that was computed.
ApiError unwritten(const std::exception& error) {
  return {500, std::string("the answer cannot be written: ") + error.what()};
}

// A whole answer that is written while it is sent.
class LongBody final : public BodySource {
 public:
  LongBody(BodyPieces pieces, std::function<void()> sent)
      : pieces_(std::move(pieces)), sent_(std::move(sent)) {}
  ~LongBody() override {
    pieces_ = {};
    if (sent_) sent_();
  }

  bool pull(std::string& out) override {
    constexpr size_t kPiece = 64 << 10;
    return pieces_.append(out, kPiece);
  }
  bool is_ready() const override { return true; }

 private:
  BodyPieces pieces_;
  std::function<void()> sent_;
};

}  // namespace

AnswerStream::AnswerStream(Admitted admitted, std::shared_ptr<Exchange> exchange,
                           const Tokenizer& tokenizer, AnswerStreams& streams)
    : admitted_(std::move(admitted)),
      exchange_(std::move(exchange)),
      tokenizer_(tokenizer),
      streams_(streams),
      unfinished_(admitted_.requests.size()),
      prompts_to_begin_(admitted_.entry.prompts.size()) {
  const openai::Request& request = admitted_.request;
  if (request.stream) writer_ = make_writer();
  for (const Request& request : admitted_.requests) {
    if (writer_) break;
    builders_.push_back(std::make_unique<AnswerBuilder>(tokenizer, request));
    last_of(builders_)->answer.prompt_tokens = request.prompt;
  }
  if (admitted_.cached) set_all_cached(*admitted_.cached);
}

void AnswerStream::set_cached(size_t index, int64_t tokens) {
  if (writer_)
    writer_->set_cached(index, tokens);
  else
    builders_[index]->answer.cached = tokens;
}

// Usage shows the sum.
void AnswerStream::set_all_cached(int64_t tokens) {
  for (size_t index = 0; index < admitted_.requests.size(); ++index)
    set_cached(index, index == 0 ? tokens : 0);
}

std::unique_ptr<openai::StreamWriter> AnswerStream::make_writer() const {
  const openai::Request& request = admitted_.request;
  const auto& prompts = admitted_.entry.prompts;
  const auto size = std::ssize(first_of(prompts));
  if (request.endpoint == openai::Endpoint::responses)
    return std::make_unique<openai::ResponseWriter>(admitted_.head, request, size, tokenizer_);
  if (request.endpoint == openai::Endpoint::messages)
    return std::make_unique<anthropic::MessageWriter>(admitted_.head, request, size, tokenizer_);
  return std::make_unique<openai::EventWriter>(admitted_.head, request, prompts, tokenizer_);
}

// Only what was said to its end can be gone on from.
void AnswerStream::remember_output(const TextAnswer& answer) {
  const bool is_whole =
      answer.finish == FinishReason::stop || answer.finish == FinishReason::length;
  if (admitted_.request.endpoint != openai::Endpoint::responses || !is_whole) return;
  output_ = *openai::response_body(admitted_.request, answer, admitted_.head).find("output");
}

void AnswerStream::begin() {
  if (!writer_ || over_) return;
  begun_ = true;
  HttpReply head{.type = "text/event-stream; charset=utf-8"};
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  exchange_->stream(std::move(head), shared_from_this());
}

// A prompt counts once, for the first of its answers. Where the journal is to repeat the number,
// nothing more of the answer is shown before it is written; none is 0 there.
void AnswerStream::on_begun(size_t index, int64_t cached) {
  const auto n = static_cast<size_t>(admitted_.request.base.params.n);
  if (over_ || admitted_.cached || index % n != 0) return;
  cached_ += cached;
  set_cached(index, cached);
  if (--prompts_to_begin_ == 0 && cached_ > 0) streams_.settle_usage(shared_from_this());
}

void AnswerStream::on_token(size_t index, const TokenOutput& output) {
  if (over_) return;
  if (output.finish == FinishReason::failed) outcome_ = Outcome::failed;
  if (writer_) {
    waiting_.emplace_back(index, output);
    return exchange_->wake();
  }
  AnswerBuilder& builder = *builders_[index];
  if (builder.answer.finish != FinishReason::none) return;
  builder.push(output);
  if (builder.answer.finish == FinishReason::none) return;
  if (--unfinished_ == 0 || builder.answer.finish == FinishReason::failed) finish();
}

void AnswerStream::on_prompt(size_t index, const PromptOutput& output) {
  if (writer_)
    writer_->push_prompt(index, output);
  else
    builders_[index]->answer.prompt_logprobs.push_back(output.logprobs);
}

bool AnswerStream::is_over(size_t index) const {
  return over_ || (writer_ ? writer_->is_over(index)
                           : builders_[index]->answer.finish != FinishReason::none);
}

// An event that cannot be written is left out as a whole.
void AnswerStream::push_waiting(std::string& out) {
  size_t written = out.size();
  try {
    for (const auto& [index, output] : waiting_) {
      writer_->push(index, output, out);
      written = out.size();
      if (is_over(index)) streams_.settle(*this, index);
    }
  } catch (const std::exception& error) {
    out.resize(written);
    cut_off_ = unwritten(error);
    outcome_ = Outcome::failed;
  }
  waiting_.clear();
}

bool AnswerStream::pull(std::string& out) {
  push_waiting(out);
  if (cut_off_) writer_->fail(cut_off_->message, cut_off_->code.c_str(), out);
  over_ = writer_->ended();
  if (over_ && writer_->answer()) remember_output(*writer_->answer());
  streams_.settle(*this);
  return !over_;
}

// A stream that has begun ends with an event, anything else with a status.
void AnswerStream::cut_off(const ApiError& error, Outcome outcome) {
  over_ = true;
  cut_off_ = error;
  outcome_ = outcome;
  begun_ ? exchange_->wake() : exchange_->reply(error_reply(error, admitted_.entry.endpoint));
}

void AnswerStream::abort() {
  outcome_ = Outcome::aborted;
  for (size_t i = 0; i < admitted_.requests.size(); ++i)
    if (!is_over(i))
      on_token(i, {.request = admitted_.requests[i].id, .finish = FinishReason::aborted});
}

void AnswerStream::restart(size_t index) {
  if (writer_)
    writer_->restart(index);
  else
    builders_[index]->answer.prompt_logprobs.clear();
}

// The other protocols have no words for it.
void AnswerStream::change_weights(size_t index, const std::string& before, const std::string& now,
                                  size_t first) {
  const openai::Endpoint endpoint = admitted_.request.endpoint;
  if (endpoint != openai::Endpoint::completions && endpoint != openai::Endpoint::chat)
    return cut_off({503, "the weights changed within the answer", "aborted"});
  if (writer_)
    writer_->change_weights(index, before, now, first);
  else
    builders_[index]->answer.change_weights(before, now, first);
}

namespace {

// A request that excludes all its answers fails again each time it is sent.
ApiError failure_of(const std::string& error) {
  if (error == kFormTooLarge) return {400, error};
  if (error == sampling::kNothingAllowed)
    return {400, error + ": what the request allows and excludes leaves nothing"};
  return {500, "the answer failed: " + error};
}

}  // namespace

void AnswerStream::finish() {
  over_ = true;
  std::vector<TextAnswer> answers;
  for (const auto& builder : builders_) {
    if (builder->answer.finish == FinishReason::failed)
      return exchange_->reply(
          error_reply(failure_of(builder->answer.error), admitted_.entry.endpoint));
    answers.push_back(std::move(builder->answer));
  }
  const openai::Request& request = admitted_.request;
  remember_output(first_of(answers));
  const bool has_lists = request.endpoint == openai::Endpoint::completions ||
                         request.endpoint == openai::Endpoint::chat;
  if (has_lists && is_long(answers) && !request.receipt_only) {
    auto pieces = openai::answer_pieces(request, std::move(answers), tokenizer_, admitted_.head);
    return exchange_->stream({}, std::make_shared<LongBody>(std::move(pieces), streams_.on_large));
  }
  exchange_->reply({.body = json::dump(body_of(request, answers, tokenizer_, admitted_.head))});
}

void AnswerStreams::number(std::vector<Request>& requests) {
  const std::lock_guard lock(mutex_);
  for (Request& request : requests) request.id = next_id_++;
}

void AnswerStreams::add(std::shared_ptr<AnswerStream> stream) {
  const auto& requests = stream->admitted().requests;
  for (size_t i = 0; i < requests.size(); ++i)
    streamed_.emplace(requests[i].id, Streamed{stream, i});
  stream->known_ = true;
  ++live_;
}

void AnswerStreams::add(std::shared_ptr<Embedding> embedding) {
  embedding->is_counted = true;
  const auto& requests = embedding->requests();
  for (size_t i = 0; i < requests.size(); ++i) texts_.emplace(requests[i].id, Text{embedding, i});
  ++live_;
}

// Once, when it is over: forgets what is left of it.
void AnswerStreams::settle(Embedding& embedding) {
  if (!std::exchange(embedding.is_counted, false)) return;
  for (const Request& request : embedding.requests())
    if (texts_.erase(request.id)) backend_.cancel(request.id);
  --live_;
}

void AnswerStreams::cancel(Embedding& embedding) {
  if (embedding.is_over()) return;
  embedding.drop();
  settle(embedding);
}

void AnswerStreams::deliver_numbers(int64_t request, std::vector<float> numbers) {
  const auto found = texts_.find(request);
  if (found == texts_.end()) return;
  const Text text = found->second;
  texts_.erase(found);
  text.embedding->on_vector(text.index, std::move(numbers));
  if (text.embedding->is_over()) settle(*text.embedding);
}

// The number that a request asked for: the log-probability of its token, or why there is none.
void AnswerStreams::take_number(const TokenOutput& output) {
  if (output.has_token() && output.logprobs)
    return deliver_numbers(output.request, {output.logprobs->logprob});
  const auto found = texts_.find(output.request);
  if (found == texts_.end() || output.finish != FinishReason::failed) return;
  const auto embedding = found->second.embedding;
  texts_.erase(found);
  embedding->fail(output.error);
  settle(*embedding);
}

void AnswerStreams::cancel(AnswerStream& stream) {
  if (!stream.over_) stream.outcome_ = Outcome::aborted;
  stream.over_ = true;
  settle(stream);
}

void AnswerStreams::withdraw(const AnswerStream& stream) {
  for (const Request& request : stream.admitted().requests) backend_.cancel(request.id);
}

void AnswerStreams::end_all(const ApiError& error) {
  std::set<std::shared_ptr<AnswerStream>> all;
  for (const auto& [index, streamed] : streamed_) all.insert(streamed.stream);
  for (const auto& stream : all) {
    if (stream->over_) continue;
    const openai::Endpoint endpoint = stream->admitted().request.endpoint;
    if (endpoint == openai::Endpoint::completions || endpoint == openai::Endpoint::chat)
      stream->abort();
    else
      stream->cut_off(error);
    // The client of a stream may take the rest later: nothing more is computed of it.
    if (stream->known_) release(*stream);
  }
}

void AnswerStreams::expire(AnswerStream& stream) {
  if (stream.over_) return;
  stream.cut_off({504, kTooLate, "deadline_exceeded"});
  settle(stream);
}

void AnswerStreams::on_failure(const std::string& sentence) {
  post_([this, sentence] {
    deliver();  // what was computed before
    fail_all(sentence);
    if (on_engine_failed) on_engine_failed(sentence);
  });
}

void AnswerStreams::fail_all(const std::string& sentence) {
  for (const auto& [id, streamed] : std::exchange(streamed_, {})) {
    AnswerStream& stream = *streamed.stream;
    if (!std::exchange(stream.known_, false)) continue;
    --live_;
    stream.admitted_.slots = nullptr;
    stream.cut_off({503, sentence, "engine_failed"});
  }
  for (const auto& [id, text] : std::exchange(texts_, {}))
    if (!text.embedding->is_over()) text.embedding->fail(sentence);
}

void AnswerStreams::forget(const AnswerStream& stream, size_t index) {
  const int64_t id = stream.admitted().requests[index].id;
  if (streamed_.erase(id)) backend_.cancel(id);
}

void AnswerStreams::settle(AnswerStream& stream, size_t index) {
  if (stream.is_over(index)) forget(stream, index);
  if (stream.is_over()) settle(stream);
}

void AnswerStreams::settle(AnswerStream& stream) {
  if (stream.is_over() && stream.known_) release(stream);
}

void AnswerStreams::release(AnswerStream& stream) {
  for (size_t i = 0; i < stream.admitted().requests.size(); ++i) forget(stream, i);
  stream.known_ = false;
  stream.admitted_.slots = nullptr;
  --live_;
  measure_end(stream);
  ended_(stream, stream.outcome_);
}

void AnswerStreams::on_token(const TokenOutput& output) {
  const std::lock_guard lock(mutex_);
  tokens_.push_back(output);
}

void AnswerStreams::on_prompt(const PromptOutput& output) {
  const std::lock_guard lock(mutex_);
  prompts_.push_back(output);
}

void AnswerStreams::on_pooled(const PooledOutput& output) {
  const std::lock_guard lock(mutex_);
  vectors_.push_back(output);
}

void AnswerStreams::on_begun(const RequestBegun& begun) {
  const std::lock_guard lock(mutex_);
  begun_.push_back(begun);
}

void AnswerStreams::on_step(const StepRecord& step) {
  steps.add(step);
  if (trace) trace->add(step);
}

void AnswerStreams::on_step_end() {
  {
    const std::lock_guard lock(mutex_);
    if (delivery_is_posted_ || (tokens_.empty() && prompts_.empty() && vectors_.empty())) return;
    delivery_is_posted_ = true;
  }
  post_([this] { deliver(); });
}

void AnswerStreams::measure(AnswerStream& stream, const TokenOutput& output) {
  if (output.finish == FinishReason::failed) return;
  const auto now = Clock::now();
  const auto seconds = [&](Clock::time_point since) {
    return std::chrono::duration<double>(now - since).count();
  };
  const auto add = [](Histogram& all, RecentValues& recent, double value) {
    all.add(value);
    recent.add(value);
  };
  if (stream.tokens_ == 0) stream.times_.first_token = now;
  if (stream.tokens_++ == 0)
    add(metrics.time_to_first_token, metrics.recent_first_token,
        seconds(stream.exchange().arrival));
  else if (stream.admitted().requests.size() == 1)
    add(metrics.inter_token, metrics.recent_inter_token, seconds(stream.times_.last_token));
  stream.longest_ = std::max<int64_t>(stream.longest_, output.index + 1);
  stream.times_.last_token = now;
  ++metrics.all_generation_tokens;
  stream.finish_ = output.finish;
}

void AnswerStreams::measure_end(const AnswerStream& stream) {
  int64_t prompt = 0;
  for (const auto& one : stream.admitted().entry.prompts) prompt += std::ssize(one);
  metrics.all_prompt_tokens += prompt;
  metrics.prompt_tokens.add(static_cast<double>(prompt));
  metrics.generation_tokens.add(static_cast<double>(stream.tokens_));
  metrics.most_generation_tokens.add(static_cast<double>(stream.longest_));
  RequestTimes times = stream.times_;
  times.arrival = stream.exchange().arrival;
  times.end = Clock::now();
  metrics.add(times, stream.tokens_);
  const SamplingParams& params = stream.admitted().entry.params;
  metrics.max_tokens.add(params.max_tokens);
  metrics.answers.add(params.n);
  const bool whole = stream.outcome_ == Outcome::finished;
  const char* reason = whole ? stream.finish_ == FinishReason::length ? "length" : "stop"
                       : stream.outcome_ == Outcome::aborted ? "abort"
                                                             : "error";
  ++metrics.finished[reason];
  if (request_log) request_log->add(stream.admitted(), times, prompt, stream.tokens_, reason);
}

void AnswerStreams::note_begin(const RequestBegun& begun) {
  const auto found = streamed_.find(begun.request);
  if (found == streamed_.end()) return;
  Streamed& streamed = found->second;
  auto& scheduled = streamed.stream->times_.scheduled;
  if (scheduled == Clock::time_point{})  // the first of its requests, and not again
    scheduled = Clock::time_point(std::chrono::nanoseconds(begun.at_ns));
  if (std::exchange(streamed.begun, true)) return;
  const std::shared_ptr<AnswerStream> stream = streamed.stream;
  guarded(*stream, [&, index = streamed.index] { stream->on_begun(index, begun.cached); });
}

void AnswerStreams::guarded(AnswerStream& stream, const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    stream.cut_off(unwritten(error), Outcome::failed);
    settle(stream);
  }
}

void AnswerStreams::settle_usage(std::shared_ptr<AnswerStream> stream) {
  if (!settle_cached) return;
  stream->is_unsettled_ = true;
  const std::string id = stream->admitted().entry.id;
  const int64_t cached = stream->cached_;
  settle_cached(id, cached, [this, stream = std::move(stream)](int64_t settled) {
    post_([this, stream, settled] {
      stream->set_all_cached(settled);
      stream->is_unsettled_ = false;
      for (const TokenOutput& output : std::exchange(stream->held_, {})) take(output);
    });
  });
}

void AnswerStreams::deliver() {
  std::vector<RequestBegun> begun;
  std::vector<TokenOutput> tokens;
  std::vector<PromptOutput> prompts;
  std::vector<PooledOutput> vectors;
  {
    const std::lock_guard lock(mutex_);
    begun.swap(begun_);
    tokens.swap(tokens_);
    prompts.swap(prompts_);
    vectors.swap(vectors_);
    delivery_is_posted_ = false;
  }
  for (const RequestBegun& one : begun) note_begin(one);
  for (const PromptOutput& output : prompts)
    if (const auto found = streamed_.find(output.request); found != streamed_.end()) {
      const std::shared_ptr<AnswerStream> stream = found->second.stream;
      guarded(*stream, [&, index = found->second.index] { stream->on_prompt(index, output); });
    }
  for (PooledOutput& output : vectors) deliver_numbers(output.request, std::move(output.numbers));
  for (const TokenOutput& output : tokens) take(output);
}

void AnswerStreams::take(const TokenOutput& output) {
  const auto found = streamed_.find(output.request);
  if (found == streamed_.end()) return take_number(output);
  Streamed& streamed = found->second;
  const std::shared_ptr<AnswerStream> stream = streamed.stream;
  const size_t index = streamed.index;
  if (stream->is_unsettled_) return stream->held_.push_back(output);
  streamed.tokens.push_back(output.token);
  streamed.logits_hash = output.logits_hash;
  if (output.finish != FinishReason::none) streamed_.erase(found);
  guarded(*stream, [&] {
    measure(*stream, output);
    stream->on_token(index, output);
    settle(*stream, index);
  });
}

void AnswerStreams::freeze(const std::string& version) {
  is_frozen_ = true;
  frozen_version_ = version;
  for (const auto& [id, streamed] : streamed_) backend_.cancel(id);
}

// Under new ids: what the backend may still say of the old ones is of the weights before.
std::vector<Request> AnswerStreams::thaw(const std::string& version) {
  is_frozen_ = false;
  std::vector<Request> all;
  for (auto& [id, streamed] : std::exchange(streamed_, {})) {
    AnswerStream& stream = *streamed.stream;
    if (stream.is_over(streamed.index)) continue;
    const size_t begun = streamed.tokens.size();
    if (begun == 0) stream.restart(streamed.index);
    if (version != frozen_version_)
      stream.change_weights(streamed.index, frozen_version_, version, begun);
    if (stream.over_) continue;
    std::vector<Request> one{stream.admitted_.requests[streamed.index]};
    number(one);
    one[0].begun = streamed.tokens;
    one[0].begun_hash = streamed.logits_hash;
    stream.admitted_.requests[streamed.index].id = one[0].id;
    streamed_.emplace(one[0].id, std::move(streamed));
    all.push_back(std::move(one[0]));
  }
  return all;
}

}  // namespace invar::server
