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
    {"reasoning", R"({}|{"effort": null}|{"effort": null, "summary": null})"},
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

// What a call of a tool was, in the message of the one who called.
void add_call(const json::Value& item, json::Array& messages) {
  const json::Value* id = item.find("call_id");
  const json::Value* name = item.find("name");
  const json::Value* arguments = item.find("arguments");
  if (!id || !name || !arguments)
    fail_usage("expected call_id, name and arguments in {}", json::excerpt(item));
  const bool goes_on = !messages.empty() && messages.back().find("tool_calls");
  if (!goes_on) messages.push_back(json::Object{{"role", "assistant"}, {"content", ""}});
  const json::Value* before = messages.back().find("tool_calls");
  json::Array calls = before ? before->as_array() : json::Array();
  calls.push_back(
      json::Object{{"id", *id},
                   {"type", "function"},
                   {"function", json::Object{{"name", *name}, {"arguments", *arguments}}}});
  messages.back().set("tool_calls", std::move(calls));
}

void add_item(const json::Value& item, json::Array& messages) {
  const json::Value* type = item.find("type");
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
        "expected messages with role and content, or calls and their outputs, as input, found {}",
        json::excerpt(item));
  const bool is_developer = *role == json::Value("developer");
  messages.push_back(json::Object{{"role", is_developer ? json::Value("system") : *role},
                                  {"content", content_of(*content)}});
}

