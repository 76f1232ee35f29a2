#include "frontend/openai_events.h"

#include <fmt/format.h>

#include "base/ends.h"
#include "frontend/openai_parts.h"

namespace invar::openai {

EventWriter::EventWriter(Head head, const Request& request,
                         const std::vector<Shared<std::vector<int32_t>>>& prompts,
                         const Tokenizer& tokenizer)
    : head_(std::move(head)), request_(request), tokenizer_(tokenizer) {
  answers_.reserve(request.answers());
  const Prediction predicted(request.base.prediction);
  const auto n = static_cast<size_t>(request.base.params.n);
  for (size_t i = 0; i < request.answers(); ++i) {
    answers_.emplace_back(request, tokenizer, predicted);
    answers_[i].builder.answer.prompt_tokens = prompts[i / n];
  }
  for (const auto& prompt : prompts) prompt_tokens_ += std::ssize(prompt);

  opening_ = "data: ";
  json::ObjectWriter body(opening_);
  json::append_quoted(body.member("id"), head_.id);
  json::append_quoted(body.member("object"), request.endpoint == Endpoint::chat
                                                 ? "chat.completion.chunk"
                                                 : "text_completion");
  body.member("created") += std::to_string(head_.created);
  json::append_quoted(body.member("model"), head_.model);
  json::append_quoted(body.member("system_fingerprint"), head_.system_fingerprint);
}

void EventWriter::push(size_t i, const TokenOutput& output, std::string& out) {
  if (ended_ || answers_[i].over) return;
  answers_[i].waiting.push_back(output);
  while (!ended_ && take_turn(out)) {
  }
}

// Shows the next token in order if it is there. Turns go round the answers that are not over.
bool EventWriter::take_turn(std::string& out) {
  Answer& answer = answers_[turn_];
  if (!answer.over) {
    if (answer.waiting.empty()) return false;
    const TokenOutput output = std::move(first_of(answer.waiting));
    answer.waiting.pop_front();
    show(turn_, output, out);
    if (ended_) return false;
  }
  turn_ = (turn_ + 1) % answers_.size();
  for (const Answer& one : answers_)
    if (!one.over) return true;
  if (request_.usage_at_end) {
    begin_event(out);
    end_event(true, out, true);
  }
  out += "data: [DONE]\n\n";
  ended_ = true;
  return false;
}

void EventWriter::show(size_t i, const TokenOutput& output, std::string& out) {
  Answer& answer = answers_[i];
  const TextAnswer& text = answer.builder.answer;
  const std::string piece = answer.builder.push(output);
  if (text.finish == FinishReason::failed) return fail(failure_of(text.error), out);
  if (output.has_token()) {
    if (!request_.prompt_only) ++completion_tokens_;
    if (!request_.base.prediction.empty()) answer.prediction.take(output.token);
    answer.ids.push_back(output.token);
  }
  answer.over = text.finish != FinishReason::none;
  if (answer.over) answer.waiting.clear();
  const std::string& thought = answer.builder.new_thought();
  std::vector<AnswerPiece> pieces;
  answer.reader.push(piece, pieces);
  if (answer.over) answer.reader.finish(pieces, is_cut(text.finish));
  read_custom(answer, pieces);
  if (pieces.empty() && thought.empty() && !answer.over) return;
  std::string content;
  for (const AnswerPiece& one : pieces)
    if (one.kind == AnswerPiece::Kind::text) content += one.text;
  if (!answer.begun && request_.echo) content.insert(0, echo_of(request_.prompt_of(i), tokenizer_));
  if (request_.prompt_only) content = echo_of(request_.prompt_of(i), tokenizer_);
  begin_event(out);
  json::ObjectWriter choice(out);
  choice.member("index") += std::to_string(i);
  if (request_.endpoint == Endpoint::chat)
    append_delta(i, thought, content, pieces, choice.member("delta"));
  else
    json::append_quoted(choice.member("text"), content);
  json::append(choice.member("logprobs"),
               request_.base.params.logprobs ? logprobs_now(answer) : json::Value());
  if (!answer.begun && request_.has_several_seeds())
    choice.member("seed") +=
        std::to_string(request_.seed_of(i / static_cast<size_t>(request_.base.params.n)));
  if (!answer.begun) show_prompt(text, choice);
  answer.begun = true;
  json::append(choice.member("finish_reason"),
               answer.over ? json::Value(finish_reason(text, answer.calls > 0)) : json::Value());
  json::append(choice.member("stop_reason"), stop_reason(request_, text));
  if (request_.token_ids) json::append(choice.member("token_ids"), ids_of(answer.ids));
  if (answer.over && request_.logits_hash)
    json::append_quoted(choice.member("logits_hash"), to_hex(text.logits_hash));
  if (answer.over && !text.weights.empty())
    json::append(choice.member("weight_versions"), weight_versions(text));
  if (answer.over && request_.receipt && request_.make_receipt && can_be_proved(text))
    json::append(choice.member("receipt"), request_.make_receipt(text, i));
  choice.end();
  answer.ids.clear();
  end_event(request_.usage_always, out);
}

// Those of the tokens that the event shows; an echo begins with the prompt's.
json::Value EventWriter::logprobs_now(Answer& answer) {
  TextAnswer& text = answer.builder.answer;
  const bool echoes = request_.echo && !answer.begun;
  const auto shown = echoes ? all_logprobs(text, request_.prompt_only) : text.logprobs;
  text.logprobs.clear();
  return logprobs_of(request_.endpoint, {tokenizer_, request_.tokens_as_ids}, shown,
                     answer.logprob_offset);
}

void EventWriter::show_prompt(const TextAnswer& text, json::ObjectWriter& choice) const {
  if (request_.token_ids)
    json::append(choice.member("prompt_token_ids"), ids_of(text.prompt_tokens));
  if (const SamplingParams& p = request_.base.params; shows_logprobs_mode(p))
    json::append_quoted(choice.member("logprobs_mode"), name_of(p.logprobs_mode));
  if (request_.base.params.prompt_logprobs)
    append_prompt_logprobs(tokenizer_, text.prompt_logprobs, choice.member("prompt_logprobs"));
}

// Adds an event's text: the first event says whose words these are.
void EventWriter::append_delta(size_t i, const std::string& thought, const std::string& content,
                               const std::vector<AnswerPiece>& pieces, std::string& out) {
  Answer& answer = answers_[i];
  json::ObjectWriter delta(out);
  if (!answer.begun) json::append_quoted(delta.member("role"), "assistant");
  for (const char* name : {"reasoning_content", "reasoning"})
    if (!thought.empty()) json::append_quoted(delta.member(name), thought);
  json::Array shown = calls_in(i, pieces);
  if (!content.empty() || (shown.empty() && thought.empty()))
    json::append_quoted(delta.member("content"), content);
  if (!shown.empty()) json::append(delta.member("tool_calls"), std::move(shown));
  delta.end();
}

void EventWriter::read_custom(Answer& answer, std::vector<AnswerPiece>& pieces) const {
  using Kind = AnswerPiece::Kind;
  std::vector<AnswerPiece> read;
  for (AnswerPiece& piece : pieces) {
    if (piece.kind == Kind::call) {
      answer.reads_custom = is_custom_tool(request_, piece.text);
      answer.input = {};
    } else if (answer.reads_custom && piece.kind != Kind::text) {
      const bool ends = piece.kind == Kind::end;
      piece = {Kind::arguments, ends ? answer.input.finish() : answer.input.push(piece.text)};
      if (piece.text.empty()) continue;
    }
    if (piece.kind != Kind::end) read.push_back(std::move(piece));
  }
  pieces = std::move(read);
}

// A call's first part says what it calls.
json::Array EventWriter::calls_in(size_t i, const std::vector<AnswerPiece>& pieces) {
  Answer& answer = answers_[i];
  json::Array shown;
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (pieces[p].kind == AnswerPiece::Kind::text) continue;
    const bool begins = pieces[p].kind == AnswerPiece::Kind::call;
    if (begins) {
      ++answer.calls;
      answer.shows_custom = is_custom_tool(request_, pieces[p].text);
    }
    const char* type = answer.shows_custom ? "custom" : "function";
    json::Value call = json::Object{{"index", static_cast<int64_t>(answer.calls - 1)}};
    json::Value function = json::Object();
    if (begins) {
      call.set("id", call_id(head_, i, answer.calls - 1));
      call.set("type", type);
      function.set("name", pieces[p].text);
    }
    const bool has_more =
        p + 1 < pieces.size() && pieces[p + 1].kind == AnswerPiece::Kind::arguments;
    if (begins && has_more) ++p;
    const bool has_arguments = pieces[p].kind == AnswerPiece::Kind::arguments;
    function.set(answer.shows_custom ? "input" : "arguments", has_arguments ? pieces[p].text : "");
    call.set(type, std::move(function));
    shown.push_back(std::move(call));
  }
  return shown;
}

