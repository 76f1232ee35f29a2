#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/ollama.h"
#include "frontend/openai_parts.h"

namespace invar::ollama {

namespace {

bool is_chat(const openai::Request& request) {
  return request.endpoint == openai::Endpoint::ollama_chat;
}

// The beginning of every line.
json::Value begin_of(const std::string& model, int64_t created) {
  return json::Object{{"model", name_with_tag(model)}, {"created_at", time_text(created)}};
}

void set_said(bool is_chat, const Lines::Line& line, json::Value& body) {
  if (!is_chat) {
    body.set("response", line.text);
    if (!line.thought.empty()) body.set("thinking", line.thought);
    if (!line.calls.empty()) body.set("tool_calls", line.calls);
    return;
  }
  json::Value message = json::Object{{"role", "assistant"}, {"content", line.text}};
  if (!line.thought.empty()) message.set("thinking", line.thought);
  if (!line.calls.empty()) message.set("tool_calls", line.calls);
  body.set("message", std::move(message));
}

void set_logprobs(const openai::Request& request, const Tokenizer& tokenizer,
                  std::span<const TokenLogprobs> some, json::Value& body) {
  if (!request.base.params.logprobs || some.empty()) return;
  int64_t offset = 0;
  body.set("logprobs",
           *openai::logprobs_of(openai::Endpoint::chat, {tokenizer}, some, offset).find("content"));
}

void set_end(const openai::Request& request, const openai::Head& head, const TextAnswer& answer,
             const AnswerTimes& times, json::Value& body) {
  body.set("done", true);
  body.set("done_reason", name_of(answer.finish));
  body.set("total_duration", times.total_ns);
  body.set("load_duration", int64_t{0});
  body.set("prompt_eval_count", std::ssize(answer.prompt_tokens));
  body.set("prompt_eval_duration", times.prompt_ns);
  body.set("eval_count", std::ssize(answer.tokens));
  body.set("eval_duration", times.answer_ns);
  body.set("system_fingerprint", head.system_fingerprint);
  body.set("seed", head.seed);
  if (request.logits_hash) body.set("logits_hash", to_hex(answer.logits_hash));
}

}  // namespace

std::string time_text(int64_t seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

void Lines::push(std::string_view thought, std::string_view text) {
  line_.thought += thought;
  std::vector<AnswerPiece> pieces;
  reader_.push(text, pieces);
  add(pieces);
}

void Lines::finish(bool is_cut) {
  std::vector<AnswerPiece> pieces;
  reader_.finish(pieces, is_cut);
  add(pieces);
}

// A call is shown when it is whole.
void Lines::add(const std::vector<AnswerPiece>& pieces) {
  using Kind = AnswerPiece::Kind;
  for (const AnswerPiece& piece : pieces) {
    if (piece.kind == Kind::text) line_.text += piece.text;
    if (piece.kind == Kind::call) call_ = {piece.text, ""};
    if (piece.kind == Kind::arguments) call_.arguments += piece.text;
    if (piece.kind != Kind::end) continue;
    line_.calls.push_back(
        json::Object{{"function", json::Object{{"index", calls_++},
                                               {"name", call_.name},
                                               {"arguments", whole_part(call_.arguments)}}}});
  }
}

json::Value answer_body(const openai::Request& request, const TextAnswer& answer,
                        const Tokenizer& tokenizer, const openai::Head& head,
                        const AnswerTimes& times) {
  Lines lines(request);
  for_each_part(
      answer, [&](std::string_view thought, std::string_view text) { lines.push(thought, text); });
  lines.finish(is_cut(answer.finish));
  json::Value body = begin_of(head.model, head.created);
  set_said(is_chat(request), lines.take(), body);
  set_logprobs(request, tokenizer, answer.logprobs, body);
  set_end(request, head, answer, times, body);
  return body;
}

json::Value loaded_body(const json::Value& body, bool is_chat, int64_t now) {
  const json::Value* keep = body.find("keep_alive");
  const bool goes =
      keep && (*keep == json::Value(0) || *keep == json::Value("0") || *keep == json::Value("0s"));
  if (goes)
    fail_usage(
        "expected no keep_alive of 0, since the model stays while the server runs (POST /sleep "
        "gives its memory back)");
  const json::Value* model = body.find("model");
  json::Value said = begin_of(model && model->is_string() ? model->as_string() : "", now);
  set_said(is_chat, {}, said);
  said.set("done", true);
  said.set("done_reason", "load");
  return said;
}

void LineWriter::show(const TokenOutput&, const std::string& piece, std::string& out) {
  lines_.push(builder_.new_thought(), piece);
  const bool is_over = written().finish != FinishReason::none;
  if (is_over) lines_.finish(is_cut(written().finish));
  const Lines::Line line = lines_.take();
  if (!line.empty()) {
    json::Value body = begin_of(head_.model, head_.created);
    set_said(is_chat(request_), line, body);
    set_logprobs(request_, tokenizer_, new_logprobs(), body);
    body.set("done", false);
    json::append(out, body);
    out += '\n';
  }
  if (!is_over) return;
  json::Value body = begin_of(head_.model, head_.created);
  set_said(is_chat(request_), {}, body);
  set_end(request_, head_, written(), times_, body);
  json::append(out, body);
  out += '\n';
}

void LineWriter::show_error(const Failure& failure, std::string& out) {
  json::append(out, error_body(failure.message));
  out += '\n';
}

json::Value error_body(const std::string& message) {
  return json::Object{{"error", message}};
}

}  // namespace invar::ollama
