#include "frontend/responses.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/foreign_fields.h"

namespace invar::openai {

namespace {

// The digits behind the "resp_" of the response.
std::string hex_of(const Head& head) {
  return head.id.substr(head.id.find('_') + 1);
}

json::Value text_part(const std::string& text) {
  return json::Object{{"type", "output_text"}, {"text", text}, {"annotations", json::Array()}};
}

json::Value thought_part(const std::string& text) {
  return json::Object{{"type", "reasoning_text"}, {"text", text}};
}

// A summary is the thought itself: nobody is there to write a shorter one.
json::Value thought_item(const Request& request, const std::string& id, const std::string& thought,
                         const char* status, bool begins) {
  json::Value item = json::Object{{"type", "reasoning"}, {"id", id}, {"summary", json::Array()}};
  if (request.summary && !begins)
    item.set("summary", json::Array{json::Object{{"type", "summary_text"}, {"text", thought}}});
  item.set("content", begins ? json::Array() : json::Array{thought_part(thought)});
  if (request.sealed && request.seal && !begins)
    item.set("encrypted_content", request.seal->close(thought));
  item.set("status", status);
  return item;
}

// The tool of the request that has this name, and the namespace that it is in.
const json::Value* asked_tool(const json::Value& tools, const std::string& name,
                              const json::Value** space) {
  if (!tools.is_array()) return nullptr;
  for (const json::Value& tool : tools.as_array()) {
    const json::Value *type = tool.find("type"), *found = tool.find("name");
    const json::Value* inner = tool.find("tools");
    if (inner && type && *type == json::Value("namespace")) {
      *space = found;
      if (const json::Value* one = asked_tool(*inner, name, space)) return one;
      *space = nullptr;
    } else if (found && *found == json::Value(name)) {
      return &tool;
    }
  }
  return nullptr;
}

bool is_custom(const Request& request, const std::string& name) {
  const json::Value* space = nullptr;
  const json::Value* tool = asked_tool(request.asked_tools, name, &space);
  const json::Value* type = tool ? tool->find("type") : nullptr;
  return type && *type == json::Value("custom");
}

json::Value call_item(const Request& request, const Head& head, const ResponseItems& items,
                      size_t i, const char* status, bool begins) {
  const ToolCall& call = items.call(i);
  const bool custom = is_custom(request, call.name);
  json::Value item = json::Object{{"type", custom ? "custom_tool_call" : "function_call"},
                                  {"id", items.id(head, i)},
                                  {"call_id", call_id(head, 0, items.number(i))},
                                  {"name", call.name}};
  const json::Value* space = nullptr;
  asked_tool(request.asked_tools, call.name, &space);
  if (space) item.set("namespace", *space);
  if (custom)
    item.set("input", begins ? "" : custom_input(call.arguments));
  else
    item.set("arguments", begins ? "" : call.arguments);
  item.set("status", status);
  return item;
}

// A call is whole where its arguments are; a text or a thought where the answer does not end in it
// before its end.
const char* status_of(const ResponseItems& items, size_t i, bool is_cut) {
  if (!items.is_call(i)) return is_cut && i + 1 == items.size() ? "incomplete" : "completed";
  try {
    json::parse(items.call(i).arguments, "arguments");
    return "completed";
  } catch (const Error&) {
    return "incomplete";
  }
}

// The item, or what is said of it when it begins.
json::Value item_of(const Request& request, const Head& head, const ResponseItems& items, size_t i,
                    const char* status) {
  const bool begins = status == std::string_view("in_progress");
  if (items.is_call(i)) return call_item(request, head, items, i, status, begins);
  if (items.is_thought(i))
    return thought_item(request, items.id(head, i), items.text(i), status, begins);
  return json::Object{{"type", "message"},
                      {"id", items.id(head, i)},
                      {"status", status},
                      {"role", "assistant"},
                      {"content", begins ? json::Array() : json::Array{text_part(items.text(i))}}};
}

json::Value usage_of(const Request& request, const TextAnswer& answer, int64_t prompt_tokens) {
  const int64_t made = std::ssize(answer.tokens);
  json::Value usage = json::Object{{"input_tokens", prompt_tokens},
                                   {"output_tokens", made},
                                   {"total_tokens", prompt_tokens + made}};
  if (answer.cached)
    usage.set("input_tokens_details", json::Object{{"cached_tokens", *answer.cached}});
  if (request.thought_format != ThoughtFormat::none)
    usage.set("output_tokens_details", json::Object{{"reasoning_tokens", answer.thought_tokens}});
  return usage;
}

// `answer` null: the answer is being made.
json::Value response_of(const Request& request, const TextAnswer* answer,
                        const ResponseItems& items, int64_t prompt_tokens, const Head& head) {
  const bool cut = answer && answer->finish == FinishReason::length;
  const char* status = !answer ? "in_progress" : cut ? "incomplete" : "completed";
  const SamplingParams& p = request.base.params;
  json::Value body = json::Object{{"id", head.id},
                                  {"object", "response"},
                                  {"created_at", head.created},
                                  {"status", status},
                                  {"error", nullptr}};
  body.set("incomplete_details",
           cut ? json::Value(json::Object{{"reason", "max_output_tokens"}}) : json::Value());
  if (request.background) body.set("background", true);
  body.set("instructions", nullptr);
  body.set("max_output_tokens", static_cast<int64_t>(p.max_tokens));
  body.set("model", head.model);
  body.set("system_fingerprint", head.system_fingerprint);
  body.set("seed", head.seed);
  json::Array output;
  for (size_t i = 0; answer && i < items.size(); ++i)
    output.push_back(item_of(request, head, items, i, status_of(items, i, cut)));
  body.set("output", std::move(output));
  body.set("parallel_tool_calls", request.parallel_calls);
  body.set("previous_response_id", request.asked_previous);
  body.set("temperature", p.temperature);
  body.set("tool_choice", request.asked_choice.is_null() ? "auto" : request.asked_choice);
  body.set("tools", request.asked_tools.is_null() ? json::Array() : request.asked_tools);
  body.set("top_p", p.top_p);
  body.set("metadata", json::Object());
  if (answer) body.set("usage", usage_of(request, *answer, prompt_tokens));
  return body;
}

std::string code_of(const Failure& failure) {
  return failure.code.empty() ? failure.type() : failure.code;
}

}  // namespace

void ResponseItems::push(Kind kind, std::string_view text) {
  if (kind != Kind::message && text.empty()) return;
  if (items_.empty() || last_of(items_).kind != kind) items_.push_back({.kind = kind, .call = {}});
  last_of(items_).call.arguments += text;
}

void ResponseItems::push(const AnswerPiece& piece) {
  using Kinds = AnswerPiece::Kind;
  if (piece.kind == Kinds::text) push(Kind::message, piece.text);
  if (piece.kind == Kinds::call)
    items_.push_back({.kind = Kind::call, .call = ToolCall{piece.text, ""}});
  if (piece.kind == Kinds::arguments) last_of(items_).call.arguments += piece.text;
}

size_t ResponseItems::number(size_t i) const {
  return static_cast<size_t>(
      std::count_if(items_.begin(), items_.begin() + static_cast<int64_t>(i),
                    [&](const Item& item) { return item.kind == items_[i].kind; }));
}

std::string ResponseItems::id(const Head& head, size_t i) const {
  if (is_thought(i)) return fmt::format("rs_{}_{}", hex_of(head), number(i));
  if (is_call(i)) return fmt::format("fc_{}_{}", hex_of(head), number(i));
  return number(i) == 0 ? "msg_" + hex_of(head) : fmt::format("msg_{}_{}", hex_of(head), number(i));
}

json::Value response_body(const Request& request, const TextAnswer& answer, const Head& head) {
  ResponseItems items;
  ToolCallReader reader(request.tools, request.tool, &request.tool_list);
  const auto take = [&](std::string_view text, bool is_last) {
    std::vector<AnswerPiece> pieces;
    reader.push(text, pieces);
    if (is_last) reader.finish(pieces, is_cut(answer.finish));
    for (const AnswerPiece& piece : pieces) items.push(piece);
  };
  for_each_part(answer, [&](std::string_view thought, std::string_view text) {
    items.push_thought(thought);
    take(text, false);
  });
  take("", true);
  if (items.size() == 0) items.begin_message();
  return response_of(request, &answer, items, std::ssize(answer.prompt_tokens), head);
}

json::Value unanswered_body(const Request& request, const Head& head, const char* status) {
  json::Value body = response_of(request, nullptr, {}, 0, head);
  body.set("status", status);
  return body;
}

json::Value failed_body(const Request& request, const Head& head, const Failure& failure) {
  json::Value body = unanswered_body(request, head, "failed");
  body.set("error", json::Object{{"code", code_of(failure)}, {"message", failure.message}});
  return body;
}

ResponseWriter::ResponseWriter(Head head, const Request& request, int64_t prompt_tokens,
                               const Tokenizer& tokenizer)
    : head_(std::move(head)),
      request_(request),
      builder_(tokenizer, request.base),
      reader_(request.tools, request.tool, &request.tool_list) {
  builder_.answer.prompt_tokens.edit().resize(static_cast<size_t>(prompt_tokens));
}

void ResponseWriter::push(size_t, const TokenOutput& output, std::string& out) {
  if (ended_) return;
  if (sequence_ == 0) begin(out);
  const std::string piece = builder_.push(output);
  const TextAnswer& answer = builder_.answer;
  if (answer.finish == FinishReason::failed) return fail(failure_of(answer.error), out);
  if (const std::string thought = builder_.new_thought(); !thought.empty()) {
    if (items_.size() > 0 && !items_.is_thought(items_.size() - 1)) end_item(out);
    items_.push_thought(thought);
    show_text("response.reasoning_text.delta", thought, out);
  }
  std::vector<AnswerPiece> pieces;
  reader_.push(piece, pieces);
  const bool is_over = answer.finish != FinishReason::none;
  if (is_over) reader_.finish(pieces, is_cut(answer.finish));
  for (const AnswerPiece& one : pieces) show(one, out);
  const bool is_text_alone =
      request_.tools == ToolFormat::none && request_.base.thoughts.format == ThoughtFormat::none;
  if (items_.size() == 0 && (is_over || is_text_alone)) {
    items_.begin_message();
    begin_item(0, out);
  }
  if (is_over) end(out);
}

void ResponseWriter::fail(const Failure& failure, std::string& out) {
  if (ended_) return;
  event("error",
        json::Object{{"code", code_of(failure)}, {"message", failure.message}, {"param", nullptr}},
        out);
  event("response.failed", json::Object{{"response", failed_body(request_, head_, failure)}}, out);
  ended_ = true;
}

void ResponseWriter::begin(std::string& out) {
  const json::Value response = response_of(request_, nullptr, items_, 0, head_);
  event("response.created", json::Object{{"response", response}}, out);
  event("response.in_progress", json::Object{{"response", response}}, out);
}

void ResponseWriter::begin_item(size_t i, std::string& out) {
  open_ = true;
  event("response.output_item.added", i,
        json::Object{{"item", item_of(request_, head_, items_, i, "in_progress")}}, out);
  if (items_.is_call(i)) return;
  const json::Value part = items_.is_thought(i) ? thought_part("") : text_part("");
  event("response.content_part.added", i, json::Object{{"part", part}}, out);
}

// Shows the new text of the last item, a thought or a message.
void ResponseWriter::show_text(const char* type, const std::string& delta, std::string& out) {
  const size_t i = items_.size() - 1;
  if (!open_) begin_item(i, out);
  event(type, i, json::Object{{"delta", delta}}, out);
}

void ResponseWriter::show(const AnswerPiece& piece, std::string& out) {
  using Kind = AnswerPiece::Kind;
  const size_t before = items_.size();
  const bool goes_on = before > 0 && piece.kind == Kind::text && !items_.is_call(before - 1) &&
                       !items_.is_thought(before - 1);
  if ((piece.kind == Kind::call || piece.kind == Kind::text) && !goes_on) end_item(out);
  items_.push(piece);
  if (piece.kind == Kind::text) return show_text("response.output_text.delta", piece.text, out);
  const size_t last = items_.size() - 1;
  if (piece.kind == Kind::call) {
    input_ = {};
    begin_item(last, out);
  }
  if (piece.kind == Kind::arguments) show_arguments(last, piece.text, out);
  if (piece.kind == Kind::end) end_item(out);
}

void ResponseWriter::show_arguments(size_t i, const std::string& delta, std::string& out) {
  if (!is_custom(request_, items_.call(i).name))
    return event("response.function_call_arguments.delta", i, json::Object{{"delta", delta}}, out);
  if (const std::string text = input_.push(delta); !text.empty())
    event("response.custom_tool_call_input.delta", i, json::Object{{"delta", text}}, out);
}

// Ends the last item if it is open.
void ResponseWriter::end_item(std::string& out, bool is_last) {
  if (!std::exchange(open_, false)) return;
  const size_t i = items_.size() - 1;
  items_.is_call(i) ? end_call(i, out) : end_text(i, out);
  const bool is_cut = is_last && invar::is_cut(builder_.answer.finish);
  const char* status = status_of(items_, i, is_cut);
  event("response.output_item.done", i,
        json::Object{{"item", item_of(request_, head_, items_, i, status)}}, out);
}

void ResponseWriter::end_call(size_t i, std::string& out) {
  const ToolCall& call = items_.call(i);
  if (!is_custom(request_, call.name))
    return event("response.function_call_arguments.done", i,
                 json::Object{{"name", call.name}, {"arguments", call.arguments}}, out);
  if (const std::string text = input_.finish(); !text.empty())
    event("response.custom_tool_call_input.delta", i, json::Object{{"delta", text}}, out);
  event("response.custom_tool_call_input.done", i,
        json::Object{{"input", custom_input(call.arguments)}}, out);
}

void ResponseWriter::end_text(size_t i, std::string& out) {
  const std::string& text = items_.text(i);
  const bool is_thought = items_.is_thought(i);
  event(is_thought ? "response.reasoning_text.done" : "response.output_text.done", i,
        json::Object{{"text", text}}, out);
  event("response.content_part.done", i,
        json::Object{{"part", is_thought ? thought_part(text) : text_part(text)}}, out);
}

void ResponseWriter::end(std::string& out) {
  end_item(out, true);
  const TextAnswer& answer = builder_.answer;
  const json::Value response =
      response_of(request_, &answer, items_, std::ssize(answer.prompt_tokens), head_);
  event(answer.finish == FinishReason::length ? "response.incomplete" : "response.completed",
        json::Object{{"response", response}}, out);
  ended_ = true;
}

// An event of item i: it names the item and its place.
void ResponseWriter::event(const char* type, size_t i, json::Value body, std::string& out) {
  body.set("output_index", static_cast<int64_t>(i));
  if (!body.find("item")) {
    body.set("item_id", items_.id(head_, i));
    if (!items_.is_call(i)) body.set("content_index", 0);
  }
  event(type, std::move(body), out);
}

void ResponseWriter::event(const char* type, json::Value body, std::string& out) {
  json::Value data = json::Object{{"type", type}, {"sequence_number", sequence_++}};
  for (auto& [key, value] : body.as_object()) data.set(key, std::move(value));
  out += "event: ";
  out += type;
  out += "\ndata: " + json::dump(data) + "\n\n";
}

}  // namespace invar::openai
