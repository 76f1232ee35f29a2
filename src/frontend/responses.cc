#include "frontend/responses.h"

#include "base/error.h"

namespace invar::openai {

namespace {

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

json::Array messages_of(const json::Value& body) {
  json::Array messages;
  const json::Value* instructions = body.find("instructions");
  if (instructions && !instructions->is_null())
    messages.push_back(json::Object{{"role", "system"}, {"content", *instructions}});
  const json::Value* input = body.find("input");
  if (!input) fail_usage("expected \"input\" in the body");
  if (input->is_string()) {
    messages.push_back(json::Object{{"role", "user"}, {"content", *input}});
    return messages;
  }
  if (!input->is_array())
    fail_usage("expected an input of text or messages, found {}", input->type_name());
  for (const json::Value& item : input->as_array()) {
    const json::Value* type = item.find("type");
    const json::Value* role = item.find("role");
    const json::Value* content = item.find("content");
    if ((type && *type != json::Value("message")) || !role || !content)
      fail_usage("expected messages with role and content as input, found {}", json::excerpt(item));
    const bool is_developer = *role == json::Value("developer");
    messages.push_back(json::Object{{"role", is_developer ? json::Value("system") : *role},
                                    {"content", content_of(*content)}});
  }
  return messages;
}

// {"format": {"type": "json_schema", "name": ..., "schema": {...}}}
void read_format(const json::Value& text, json::Value& chat) {
  const json::Value* format = text.find("format");
  const json::Value* schema = format ? format->find("schema") : nullptr;
  if (!format) return;
  if (schema)
    chat.set("response_format", json::Object{{"type", "json_schema"},
                                             {"json_schema", json::Object{{"schema", *schema}}}});
  else
    chat.set("response_format", *format);
}

json::Value message_of(const Head& head, const std::string& text, const char* status) {
  const json::Value part =
      json::Object{{"type", "output_text"}, {"text", text}, {"annotations", json::Array()}};
  return json::Object{
      {"type", "message"},
      {"id", "msg_" + head.id.substr(head.id.find('_') + 1)},
      {"status", status},
      {"role", "assistant"},
      {"content", text.empty() && status == std::string_view("in_progress") ? json::Array()
                                                                            : json::Array{part}}};
}

// `answer` null: the answer is being made.
json::Value response_of(const Request& request, const TextAnswer* answer, int64_t prompt_tokens,
                        const Head& head) {
  const bool cut = answer && answer->finish == FinishReason::length;
  const char* status = !answer ? "in_progress" : cut ? "incomplete" : "completed";
  const SamplingParams& p = request.text.params;
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
  body.set("seed", static_cast<int64_t>(head.seed));
  body.set("output", answer ? json::Array{message_of(head, answer->text, status)} : json::Array());
  body.set("parallel_tool_calls", false);
  body.set("previous_response_id", nullptr);
  body.set("temperature", p.temperature);
  body.set("tool_choice", "none");
  body.set("tools", json::Array());
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

json::Value chat_body_of(const json::Value& body) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  json::Value chat = json::Object{{"messages", messages_of(body)}};
  for (const auto& [key, value] : body.as_object()) {
    const bool is_empty = value.is_null() || (value.is_array() && value.as_array().empty());
    if (key == "input" || key == "instructions") continue;
    if ((key == "tools" || key == "previous_response_id" || key == "conversation") && !is_empty)
      fail_usage("the field {} is not supported here", json::quoted(key));
    if (key == "max_output_tokens")
      chat.set("max_tokens", value);
    else if (key == "text")
      read_format(value, chat);
    else if (key != "tool_choice" && key != "top_logprobs")
      chat.set(key, value);
  }
  return chat;
}

json::Value response_body(const Request& request, const TextAnswer& answer, const Head& head) {
  return response_of(request, &answer, std::ssize(answer.prompt_tokens), head);
}

ResponseWriter::ResponseWriter(Head head, const Request& request, int64_t prompt_tokens,
                               const Tokenizer& tokenizer)
    : head_(std::move(head)),
      request_(request),
      builder_(tokenizer, request.text.stop, request.text.include_stop) {
  builder_.answer.prompt_tokens.resize(static_cast<size_t>(prompt_tokens));
}

void ResponseWriter::push(size_t, const TokenOutput& output, std::string& out) {
  if (ended_) return;
  if (sequence_ == 0) begin(out);
  const std::string piece = builder_.push(output);
  const TextAnswer& answer = builder_.answer;
  if (answer.finish == FinishReason::failed) return fail(answer.error, "server_error", out);
  if (!piece.empty())
    event("response.output_text.delta", json::Object{{"item_id", ""}, {"delta", piece}}, out);
  if (answer.finish != FinishReason::none) end(out);
}

void ResponseWriter::fail(const std::string& message, const char* code, std::string& out) {
  if (ended_) return;
  event("error", json::Object{{"code", code}, {"message", message}, {"param", nullptr}}, out);
  ended_ = true;
}

void ResponseWriter::begin(std::string& out) {
  const json::Value response = response_of(request_, nullptr, 0, head_);
  event("response.created", json::Object{{"response", response}}, out);
  event("response.in_progress", json::Object{{"response", response}}, out);
  event("response.output_item.added", json::Object{{"item", message_of(head_, "", "in_progress")}},
        out);
  event("response.content_part.added",
        json::Object{
            {"item_id", ""},
            {"part",
             json::Object{{"type", "output_text"}, {"text", ""}, {"annotations", json::Array()}}}},
        out);
}

void ResponseWriter::end(std::string& out) {
  const TextAnswer& answer = builder_.answer;
  const json::Value response =
      response_of(request_, &answer, std::ssize(answer.prompt_tokens), head_);
  const json::Value& item = response.find("output")->as_array()[0];
  event("response.output_text.done", json::Object{{"item_id", ""}, {"text", answer.text}}, out);
  event("response.content_part.done",
        json::Object{{"item_id", ""}, {"part", item.find("content")->as_array()[0]}}, out);
  event("response.output_item.done", json::Object{{"item", item}}, out);
  event(answer.finish == FinishReason::length ? "response.incomplete" : "response.completed",
        json::Object{{"response", response}}, out);
  ended_ = true;
}

// Events of the one message name it and its place.
void ResponseWriter::event(const char* type, json::Value body, std::string& out) {
  json::Value data = json::Object{{"type", type}, {"sequence_number", sequence_++}};
  const bool is_item = body.find("item") || body.find("item_id");
  if (is_item) data.set("output_index", 0);
  if (body.find("item_id")) data.set("content_index", 0);
  for (auto& [key, value] : body.as_object())
    data.set(key, key == "item_id" ? json::Value("msg_" + head_.id.substr(head_.id.find('_') + 1))
                                   : std::move(value));
  out += "event: ";
  out += type;
  out += "\ndata: " + json::dump(data) + "\n\n";
}

}  // namespace invar::openai
