// One answer on its way to its client.
#include <algorithm>

#include "answer_streams.h"
#include "base/ends.h"
#include "errors.h"
#include "frontend/llama_server.h"
#include "frontend/ollama.h"

namespace invar::server {

namespace {

bool is_ollama(openai::Endpoint endpoint) {
  return endpoint == openai::Endpoint::ollama_chat || endpoint == openai::Endpoint::ollama_generate;
}

bool is_llama(openai::Endpoint endpoint) {
  return endpoint == openai::Endpoint::llama_completion ||
         endpoint == openai::Endpoint::llama_infill;
}

json::Value receipts_of(const openai::Request& request, const std::vector<TextAnswer>& answers) {
  json::Array all;
  for (size_t i = 0; i < answers.size(); ++i) all.push_back(request.make_receipt(answers[i], i));
  return json::Object{{"object", "list"}, {"data", std::move(all)}};
}

json::Value body_of(const openai::Request& request, const std::vector<TextAnswer>& answers,
                    const Tokenizer& tokenizer, const openai::Head& head,
                    const AnswerTimes& times) {
  if (request.receipt_only) return receipts_of(request, answers);
  if (request.endpoint == openai::Endpoint::responses)
    return openai::response_body(request, first_of(answers), head);
  if (request.endpoint == openai::Endpoint::messages)
    return anthropic::message_body(request, first_of(answers), head);
  if (is_ollama(request.endpoint))
    return ollama::answer_body(request, first_of(answers), tokenizer, head, times);
  if (is_llama(request.endpoint))
    return llama_server::answer_body(request, answers, tokenizer, head, times);
  return openai::answer_body(request, answers, tokenizer, &head);
}

// Whether the text is too large to be made at once.
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
  if (is_ollama(request.endpoint))
    return std::make_unique<ollama::LineWriter>(admitted_.head, request, size, tokenizer_);
  if (is_llama(request.endpoint))
    return std::make_unique<llama_server::EventWriter>(admitted_.head, request, size, tokenizer_);
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
  const bool has_lines = is_ollama(admitted_.request.endpoint);
  HttpReply head{.type = has_lines ? "application/x-ndjson" : "text/event-stream; charset=utf-8"};
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  exchange_->stream(std::move(head), shared_from_this());
}

// A prompt counts once, for the first of its answers. Where the journal is to repeat the number, it
// is written before more of the answer is shown; the journal has 0 for none.
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
    writer_->set_times(shown_times());
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
  if (cut_off_) writer_->fail({cut_off_->status, cut_off_->message, cut_off_->code}, out);
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

void AnswerStream::give_back() {
  if (const auto slots = std::exchange(admitted_.slots, nullptr)) slots->give_back();
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

// A response in the background has failed for whoever asks what became of it; others have a status.
HttpReply AnswerStream::failed_reply(const std::string& error) const {
  Failure failure = failure_of(error);
  if (failure.status >= 500) failure.message = "the answer failed: " + failure.message;
  if (admitted_.request.background)
    return {.body = json::dump(openai::failed_body(admitted_.request, admitted_.head, failure))};
  return error_reply({failure.status, failure.message, failure.code}, admitted_.entry.endpoint);
}

void AnswerStream::finish() {
  over_ = true;
  std::vector<TextAnswer> answers;
  for (const auto& builder : builders_) {
    if (builder->answer.finish == FinishReason::failed)
      return exchange_->reply(failed_reply(builder->answer.error));
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
  exchange_->reply(
      {.body = json::dump(body_of(request, answers, tokenizer_, admitted_.head, shown_times()))});
}

AnswerTimes AnswerStream::shown_times() const {
  const auto between = [](Clock::time_point begin, Clock::time_point end) {
    return std::max<int64_t>(
        0, std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count());
  };
  const auto arrival = exchange_->arrival;
  if (tokens_ == 0) return {.total_ns = between(arrival, Clock::now())};
  return {.total_ns = between(arrival, Clock::now()),
          .prompt_ns = between(std::max(arrival, times_.scheduled), times_.first_token),
          .answer_ns = between(times_.first_token, times_.last_token)};
}

}  // namespace invar::server
