#include "frontend/response_input.h"

#include <algorithm>
#include <optional>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/responses.h"

namespace invar::openai {

namespace {

// The content of an item of "input": a text, or parts of text.
json::Value content_of(const json::Value& content) {
  if (content.is_null()) return "";
  if (!content.is_array()) return content;
  json::Array parts;
  for (const json::Value& part : content.as_array()) {
    if (part.is_string()) {
      parts.push_back(part);
      continue;
    }
    const std::string type = text_member(part, "type");
    const bool is_refusal = type == "refusal";
    const json::Value* text = part.find(is_refusal ? "refusal" : "text");
    if (!text || !(is_refusal || type == "input_text" || type == "output_text" || type == "text"))
      fail_usage("expected parts of type input_text or output_text, found {}", json::excerpt(part));
    parts.push_back(json::Object{{"type", "text"}, {"text", *text}});
  }
  return parts;
}

// Whether only the thought of a message has come.
bool waits_for_words(const json::Value& message) {
  const json::Value* content = message.find("content");
  return message.find("reasoning_content") && !message.find("tool_calls") && content &&
         *content == json::Value("");
}

// Makes messages of the items of an input.
class Items {
 public:
  Items(const ThoughtSeal* seal, RequestWarnings& warnings) : seal_(seal), warnings_(warnings) {}

  void add(const json::Value& item) {
    const std::string type = text_member(item, "type");
    if (type == "reasoning") return add_thought(item);
    if (type.ends_with("_call") && item.find("call_id")) return add_call(item, type);
    if (type.ends_with("_call_output")) return add_output(item, type);
    const json::Value* role = item.find("role");
    const json::Value* content = item.find("content");
    const bool is_message = (type.empty() || type == "message") && role;
    if (is_message) return add_message(*role, content ? *content : json::Value());
    if (type.empty() || type == "message" || type == "item_reference" || type == "function_call")
      fail_usage(
          "expected messages with a role, thoughts, or calls and their outputs, as input, found {}",
          json::excerpt(item));
    warnings_.add("items of type " + type + " are left out");
  }

  json::Array take() { return std::move(messages_); }
  void add_instructions(const json::Value& text) {
    messages_.push_back(json::Object{{"role", "system"}, {"content", text}});
  }

 private:
  void add_message(const json::Value& role, const json::Value& content) {
    if (role == json::Value("assistant") && !messages_.empty() &&
        waits_for_words(last_of(messages_)))
      return last_of(messages_).set("content", content_of(content));
    messages_.push_back(json::Object{{"role", role}, {"content", content_of(content)}});
  }

  // A thought before the next message or call of the assistant.
  void add_thought(const json::Value& item) {
    const json::Value* closed = item.find("encrypted_content");
    std::optional<std::string> thought;
    if (closed && closed->is_string())
      thought = seal_ ? seal_->open(closed->as_string()) : std::nullopt;
    else
      thought = open_thought(item);
    if (!thought) return warnings_.add("a reasoning item is left out: another server closed it");
    messages_.push_back(
        json::Object{{"role", "assistant"}, {"content", ""}, {"reasoning_content", *thought}});
  }

  static std::string open_thought(const json::Value& item) {
    const json::Value* content = item.find("content");
    if (!content || !content->is_array() || content->as_array().empty())
      content = item.find("summary");
    std::string thought;
    for (const json::Value& part :
         content && content->is_array() ? content->as_array() : json::Array()) {
      const json::Value* text = part.find("text");
      if (!text || !text->is_string())
        fail_usage("expected parts with a text in a reasoning item, found {}", json::excerpt(part));
      thought += text->as_string();
    }
    return thought;
  }

  // Adds a call to the assistant's message: of a function, of a custom tool, or of a tool of the
  // client's, such as local_shell_call, which is named by its type.
  void add_call(const json::Value& item, const std::string& type) {
    const bool is_function = type == "function_call" || type == "custom_tool_call";
    const json::Value name =
        is_function ? text_member(item, "name") : type.substr(0, type.size() - 5);
    json::Value arguments;
    if (const json::Value* text = item.find("arguments"))
      arguments = *text;
    else if (const json::Value* input = item.find("input"))
      arguments = json::dump(json::Object{{"input", *input}});
    else
      for (const char* key : {"action", "operation"})
        if (const json::Value* what = item.find(key)) arguments = json::dump(*what);
    if (arguments.is_null()) arguments = "{}";
    if (name == json::Value("")) fail_usage("expected call_id and name in {}", json::excerpt(item));
    const bool goes_on = !messages_.empty() && (last_of(messages_).find("tool_calls") ||
                                                waits_for_words(last_of(messages_)));
    if (!goes_on) messages_.push_back(json::Object{{"role", "assistant"}, {"content", ""}});
    json::Value& message = last_of(messages_);
    const json::Value* before = message.find("tool_calls");
    json::Array calls = before ? before->as_array() : json::Array();
    calls.push_back(
        json::Object{{"id", *item.find("call_id")},
                     {"type", "function"},
                     {"function", json::Object{{"name", name}, {"arguments", arguments}}}});
    message.set("tool_calls", std::move(calls));
  }

  // The result of a tool: texts, or of a tool of the client's whatever it is.
  void add_output(const json::Value& item, const std::string& type) {
    const json::Value* id = item.find("call_id");
    const json::Value* output = item.find("output");
    if (!id || !output) fail_usage("expected call_id and output in {}", json::excerpt(item));
    const bool is_text = output->is_string() || output->is_null() ||
                         type == "function_call_output" || type == "custom_tool_call_output";
    const json::Value content =
        is_text && !output->is_object() ? content_of(*output) : json::Value(json::dump(*output));
    messages_.push_back(
        json::Object{{"role", "tool"}, {"tool_call_id", *id}, {"content", content}});
  }

  const ThoughtSeal* seal_;
  RequestWarnings& warnings_;
  json::Array messages_;
};

// A user's message, with which a turn begins.
bool begins_turn(const json::Value& item) {
  const std::string type = text_member(item, "type");
  return (type.empty() || type == "message") && text_member(item, "role") == "user";
}

bool is_of_system(const json::Value& item) {
  const std::string role = text_member(item, "role");
  return role == "system" || role == "developer";
}

}  // namespace

std::string text_member(const json::Value& object, const char* name) {
  const json::Value* text = object.find(name);
  return text && text->is_string() ? text->as_string() : "";
}

json::Array input_items(const json::Value& body) {
  const json::Value* input = body.find("input");
  if (!input) fail_usage("expected \"input\" in the body");
  if (input->is_string()) return {json::Object{{"role", "user"}, {"content", *input}}};
  if (!input->is_array())
    fail_usage("expected an input of text or items, found {}", input->type_name());
  return input->as_array();
}

json::Array messages_of(const json::Value& body, const json::Array* earlier,
                        const ThoughtSeal* seal, RequestWarnings& warnings) {
  Items items(seal, warnings);
  const json::Value* instructions = body.find("instructions");
  if (instructions && !instructions->is_null()) items.add_instructions(*instructions);
  if (earlier)
    for (const json::Value& item : *earlier) items.add(item);
  for (const json::Value& item : input_items(body)) items.add(item);
  return items.take();
}

size_t turns_of(const json::Array& items) {
  return static_cast<size_t>(std::ranges::count_if(items, begins_turn));
}

json::Array without_turns(const json::Array& items, size_t turns) {
  json::Array left;
  size_t begun = 0;
  for (const json::Value& item : items) {
    begun += begins_turn(item);
    if (begun > turns || turns == 0 || is_of_system(item)) left.push_back(item);
  }
  return left;
}

}  // namespace invar::openai
