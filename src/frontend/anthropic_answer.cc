#include <fmt/format.h>

#include <algorithm>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/anthropic.h"

namespace invar::anthropic {

namespace {

bool calls_a_tool(const Blocks::Block& block) {
  return block.call.has_value();
}

json::Value block_of(const openai::Request& request, const openai::Head& head,
                     const std::vector<Blocks::Block>& blocks, size_t i, bool begins) {
  const Blocks::Block& block = blocks[i];
  if (block.is_thought)
    return json::Object{
        {"type", "thinking"},
        {"thinking", begins ? "" : block.text},
        {"signature", begins || !request.seal ? "" : request.seal->sign(block.text)}};
  if (!block.call) return json::Object{{"type", "text"}, {"text", begins ? "" : block.text}};
  const auto number =
      std::count_if(blocks.begin(), blocks.begin() + static_cast<int64_t>(i), calls_a_tool);
  return json::Object{
      {"type", "tool_use"},
      {"id", fmt::format("toolu_{}_{}", head.id.substr(head.id.find('_') + 1), number)},
      {"name", block.call->name},
      {"input", begins ? json::Value(json::Object()) : block.input}};
}

// "stop_reason" and "stop_sequence"; null while the answer is made.
void set_stop(const TextAnswer* answer, const std::vector<Blocks::Block>& blocks,
              json::Value& message) {
  json::Value reason, sequence;
  if (answer && answer->finish == FinishReason::length) {
    reason = "max_tokens";
  } else if (answer && std::ranges::any_of(blocks, calls_a_tool)) {
    reason = "tool_use";
  } else if (answer && !answer->stop.empty()) {
    reason = "stop_sequence";
    sequence = answer->stop;
  } else if (answer) {
    reason = "end_turn";
  }
  message.set("stop_reason", std::move(reason));
  message.set("stop_sequence", std::move(sequence));
}

// Tokens that the prefix cache had are none of `input_tokens`: clients add the three up.
json::Value usage_of(const openai::Request& request, const TextAnswer& answer, bool begins) {
  json::Value usage =
      json::Object{{"input_tokens", std::ssize(answer.prompt_tokens) - answer.cached.value_or(0)},
                   {"output_tokens", begins ? 0 : std::ssize(answer.tokens)}};
  if (answer.cached) {
    usage.set("cache_read_input_tokens", *answer.cached);
    usage.set("cache_creation_input_tokens", 0);
  }
  if (!begins && request.thought_format != ThoughtFormat::none)
    usage.set("output_tokens_details", json::Object{{"reasoning_tokens", answer.thought_tokens}});
  return usage;
}

// `begins`: as it is before its first block.
json::Value message_of(const openai::Request& request, const openai::Head& head,
                       const TextAnswer& answer, const std::vector<Blocks::Block>& blocks,
                       bool begins) {
  json::Array content;
  for (size_t i = 0; !begins && i < blocks.size(); ++i)
    content.push_back(block_of(request, head, blocks, i, false));
  json::Value message = json::Object{{"id", head.id},
                                     {"type", "message"},
                                     {"role", "assistant"},
                                     {"model", head.model},
                                     {"content", std::move(content)}};
  set_stop(begins ? nullptr : &answer, blocks, message);
  message.set("usage", usage_of(request, answer, begins));
  message.set("system_fingerprint", head.system_fingerprint);
  message.set("seed", static_cast<int64_t>(head.seed));
  return message;
}

}  // namespace

void Blocks::push(std::string_view thought, std::string_view piece) {
  if (!thought.empty()) {
    if (blocks_.empty() || !last_of(blocks_).is_thought) blocks_.push_back({.is_thought = true});
    last_of(blocks_).text += thought;
  }
  std::vector<AnswerPiece> pieces;
  reader_.push(piece, pieces);
  add(pieces);
}

void Blocks::finish(bool is_cut) {
  std::vector<AnswerPiece> pieces;
  reader_.finish(pieces, is_cut);
  add(pieces);
}

void Blocks::add(const std::vector<AnswerPiece>& pieces) {
  using Kind = AnswerPiece::Kind;
  for (const AnswerPiece& piece : pieces) {
    const bool is_in_text =
        !blocks_.empty() && !last_of(blocks_).call && !last_of(blocks_).is_thought;
    if (piece.kind == Kind::text && !is_in_text) blocks_.emplace_back();
    if (piece.kind == Kind::call)
      blocks_.push_back({.call = ToolCall{piece.text, ""}, .input = json::Object()});
    Block& block = last_of(blocks_);
    if (piece.kind == Kind::text) block.text += piece.text;
    if (piece.kind == Kind::arguments) block.call->arguments += piece.text;
    if (piece.kind != Kind::end) continue;
    block.input = whole_part(block.call->arguments);
    block.ended = true;
  }
}

json::Value message_body(const openai::Request& request, const TextAnswer& answer,
                         const openai::Head& head) {
  Blocks blocks(request);
  for_each_part(
      answer, [&](std::string_view thought, std::string_view text) { blocks.push(thought, text); });
  blocks.finish(is_cut(answer.finish));
  json::Value message = message_of(request, head, answer, blocks.all(), false);
  if (request.logits_hash) message.set("logits_hash", to_hex(answer.logits_hash));
  return message;
}

MessageWriter::MessageWriter(openai::Head head, const openai::Request& request,
                             int64_t prompt_tokens, const Tokenizer& tokenizer)
    : head_(std::move(head)),
      request_(request),
      builder_(tokenizer, request.base),
      blocks_(request) {
  builder_.answer.prompt_tokens.edit().resize(static_cast<size_t>(prompt_tokens));
}

void MessageWriter::push(size_t, const TokenOutput& output, std::string& out) {
  if (ended_) return;
  const TextAnswer& answer = builder_.answer;
  if (!std::exchange(begun_, true))
    event("message_start", json::Object{{"message", message_of(request_, head_, answer, {}, true)}},
          out);
  const std::string piece = builder_.push(output);
  blocks_.push(builder_.new_thought(), piece);
  if (answer.finish == FinishReason::failed) return fail(failure_of(answer.error), out);
  const bool is_over = answer.finish != FinishReason::none;
  if (is_over) blocks_.finish(is_cut(answer.finish));
  show(is_over, out);
  if (is_over) end(out);
}

// Shows the new part of the blocks. All but the last are complete.
void MessageWriter::show(bool is_over, std::string& out) {
  const auto& blocks = blocks_.all();
  for (; next_ < blocks.size(); ++next_) {
    const Blocks::Block& block = blocks[next_];
    const auto index = static_cast<int64_t>(next_);
    if (!std::exchange(open_, true)) {
      shown_ = 0;
      event("content_block_start",
            json::Object{{"index", index},
                         {"content_block", block_of(request_, head_, blocks, next_, true)}},
            out);
    }
    show_block(block, index, out);
    if (!block.ended && !is_over && next_ + 1 == blocks.size()) return;
    end_block(block, index, out);
    open_ = false;
  }
}

void MessageWriter::show_block(const Blocks::Block& block, int64_t index, std::string& out) {
  const std::string& all = block.call ? block.call->arguments : block.text;
  if (shown_ == all.size()) return;
  const char* type = block.call         ? "input_json_delta"
                     : block.is_thought ? "thinking_delta"
                                        : "text_delta";
  const char* key = block.call ? "partial_json" : block.is_thought ? "thinking" : "text";
  const json::Value delta = json::Object{{"type", type}, {key, all.substr(shown_)}};
  shown_ = all.size();
  event("content_block_delta", json::Object{{"index", index}, {"delta", delta}}, out);
}

void MessageWriter::end_block(const Blocks::Block& block, int64_t index, std::string& out) {
  if (block.is_thought && request_.seal)
    event("content_block_delta",
          json::Object{{"index", index},
                       {"delta", json::Object{{"type", "signature_delta"},
                                              {"signature", request_.seal->sign(block.text)}}}},
          out);
  event("content_block_stop", json::Object{{"index", index}}, out);
}

void MessageWriter::end(std::string& out) {
  const TextAnswer& answer = builder_.answer;
  json::Value delta = json::Object();
  set_stop(&answer, blocks_.all(), delta);
  if (request_.logits_hash) delta.set("logits_hash", to_hex(answer.logits_hash));
  event("message_delta",
        json::Object{{"delta", std::move(delta)}, {"usage", usage_of(request_, answer, false)}},
        out);
  event("message_stop", json::Object(), out);
  ended_ = true;
}

void MessageWriter::fail(const Failure& failure, std::string& out) {
  if (ended_) return;
  const json::Value error = error_body(failure.status, failure.message);
  event("error", json::Object{{"error", *error.find("error")}}, out);
  ended_ = true;
}

void MessageWriter::event(const char* type, json::Value body, std::string& out) {
  json::Value data = json::Object{{"type", type}};
  for (auto& [key, value] : body.as_object()) data.set(key, std::move(value));
  out += fmt::format("event: {}\ndata: {}\n\n", type, json::dump(data));
}

json::Value error_body(int status, const std::string& message) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 403 ? "permission_error"
                     : status == 404 ? "not_found_error"
                     : status == 413 ? "request_too_large"
                     : status == 429 ? "rate_limit_error"
                     : status == 503 ? "overloaded_error"
                     : status == 504 ? "timeout_error"
                     : status >= 500 ? "api_error"
                                     : "invalid_request_error";
  return json::Object{{"type", "error"},
                      {"error", json::Object{{"type", type}, {"message", message}}}};
}

}  // namespace invar::anthropic
