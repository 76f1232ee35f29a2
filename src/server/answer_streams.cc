#include "answer_streams.h"

#include <algorithm>
#include <set>

#include "errors.h"

namespace invar::server {

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
  embedding.ended(embedding.outcome());
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

int64_t AnswerStreams::end_those(const ApiError& error,
                                 const std::function<bool(const AnswerStream&)>& which) {
  int64_t count = 0;
  std::set<std::shared_ptr<AnswerStream>> all;
  for (const auto& [index, streamed] : streamed_) all.insert(streamed.stream);
  for (const auto& stream : all) {
    if (stream->over_ || !which(*stream)) continue;
    ++count;
    const openai::Endpoint endpoint = stream->admitted().request.endpoint;
    if (endpoint == openai::Endpoint::completions || endpoint == openai::Endpoint::chat)
      stream->abort();
    else
      stream->cut_off(error);
    // The client of a stream may take the rest later: nothing more is computed of it.
    if (stream->known_) release(*stream);
  }
  return count;
}

void AnswerStreams::expire(AnswerStream& stream) {
  if (stream.over_) return;
  stream.give_back();
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
    stream.give_back();
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
  stream.give_back();
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
    stream.give_back();
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
