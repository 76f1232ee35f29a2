#include "frontend/openai_events.h"

#include "frontend/openai_parts.h"

namespace invar::openai {

EventWriter::EventWriter(Head head, const Request& request,
                         const std::vector<std::vector<int32_t>>& prompts,
                         const Tokenizer& tokenizer)
    : head_(std::move(head)), request_(request), tokenizer_(tokenizer) {
  answers_.reserve(request.answers());
  const auto n = static_cast<size_t>(request.text.params.n);
  for (size_t i = 0; i < request.answers(); ++i) {
    answers_.emplace_back(request, tokenizer);
    answers_[i].builder.answer.prompt_tokens = prompts[i / n];
  }
  for (const auto& prompt : prompts) prompt_tokens_ += std::ssize(prompt);
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
    const TokenOutput output = std::move(answer.waiting.front());
    answer.waiting.pop_front();
    show(turn_, output, out);
    if (ended_) return false;
  }
  turn_ = (turn_ + 1) % answers_.size();
  for (const Answer& one : answers_)
    if (!one.over) return true;
  if (request_.usage_at_end) {
    const json::Value usage = usage_now();
    event({}, &usage, out);
  }
  out += "data: [DONE]\n\n";
  ended_ = true;
  return false;
}

void EventWriter::show(size_t i, const TokenOutput& output, std::string& out) {
  Answer& answer = answers_[i];
  const TextAnswer& text = answer.builder.answer;
  const std::string piece = answer.builder.push(output);
  if (text.finish == FinishReason::failed) return fail(text.error, nullptr, out);
  if (!request_.prompt_only) ++completion_tokens_;
  answer.ids.push_back(output.token);
  answer.over = text.finish != FinishReason::none;
  if (answer.over) answer.waiting.clear();
  std::string content;
  std::vector<ToolCall> calls;
  answer.reader.push(piece, content, calls);
  if (answer.over) answer.reader.finish(content, calls);
  if (content.empty() && calls.empty() && !answer.over) return;
  if (!answer.begun && request_.echo)
    content.insert(0, echo_of(request_.answer(i).prompt, tokenizer_));
  if (request_.prompt_only) content = echo_of(request_.answer(i).prompt, tokenizer_);
  const bool is_chat = request_.endpoint == Endpoint::chat;
  json::Value choice;
  choice.set("index", static_cast<int64_t>(i));
  choice.set(is_chat ? "delta" : "text", is_chat ? delta(i, content, calls) : json::Value(content));
  choice.set("logprobs", request_.text.params.logprobs ? logprobs_now(answer) : json::Value());
  if (!answer.begun) show_prompt(text, choice);
  answer.begun = true;
  choice.set("finish_reason", !answer.over   ? json::Value()
                              : answer.calls ? json::Value("tool_calls")
                                             : json::Value(name_of(text.finish)));
  choice.set("stop_reason", stop_reason(request_, text));
  if (request_.token_ids) {
    choice.set("token_ids", ids_of(answer.ids));
  }
  if (answer.over && request_.logits_hash) choice.set("logits_hash", to_hex(text.logits_hash));
  answer.ids.clear();
  const json::Value usage = usage_now();
  event({std::move(choice)}, request_.usage_always ? &usage : nullptr, out);
}

// Those of the tokens that the event shows; an echo begins with the prompt's.
json::Value EventWriter::logprobs_now(Answer& answer) {
  TextAnswer& text = answer.builder.answer;
  const bool echoes = request_.echo && !answer.begun;
  const auto shown = echoes ? all_logprobs(text, request_.prompt_only) : text.logprobs;
  text.logprobs.clear();
  return logprobs_of(request_.endpoint, tokenizer_, shown, answer.logprob_offset);
}

void EventWriter::show_prompt(const TextAnswer& text, json::Value& choice) const {
  if (request_.token_ids) choice.set("prompt_token_ids", ids_of(text.prompt_tokens));
  if (request_.text.params.prompt_logprobs)
    choice.set("prompt_logprobs", prompt_logprobs(tokenizer_, text.prompt_logprobs));
}

// What an event adds: the first one says whose words these are.
json::Value EventWriter::delta(size_t i, const std::string& content,
                               const std::vector<ToolCall>& calls) {
  Answer& answer = answers_[i];
  json::Value delta = json::Object();
  if (!answer.begun) delta.set("role", "assistant");
  if (!content.empty() || calls.empty()) delta.set("content", content);
  json::Array shown;
  for (const ToolCall& call : calls) {
    shown.push_back(json::Object{
        {"index", static_cast<int64_t>(answer.calls)},
        {"id", call_id(head_, i, answer.calls)},
        {"type", "function"},
        {"function", json::Object{{"name", call.name}, {"arguments", call.arguments}}}});
    ++answer.calls;
  }
  if (!shown.empty()) delta.set("tool_calls", std::move(shown));
  return delta;
}

void EventWriter::event(json::Array choices, const json::Value* usage, std::string& out) {
  json::Value body;
  body.set("id", head_.id);
  body.set("object",
           request_.endpoint == Endpoint::chat ? "chat.completion.chunk" : "text_completion");
  body.set("created", head_.created);
  body.set("model", head_.model);
  body.set("system_fingerprint", head_.system_fingerprint);
  if (events_ == 0) body.set("seed", static_cast<int64_t>(head_.seed));
  body.set("choices", std::move(choices));
  if (usage)
    body.set("usage", *usage);
  else if (request_.usage_at_end)
    body.set("usage", nullptr);
  out += "data: ";
  out += json::dump(body);
  out += "\n\n";
  ++events_;
}

json::Value EventWriter::usage_now() const {
  return usage(prompt_tokens_, completion_tokens_);
}

void EventWriter::fail(const std::string& message, const char* code, std::string& out) {
  if (ended_) return;
  const json::Value error = json::Object{{"message", message},
                                         {"type", "server_error"},
                                         {"param", nullptr},
                                         {"code", code ? json::Value(code) : json::Value()}};
  out += "data: " + json::dump(json::Object{{"error", error}}) + "\n\ndata: [DONE]\n\n";
  ended_ = true;
}

}  // namespace invar::openai
