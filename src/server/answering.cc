#include "answering.h"

#include <algorithm>
#include <set>

#include "errors.h"

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
    return openai::response_body(request, answers[0], head);
  if (request.endpoint == openai::Endpoint::messages)
    return anthropic::message_body(request, answers[0], head);
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

Answering::Answering(Admitted admitted, std::shared_ptr<Exchange> exchange,
                     const Tokenizer& tokenizer, Answers& answers)
    : admitted_(std::move(admitted)),
      exchange_(std::move(exchange)),
      tokenizer_(tokenizer),
      answers_(answers),
      unfinished_(admitted_.jobs.size()),
      prompts_to_begin_(admitted_.entry.prompts.size()) {
  const openai::Request& request = admitted_.request;
  if (request.stream) writer_ = make_writer();
  for (const Request& job : admitted_.jobs) {
    if (writer_) break;
    builders_.push_back(std::make_unique<AnswerBuilder>(tokenizer, job));
    builders_.back()->answer.prompt_tokens = job.prompt;
  }
  if (admitted_.cached) set_all_cached(*admitted_.cached);
}

void Answering::set_cached(size_t job, int64_t tokens) {
  if (writer_)
    writer_->set_cached(job, tokens);
  else
    builders_[job]->answer.cached = tokens;
}

// Usage shows the sum.
void Answering::set_all_cached(int64_t tokens) {
  for (size_t job = 0; job < admitted_.jobs.size(); ++job) set_cached(job, job == 0 ? tokens : 0);
}

std::unique_ptr<openai::StreamWriter> Answering::make_writer() const {
  const openai::Request& request = admitted_.request;
  const auto& prompts = admitted_.entry.prompts;
  const auto size = std::ssize(prompts.front());
  if (request.endpoint == openai::Endpoint::responses)
    return std::make_unique<openai::ResponseWriter>(admitted_.head, request, size, tokenizer_);
  if (request.endpoint == openai::Endpoint::messages)
    return std::make_unique<anthropic::MessageWriter>(admitted_.head, request, size, tokenizer_);
  return std::make_unique<openai::EventWriter>(admitted_.head, request, prompts, tokenizer_);
}

// Only what was said to its end can be gone on from.
void Answering::remember_output(const TextAnswer& answer) {
  const bool is_whole =
      answer.finish == FinishReason::stop || answer.finish == FinishReason::length;
  if (admitted_.request.endpoint != openai::Endpoint::responses || !is_whole) return;
  output_ = *openai::response_body(admitted_.request, answer, admitted_.head).find("output");
}

void Answering::begin() {
  if (!writer_ || over_) return;
  begun_ = true;
  HttpReply head{.type = "text/event-stream; charset=utf-8"};
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  exchange_->stream(std::move(head), shared_from_this());
}

// A prompt counts once, for the first of its answers. Where the journal is to repeat the number,
// nothing more of the answer is shown before it is written; none is 0 there.
void Answering::on_begun(size_t job, int64_t cached) {
  const auto n = static_cast<size_t>(admitted_.request.base.params.n);
  if (over_ || admitted_.cached || job % n != 0) return;
  cached_ += cached;
  set_cached(job, cached);
  if (--prompts_to_begin_ == 0 && cached_ > 0) answers_.settle_usage(shared_from_this());
}

void Answering::on_token(size_t job, const TokenOutput& output) {
  if (over_) return;
  if (output.finish == FinishReason::failed) outcome_ = Outcome::failed;
  if (writer_) {
    waiting_.emplace_back(job, output);
    return exchange_->wake();
  }
  AnswerBuilder& builder = *builders_[job];
  if (builder.answer.finish != FinishReason::none) return;
  builder.push(output);
  if (builder.answer.finish == FinishReason::none) return;
  if (--unfinished_ == 0 || builder.answer.finish == FinishReason::failed) finish();
}

void Answering::on_prompt(size_t job, const PromptOutput& output) {
  if (writer_)
    writer_->push_prompt(job, output);
  else
    builders_[job]->answer.prompt_logprobs.push_back(output.logprobs);
}

bool Answering::is_over(size_t job) const {
  return over_ ||
         (writer_ ? writer_->is_over(job) : builders_[job]->answer.finish != FinishReason::none);
}

bool Answering::pull(std::string& out) {
  for (const auto& [job, output] : waiting_) {
    writer_->push(job, output, out);
    if (is_over(job)) answers_.settle(*this, job);
  }
  waiting_.clear();
  if (cut_off_) writer_->fail(cut_off_->message, cut_off_->code.c_str(), out);
  over_ = writer_->ended();
  if (over_ && writer_->answer()) remember_output(*writer_->answer());
  answers_.settle(*this);
  return !over_;
}

// A stream that has begun ends with an event, anything else with a status.
void Answering::cut_off(const ApiError& error) {
  over_ = true;
  cut_off_ = error;
  outcome_ = Outcome::aborted;
  begun_ ? exchange_->wake() : exchange_->reply(error_reply(error, admitted_.entry.endpoint));
}

