#include "frontend/responses.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "frontend/foreign_fields.h"

namespace invar::openai {

namespace {

constexpr ForeignField kRefused[] = {
    {"background", "false"},
    {"conversation", "", "ask for \"previous_response_id\""},
    {"max_tool_calls", ""},
    {"n", "1", "a response is one answer"},
    {"prompt", "", "give \"input\""},
    {"top_logprobs", "0", "a response has none: ask /v1/chat/completions"},
    {"truncation", "\"disabled\"", "ask for \"truncate_prompt_tokens\""},
};

// The content of an item of "input": a text, or parts of text.
json::Value content_of(const json::Value& content) {
  if (!content.is_array()) return content;
  json::Array parts;
  for (const json::Value& part : content.as_array()) {
    const json::Value* type = part.find("type");
    const json::Value* text = part.find("text");
    const bool is_text =
        type && (*type == json::Value("input_text") || *type == json::Value("output_text"));
    if (!is_text || !text)
      fail_usage("expected parts of type input_text or output_text, found {}", json::excerpt(part));
    parts.push_back(json::Object{{"type", "text"}, {"text", *text}});
  }
  return parts;
}

// A message of which only the thought has come.
bool waits_for_words(const json::Value& message) {
  return message.find("reasoning_content") && !message.find("tool_calls") &&
         *message.find("content") == json::Value("");
}

// What was thought before the next message or call of the assistant.
void add_thought(const json::Value& item, const ThoughtSeal* seal, json::Array& messages) {
  std::string thought;
  const json::Value* closed = item.find("encrypted_content");
  if (closed && closed->is_string()) {
    if (!seal) fail_usage("expected no encrypted_content, since nobody knows its key");
    thought = seal->open(closed->as_string());
  } else {
    const json::Value* content = item.find("content");
    if (!content || !content->is_array() || content->as_array().empty())
      content = item.find("summary");
    for (const json::Value& part :
         content && content->is_array() ? content->as_array() : json::Array()) {
      const json::Value* text = part.find("text");
      if (!text || !text->is_string())
        fail_usage("expected parts with a text in a reasoning item, found {}", json::excerpt(part));
      thought += text->as_string();
    }
  }
  messages.push_back(
      json::Object{{"role", "assistant"}, {"content", ""}, {"reasoning_content", thought}});
}

// What a call of a tool was, in the message of the one who called.
void add_call(const json::Value& item, json::Array& messages) {
  const json::Value* id = item.find("call_id");
  const json::Value* name = item.find("name");
  const json::Value* arguments = item.find("arguments");
  if (!id || !name || !arguments)
    fail_usage("expected call_id, name and arguments in {}", json::excerpt(item));
  const bool goes_on =
      !messages.empty() && (messages.back().find("tool_calls") || waits_for_words(messages.back()));
  if (!goes_on) messages.push_back(json::Object{{"role", "assistant"}, {"content", ""}});
  const json::Value* before = messages.back().find("tool_calls");
  json::Array calls = before ? before->as_array() : json::Array();
  calls.push_back(
      json::Object{{"id", *id},
                   {"type", "function"},
                   {"function", json::Object{{"name", *name}, {"arguments", *arguments}}}});
  messages.back().set("tool_calls", std::move(calls));
}

void add_item(const json::Value& item, const ThoughtSeal* seal, json::Array& messages) {
  const json::Value* type = item.find("type");
  if (type && *type == json::Value("reasoning")) return add_thought(item, seal, messages);
  if (type && *type == json::Value("function_call")) return add_call(item, messages);
  if (type && *type == json::Value("function_call_output")) {
    const json::Value* id = item.find("call_id");
    const json::Value* output = item.find("output");
    if (!id || !output) fail_usage("expected call_id and output in {}", json::excerpt(item));
    return messages.push_back(
        json::Object{{"role", "tool"}, {"tool_call_id", *id}, {"content", content_of(*output)}});
  }
  const json::Value* role = item.find("role");
  const json::Value* content = item.find("content");
  if ((type && *type != json::Value("message")) || !role || !content)
    fail_usage(
        "expected messages with role and content, thoughts, or calls and their outputs, as input, "
        "found {}",
        json::excerpt(item));
  if (*role == json::Value("assistant") && !messages.empty() && waits_for_words(messages.back()))
    return messages.back().set("content", content_of(*content));
  const bool is_developer = *role == json::Value("developer");
  messages.push_back(json::Object{{"role", is_developer ? json::Value("system") : *role},
                                  {"content", content_of(*content)}});
}

json::Array messages_of(const json::Value& body, const json::Array* earlier,
                        const ThoughtSeal* seal) {
  json::Array messages;
  const json::Value* instructions = body.find("instructions");
  if (instructions && !instructions->is_null())
    messages.push_back(json::Object{{"role", "system"}, {"content", *instructions}});
  if (earlier)
    for (const json::Value& item : *earlier) add_item(item, seal, messages);
  for (const json::Value& item : input_items(body)) add_item(item, seal, messages);
  return messages;
}

// {"type": "function", "name": ..., "parameters": ...} as chat completions have it.
json::Value chat_tools_of(const json::Value& tools) {
  if (!tools.is_array()) fail_usage("expected tools as a list, found {}", tools.type_name());
  json::Array all;
  for (const json::Value& tool : tools.as_array()) {
    const json::Value* type = tool.find("type");
    if (!type || *type != json::Value("function") || !tool.find("name"))
      fail_usage("expected tools of type function with a name, found {}", json::excerpt(tool));
    json::Value function = json::Object();
    for (const auto& [key, value] : tool.as_object())
      if (key != "type" && !value.is_null()) function.set(key, value);
    all.push_back(json::Object{{"type", "function"}, {"function", std::move(function)}});
  }
  return all;
}

// {"format": {"type": "json_schema", "name": ..., "schema": {...}}}
void read_format(const json::Value& text, json::Value& chat) {
  const json::Value* verbosity = text.find("verbosity");
  if (verbosity && !verbosity->is_null() && *verbosity != json::Value("medium"))
    fail_usage("expected verbosity medium, since a template has no other, found {}",
               json::excerpt(*verbosity));
  const json::Value* format = text.find("format");
  const json::Value* schema = format ? format->find("schema") : nullptr;
  if (!format) return;
  if (schema)
    chat.set("response_format", json::Object{{"type", "json_schema"},
                                             {"json_schema", json::Object{{"schema", *schema}}}});
  else
    chat.set("response_format", *format);
}

// {"effort": ..., "summary": ...}
void read_effort(const json::Value& reasoning, json::Value& chat) {
  if (!reasoning.is_object())
    fail_usage("expected reasoning as an object, found {}", reasoning.type_name());
  for (const auto& [key, value] : reasoning.as_object()) {
    if (value.is_null()) continue;
    if (key == "effort")
      chat.set("reasoning_effort", value);
    else if (key != "summary" && key != "generate_summary")
      fail_usage("expected effort and summary in reasoning, found {}", json::quoted(key));
    else if (value != json::Value("auto") && value != json::Value("concise") &&
             value != json::Value("detailed"))
      fail_usage("expected a summary auto, concise or detailed, found {}", json::excerpt(value));
  }
}

// What stands behind the "resp_" of the response.
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

// The item, or what is said of it when it begins.
json::Value item_of(const Request& request, const Head& head, const ResponseItems& items, size_t i,
                    const char* status) {
  const bool begins = status == std::string_view("in_progress");
  if (items.is_thought(i))
    return thought_item(request, items.id(head, i), items.thought(i), status, begins);
  if (!items.is_call(i))
    return json::Object{{"type", "message"},
                        {"id", items.id(head, i)},
                        {"status", status},
                        {"role", "assistant"},
                        {"content", begins ? json::Array() : json::Array{text_part(items.text())}}};
  const ToolCall& call = items.call(i);
  return json::Object{{"type", "function_call"},
                      {"id", items.id(head, i)},
                      {"call_id", call_id(head, 0, items.number(i))},
                      {"name", call.name},
                      {"arguments", begins ? "" : call.arguments},
                      {"status", status}};
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
  body.set("instructions", nullptr);
  body.set("max_output_tokens", static_cast<int64_t>(p.max_tokens));
  body.set("model", head.model);
  body.set("system_fingerprint", head.system_fingerprint);
  body.set("seed", head.seed);
  json::Array output;
  for (size_t i = 0; answer && i < items.size(); ++i)
    output.push_back(item_of(request, head, items, i, status));
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

}  // namespace

json::Array input_items(const json::Value& body) {
  const json::Value* input = body.find("input");
  if (!input) fail_usage("expected \"input\" in the body");
  if (input->is_string()) return {json::Object{{"role", "user"}, {"content", *input}}};
  if (!input->is_array())
    fail_usage("expected an input of text or items, found {}", input->type_name());
  return input->as_array();
}

json::Value chat_body_of(const json::Value& body, const json::Array* earlier,
                         const ThoughtSeal* seal) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  refuse_fields(body, kRefused);
  json::Value chat = json::Object{
      {"messages", within("messages", [&] { return messages_of(body, earlier, seal); })}};
  for (const auto& member : body.as_object()) {
    const std::string& key = member.first;
    const json::Value& value = member.second;
    const bool is_empty = value.is_null() || (value.is_array() && value.as_array().empty());
    if (key == "input" || key == "instructions" || key == "previous_response_id" ||
        key == "include" || value.is_null() || find_field(kRefused, key))
      continue;
    if (key == "store") {
      if (!value.is_bool())
        fail_usage("expected store as true or false, found {}", value.type_name());
    } else if (key == "tools") {
      if (!is_empty) chat.set(key, within("tools", [&] { return chat_tools_of(value); }));
    } else if (key == "max_output_tokens")
      chat.set("max_tokens", value);
    else if (key == "text")
      within("text", [&] { read_format(value, chat); });
    else if (key == "reasoning")
      within("reasoning", [&] { read_effort(value, chat); });
    else if (key != "top_logprobs")
      chat.set(key, value);
  }
  return chat;
}

void read_reasoning(const json::Value& body, Request& request) {
  if (const json::Value* reasoning = body.find("reasoning"))
    for (const char* name : {"summary", "generate_summary"})
      if (const json::Value* v = reasoning->find(name)) request.summary |= !v->is_null();
  const json::Value* include = body.find("include");
  if (!include || include->is_null()) return;
  if (!include->is_array())
    fail_usage("expected include as a list, found {}", include->type_name());
  for (const json::Value& one : include->as_array())
    request.sealed |= one == json::Value("reasoning.encrypted_content");
}

void ResponseItems::push_thought(std::string_view thought) {
  if (thought.empty()) return;
  if (items_.empty() || items_.back().kind != Kind::thought)
    items_.push_back({.kind = Kind::thought, .call = {}});
  items_.back().call.arguments += thought;
}

void ResponseItems::push(const AnswerPiece& piece) {
  using Kinds = AnswerPiece::Kind;
  if (piece.kind == Kinds::text) message(), text_ += piece.text;
  if (piece.kind == Kinds::call)
    items_.push_back({.kind = Kind::call, .call = ToolCall{piece.text, ""}});
  if (piece.kind == Kinds::arguments) items_.back().call.arguments += piece.text;
}

size_t ResponseItems::message() {
  for (size_t i = 0; i < items_.size(); ++i)
    if (items_[i].kind == Kind::message) return i;
  items_.emplace_back();
  return items_.size() - 1;
}

size_t ResponseItems::number(size_t i) const {
  return static_cast<size_t>(
      std::count_if(items_.begin(), items_.begin() + static_cast<int64_t>(i),
                    [&](const Item& item) { return item.kind == items_[i].kind; }));
}

std::string ResponseItems::id(const Head& head, size_t i) const {
  if (is_thought(i)) return fmt::format("rs_{}_{}", hex_of(head), number(i));
  return is_call(i) ? fmt::format("fc_{}_{}", hex_of(head), number(i)) : "msg_" + hex_of(head);
}

json::Value response_body(const Request& request, const TextAnswer& answer, const Head& head) {
  ResponseItems items;
  ToolCallReader reader(request.tools, request.tool, &request.tool_list);
  const auto take = [&](std::string_view text, bool is_last) {
    std::vector<AnswerPiece> pieces;
    reader.push(text, pieces);
    if (is_last) reader.finish(pieces, answer.finish == FinishReason::length);
    for (const AnswerPiece& piece : pieces) items.push(piece);
  };
  for_each_part(answer, [&](std::string_view thought, std::string_view text) {
    items.push_thought(thought);
    take(text, false);
  });
  take("", true);
  if (items.size() == 0) items.message();
  return response_of(request, &answer, items, std::ssize(answer.prompt_tokens), head);
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
  if (answer.finish == FinishReason::failed) return fail(answer.error, "server_error", out);
  show_thought(builder_.new_thought(), out);
  std::vector<AnswerPiece> pieces;
  reader_.push(piece, pieces);
  const bool is_over = answer.finish != FinishReason::none;
  if (is_over) reader_.finish(pieces, answer.finish == FinishReason::length);
  if (is_over || !pieces.empty()) end_thought(out);
  for (const AnswerPiece& one : pieces) show(one, out);
  const bool is_text_alone =
      request_.tools == ToolFormat::none && request_.base.thoughts.format == ThoughtFormat::none;
  if (items_.size() == 0 && (is_over || is_text_alone)) begin_item(items_.message(), out);
  if (is_over) end(out);
}

void ResponseWriter::fail(const std::string& message, const char* code, std::string& out) {
  if (ended_) return;
  event("error", json::Object{{"code", code}, {"message", message}, {"param", nullptr}}, out);
  ended_ = true;
}

void ResponseWriter::begin(std::string& out) {
  const json::Value response = response_of(request_, nullptr, items_, 0, head_);
  event("response.created", json::Object{{"response", response}}, out);
  event("response.in_progress", json::Object{{"response", response}}, out);
}

void ResponseWriter::begin_item(size_t i, std::string& out) {
  event("response.output_item.added", i,
        json::Object{{"item", item_of(request_, head_, items_, i, "in_progress")}}, out);
  if (items_.is_call(i)) return;
  const json::Value part = items_.is_thought(i) ? thought_part("") : text_part("");
  event("response.content_part.added", i, json::Object{{"part", part}}, out);
}

void ResponseWriter::show_thought(const std::string& thought, std::string& out) {
  if (thought.empty()) return;
  items_.push_thought(thought);
  if (!std::exchange(in_thought_, true)) begin_item(items_.size() - 1, out);
  event("response.reasoning_text.delta", items_.size() - 1, json::Object{{"delta", thought}}, out);
}

void ResponseWriter::end_thought(std::string& out) {
  if (!std::exchange(in_thought_, false)) return;
  const size_t i = items_.size() - 1;
  const std::string& thought = items_.thought(i);
  event("response.reasoning_text.done", i, json::Object{{"text", thought}}, out);
  event("response.content_part.done", i, json::Object{{"part", thought_part(thought)}}, out);
  const bool is_cut = builder_.answer.finish == FinishReason::length;
  event("response.output_item.done", i,
        json::Object{
            {"item", item_of(request_, head_, items_, i, is_cut ? "incomplete" : "completed")}},
        out);
}

void ResponseWriter::show(const AnswerPiece& piece, std::string& out) {
  const size_t before = items_.size();
  items_.push(piece);
  if (items_.size() > before) begin_item(before, out);
  const size_t last = items_.size() - 1;
  if (piece.kind == AnswerPiece::Kind::text)
    event("response.output_text.delta", items_.message(), json::Object{{"delta", piece.text}}, out);
  if (piece.kind == AnswerPiece::Kind::arguments)
    event("response.function_call_arguments.delta", last, json::Object{{"delta", piece.text}}, out);
  if (piece.kind == AnswerPiece::Kind::end) end_call(last, out);
}

void ResponseWriter::end_call(size_t i, std::string& out) {
  const bool is_cut = builder_.answer.finish == FinishReason::length;
  event("response.function_call_arguments.done", i,
        json::Object{{"name", items_.call(i).name}, {"arguments", items_.call(i).arguments}}, out);
  event("response.output_item.done", i,
        json::Object{
            {"item", item_of(request_, head_, items_, i, is_cut ? "incomplete" : "completed")}},
        out);
}

void ResponseWriter::end(std::string& out) {
  const TextAnswer& answer = builder_.answer;
  const json::Value response =
      response_of(request_, &answer, items_, std::ssize(answer.prompt_tokens), head_);
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_.is_call(i) || items_.is_thought(i)) continue;
    event("response.output_text.done", i, json::Object{{"text", items_.text()}}, out);
    event("response.content_part.done", i, json::Object{{"part", text_part(items_.text())}}, out);
    event("response.output_item.done", i,
          json::Object{{"item", response.find("output")->as_array()[i]}}, out);
  }
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