void EventWriter::begin_event(std::string& out) {
  out += opening_;
  if (events_++ == 0)
    out += fmt::format(", \"seed\": {}, \"max_tokens\": {}", head_.seed, shown_length(request_));
  out += ", \"choices\": [";
}

// The cached tokens are said last: before that some prompts may not have begun.
void EventWriter::end_event(bool with_usage, std::string& out, bool is_last) {
  out += ']';
  if (with_usage || request_.usage_at_end) {
    out += ", \"usage\": ";
    json::Value counts = with_usage ? usage_now() : json::Value();
    if (is_last) add_cached(counts, cached());
    json::append(out, counts);
  }
  out += "}\n\n";
}

// The sum over all prompts, each counted once.
std::optional<int64_t> EventWriter::cached() const {
  std::optional<int64_t> all;
  const auto n = static_cast<size_t>(request_.base.params.n);
  for (size_t i = 0; i < answers_.size(); i += n)
    if (const auto& one = answers_[i].builder.answer.cached) all = all.value_or(0) + *one;
  return all;
}

json::Value EventWriter::usage_now() const {
  json::Value counts = usage(prompt_tokens_, completion_tokens_);
  int64_t accepted = 0, rejected = 0;
  for (const Answer& answer : answers_) {
    accepted += answer.prediction.accepted();
    rejected += answer.prediction.rejected();
  }
  if (!request_.base.prediction.empty()) add_prediction(counts, accepted, rejected);
  int64_t thought = 0;
  for (const Answer& answer : answers_) thought += answer.builder.answer.thought_tokens;
  if (request_.thought_format != ThoughtFormat::none) add_thoughts(counts, thought);
  return counts;
}

void EventWriter::fail(const Failure& failure, std::string& out) {
  if (ended_) return;
  const json::Value error =
      json::Object{{"message", failure.message},
                   {"type", failure.type()},
                   {"param", nullptr},
                   {"code", failure.code.empty() ? json::Value() : json::Value(failure.code)}};
  out += "data: " + json::dump(json::Object{{"error", error}}) + "\n\ndata: [DONE]\n\n";
  ended_ = true;
}

}  // namespace invar::openai