void Answering::finish() {
  over_ = true;
  std::vector<TextAnswer> answers;
  for (const auto& builder : builders_) {
    if (builder->answer.finish == FinishReason::failed)
      return exchange_->reply(error_reply({500, "the answer failed: " + builder->answer.error},
                                          admitted_.entry.endpoint));
    answers.push_back(std::move(builder->answer));
  }
  const openai::Request& request = admitted_.request;
  remember_output(answers[0]);
  const bool has_lists = request.endpoint == openai::Endpoint::completions ||
                         request.endpoint == openai::Endpoint::chat;
  if (has_lists && is_long(answers) && !request.receipt_only) {
    auto pieces = openai::answer_pieces(request, std::move(answers), tokenizer_, admitted_.head);
    return exchange_->stream({}, std::make_shared<LongBody>(std::move(pieces), answers_.on_large));
  }
  exchange_->reply({.body = json::dump(body_of(request, answers, tokenizer_, admitted_.head))});
}

void Answers::number(std::vector<Request>& jobs) {
  const std::lock_guard lock(mutex_);
  for (Request& job : jobs) job.id = next_id_++;
}

void Answers::add(std::shared_ptr<Answering> answering) {
  const auto& jobs = answering->admitted().jobs;
  for (size_t i = 0; i < jobs.size(); ++i) places_.emplace(jobs[i].id, Place{answering, i});
  answering->known_ = true;
  ++live_;
}

void Answers::add(std::shared_ptr<Embedding> embedding) {
  const auto& jobs = embedding->jobs();
  for (size_t i = 0; i < jobs.size(); ++i) texts_.emplace(jobs[i].id, Text{embedding, i});
  ++live_;
}

// Once, when it is over: forgets what is left of it.
void Answers::settle(Embedding& embedding) {
  for (const Request& job : embedding.jobs())
    if (texts_.erase(job.id)) backend_.cancel(job.id);
  --live_;
}

void Answers::cancel(Embedding& embedding) {
  if (embedding.is_over()) return;
  embedding.drop();
  settle(embedding);
}

void Answers::deliver_vectors(std::vector<PooledOutput> vectors) {
  for (PooledOutput& output : vectors) {
    const auto found = texts_.find(output.request);
    if (found == texts_.end()) continue;
    const Text text = found->second;
    texts_.erase(found);
    text.embedding->on_vector(text.job, std::move(output.numbers));
    if (text.embedding->is_over()) settle(*text.embedding);
  }
}

void Answers::fail_text(const TokenOutput& output) {
  const auto found = texts_.find(output.request);
  if (found == texts_.end() || output.finish != FinishReason::failed) return;
  const auto embedding = found->second.embedding;
  texts_.erase(found);
  embedding->fail(output.error);
  settle(*embedding);
}

void Answers::cancel(Answering& answering) {
  if (!answering.over_) answering.outcome_ = Outcome::aborted;
  answering.over_ = true;
  settle(answering);
}

void Answers::withdraw(const Answering& answering) {
  for (const Request& job : answering.admitted().jobs) backend_.cancel(job.id);
}

void Answers::end_all(const ApiError& error) {
  std::set<std::shared_ptr<Answering>> all;
  for (const auto& [job, place] : places_) all.insert(place.answering);
  for (const auto& answering : all) {
    if (answering->over_) continue;
    answering->cut_off(error);
    settle(*answering);
  }
}

void Answers::expire(Answering& answering) {
  if (answering.over_) return;
  answering.cut_off({504, kTooLate, "deadline_exceeded"});
  settle(answering);
}

void Answers::on_failure(const std::string& sentence) {
  post_([this, sentence] {
    deliver();  // what was computed before
    fail_all(sentence);
    if (on_engine_failed) on_engine_failed(sentence);
  });
}

void Answers::fail_all(const std::string& sentence) {
  for (const auto& [id, place] : std::exchange(places_, {})) {
    Answering& answering = *place.answering;
    if (!std::exchange(answering.known_, false)) continue;
    --live_;
    answering.admitted_.places = nullptr;
    answering.cut_off({503, sentence, "engine_failed"});
  }
  for (const auto& [id, text] : std::exchange(texts_, {}))
    if (!text.embedding->is_over()) text.embedding->fail(sentence);
}

void Answers::forget(const Answering& answering, size_t job) {
  const int64_t id = answering.admitted().jobs[job].id;
  if (places_.erase(id)) backend_.cancel(id);
}

void Answers::settle(Answering& answering, size_t job) {
  if (answering.is_over(job)) forget(answering, job);
  if (answering.is_over()) settle(answering);
}

void Answers::settle(Answering& answering) {
  if (!answering.is_over() || !answering.known_) return;
  for (size_t i = 0; i < answering.admitted().jobs.size(); ++i) forget(answering, i);
  answering.known_ = false;
  answering.admitted_.places = nullptr;
  --live_;
  measure_end(answering);
  ended_(answering, answering.outcome_);
}