json::Array messages_of(const json::Value& body, const json::Array* earlier) {
  json::Array messages;
  const json::Value* instructions = body.find("instructions");
  if (instructions && !instructions->is_null())
    messages.push_back(json::Object{{"role", "system"}, {"content", *instructions}});
  if (earlier)
    for (const json::Value& item : *earlier) add_item(item, messages);
  for (const json::Value& item : input_items(body)) add_item(item, messages);
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

// What stands behind the "resp_" of the response.
std::string hex_of(const Head& head) {
  return head.id.substr(head.id.find('_') + 1);
}

json::Value text_part(const std::string& text) {
  return json::Object{{"type", "output_text"}, {"text", text}, {"annotations", json::Array()}};
}

// The item, or what is said of it when it begins.
json::Value item_of(const Head& head, const ResponseItems& items, size_t i, const char* status) {
  const bool begins = status == std::string_view("in_progress");
  if (!items.is_call(i))
    return json::Object{{"type", "message"},
                        {"id", items.id(head, i)},
                        {"status", status},
                        {"role", "assistant"},
                        {"content", begins ? json::Array() : json::Array{text_part(items.text())}}};
  const ToolCall& call = items.call(i);
  return json::Object{{"type", "function_call"},
                      {"id", items.id(head, i)},
                      {"call_id", call_id(head, 0, items.number_of_call(i))},
                      {"name", call.name},
                      {"arguments", begins ? "" : call.arguments},
                      {"status", status}};
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
    output.push_back(item_of(head, items, i, status));
  body.set("output", std::move(output));
  body.set("parallel_tool_calls", request.parallel_calls);
  body.set("previous_response_id", request.asked_previous);
  body.set("temperature", p.temperature);
  body.set("tool_choice", request.asked_choice.is_null() ? "auto" : request.asked_choice);
  body.set("tools", request.asked_tools.is_null() ? json::Array() : request.asked_tools);
  body.set("top_p", p.top_p);
  body.set("metadata", json::Object());
  if (!answer) return body;
  const int64_t made = std::ssize(answer->tokens);
  body.set("usage", json::Object{{"input_tokens", prompt_tokens},
                                 {"output_tokens", made},
                                 {"total_tokens", prompt_tokens + made}});
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

json::Value chat_body_of(const json::Value& body, const json::Array* earlier) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  refuse_fields(body, kRefused);
  json::Value chat = json::Object{{"messages", messages_of(body, earlier)}};
  for (const auto& [key, value] : body.as_object()) {
    const bool is_empty = value.is_null() || (value.is_array() && value.as_array().empty());
    if (key == "input" || key == "instructions" || key == "previous_response_id" ||
        value.is_null() || find_field(kRefused, key))
      continue;
    if (key == "store") {
      if (!value.is_bool())
        fail_usage("expected store as true or false, found {}", value.type_name());
    } else if (key == "tools") {
      if (!is_empty) chat.set(key, chat_tools_of(value));
    } else if (key == "max_output_tokens")
      chat.set("max_tokens", value);
    else if (key == "text")
      read_format(value, chat);
    else if (key != "top_logprobs")
      chat.set(key, value);
  }
  return chat;
}

void ResponseItems::push(const std::string& content, const std::vector<ToolCall>& calls,
                         bool text_first) {
  if (!content.empty() && (text_first || calls.empty())) message();
  text_ += content;
  for (const ToolCall& call : calls) items_.emplace_back(call);
  if (!content.empty()) message();
}

size_t ResponseItems::message() {
  for (size_t i = 0; i < items_.size(); ++i)
    if (!items_[i]) return i;
  items_.emplace_back(std::nullopt);
  return items_.size() - 1;
}

size_t ResponseItems::number_of_call(size_t i) const {
  return static_cast<size_t>(std::count_if(items_.begin(), items_.begin() + static_cast<int64_t>(i),
                                           [](const auto& item) { return item.has_value(); }));
}

std::string ResponseItems::id(const Head& head, size_t i) const {
  return is_call(i) ? fmt::format("fc_{}_{}", hex_of(head), number_of_call(i))
                    : "msg_" + hex_of(head);
}

json::Value response_body(const Request& request, const TextAnswer& answer, const Head& head) {
  ResponseItems items;
  ToolCallReader reader(request.tools, request.tool);
  std::string content;
  std::vector<ToolCall> calls;
  reader.push(answer.text, content, calls);
  reader.finish(content, calls);
  items.push(content, calls, reader.text_came_first());
  if (items.size() == 0) items.message();
  return response_of(request, &answer, items, std::ssize(answer.prompt_tokens), head);
}

ResponseWriter::ResponseWriter(Head head, const Request& request, int64_t prompt_tokens,
                               const Tokenizer& tokenizer)
    : head_(std::move(head)),
      request_(request),
      builder_(tokenizer, request.base),
      reader_(request.tools, request.tool) {
  builder_.answer.prompt_tokens.edit().resize(static_cast<size_t>(prompt_tokens));
}

void ResponseWriter::push(size_t, const TokenOutput& output, std::string& out) {
  if (ended_) return;
  if (sequence_ == 0) begin(out);
  const std::string piece = builder_.push(output);
  const TextAnswer& answer = builder_.answer;
  if (answer.finish == FinishReason::failed) return fail(answer.error, "server_error", out);
  std::string content;
  std::vector<ToolCall> calls;
  reader_.push(piece, content, calls);
  const bool is_over = answer.finish != FinishReason::none;
  if (is_over) reader_.finish(content, calls);
  const size_t shown = items_.size();
  items_.push(content, calls, reader_.text_came_first());
  if (items_.size() == 0 && (is_over || request_.tools == ToolFormat::none)) items_.message();
  for (size_t i = shown; i < items_.size(); ++i) begin_item(i, out);
  if (!content.empty())
    event("response.output_text.delta", items_.message(), json::Object{{"delta", content}}, out);
  for (size_t i = shown; i < items_.size(); ++i)
    if (items_.is_call(i)) show_call(i, out);
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
        json::Object{{"item", item_of(head_, items_, i, "in_progress")}}, out);
  if (!items_.is_call(i))
    event("response.content_part.added", i, json::Object{{"part", text_part("")}}, out);
}

// A call comes as a whole.
void ResponseWriter::show_call(size_t i, std::string& out) {
  const std::string& arguments = items_.call(i).arguments;
  event("response.function_call_arguments.delta", i, json::Object{{"delta", arguments}}, out);
  event("response.function_call_arguments.done", i,
        json::Object{{"name", items_.call(i).name}, {"arguments", arguments}}, out);
  event("response.output_item.done", i,
        json::Object{{"item", item_of(head_, items_, i, "completed")}}, out);
}

void ResponseWriter::end(std::string& out) {
  const TextAnswer& answer = builder_.answer;
  const json::Value response =
      response_of(request_, &answer, items_, std::ssize(answer.prompt_tokens), head_);
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_.is_call(i)) continue;
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