void Answers::on_token(const TokenOutput& output) {
  const std::lock_guard lock(mutex_);
  tokens_.push_back(output);
}

void Answers::on_prompt(const PromptOutput& output) {
  const std::lock_guard lock(mutex_);
  prompts_.push_back(output);
}

void Answers::on_pooled(const PooledOutput& output) {
  const std::lock_guard lock(mutex_);
  vectors_.push_back(output);
}

void Answers::on_begun(const JobBegun& begun) {
  const std::lock_guard lock(mutex_);
  begun_.push_back(begun);
}

void Answers::on_step(const StepRecord& step) {
  steps.add(step);
  if (trace) trace->add(step);
}

void Answers::on_step_end() {
  {
    const std::lock_guard lock(mutex_);
    if (delivery_is_posted_ || (tokens_.empty() && prompts_.empty() && vectors_.empty())) return;
    delivery_is_posted_ = true;
  }
  post_([this] { deliver(); });
}

void Answers::measure(Answering& answering, const TokenOutput& output) {
  if (output.finish == FinishReason::failed) return;
  const auto now = Clock::now();
  const auto seconds = [&](Clock::time_point since) {
    return std::chrono::duration<double>(now - since).count();
  };
  const auto add = [](Histogram& all, RecentValues& recent, double value) {
    all.add(value);
    recent.add(value);
  };
  if (answering.tokens_ == 0) answering.times_.first_token = now;
  if (answering.tokens_++ == 0)
    add(metrics.time_to_first_token, metrics.recent_first_token,
        seconds(answering.exchange().arrival));
  else if (answering.admitted().jobs.size() == 1)
    add(metrics.inter_token, metrics.recent_inter_token, seconds(answering.times_.last_token));
  answering.longest_ = std::max<int64_t>(answering.longest_, output.index + 1);
  answering.times_.last_token = now;
  ++metrics.all_generation_tokens;
  answering.finish_ = output.finish;
}

void Answers::measure_end(const Answering& answering) {
  int64_t prompt = 0;
  for (const auto& one : answering.admitted().entry.prompts) prompt += std::ssize(one);
  metrics.all_prompt_tokens += prompt;
  metrics.prompt_tokens.add(static_cast<double>(prompt));
  metrics.generation_tokens.add(static_cast<double>(answering.tokens_));
  metrics.most_generation_tokens.add(static_cast<double>(answering.longest_));
  RequestTimes times = answering.times_;
  times.arrival = answering.exchange().arrival;
  times.end = Clock::now();
  metrics.add(times, answering.tokens_);
  const SamplingParams& params = answering.admitted().entry.params;
  metrics.max_tokens.add(params.max_tokens);
  metrics.answers.add(params.n);
  const bool whole = answering.outcome_ == Outcome::finished;
  const char* reason = whole ? answering.finish_ == FinishReason::length ? "length" : "stop"
                       : answering.outcome_ == Outcome::aborted ? "abort"
                                                                : "error";
  ++metrics.finished[reason];
  if (request_log) request_log->add(answering.admitted(), times, prompt, answering.tokens_, reason);
}

void Answers::note_begin(const JobBegun& begun) {
  const auto found = places_.find(begun.job);
  if (found == places_.end()) return;
  Place& place = found->second;
  auto& scheduled = place.answering->times_.scheduled;
  if (scheduled == Clock::time_point{})  // the first of its jobs, and not again
    scheduled = Clock::time_point(std::chrono::nanoseconds(begun.at_ns));
  if (!std::exchange(place.begun, true)) place.answering->on_begun(place.job, begun.cached);
}

void Answers::settle_usage(std::shared_ptr<Answering> answering) {
  if (!settle_cached) return;
  answering->is_unsettled_ = true;
  const std::string id = answering->admitted().entry.id;
  const int64_t cached = answering->cached_;
  settle_cached(id, cached, [this, answering = std::move(answering)](int64_t settled) {
    post_([this, answering, settled] {
      answering->set_all_cached(settled);
      answering->is_unsettled_ = false;
      for (const TokenOutput& output : std::exchange(answering->held_, {})) take(output);
    });
  });
}

void Answers::deliver() {
  std::vector<JobBegun> begun;
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
  for (const JobBegun& one : begun) note_begin(one);
  for (const PromptOutput& output : prompts)
    if (const auto found = places_.find(output.request); found != places_.end())
      found->second.answering->on_prompt(found->second.job, output);
  deliver_vectors(std::move(vectors));
  for (const TokenOutput& output : tokens) take(output);
}

void Answers::take(const TokenOutput& output) {
  const auto found = places_.find(output.request);
  if (found == places_.end()) return fail_text(output);
  const Place place = found->second;
  if (place.answering->is_unsettled_) return place.answering->held_.push_back(output);
  if (output.finish != FinishReason::none) places_.erase(found);
  measure(*place.answering, output);
  place.answering->on_token(place.job, output);
  settle(*place.answering, place.job);
}

}  // namespace invar::server
