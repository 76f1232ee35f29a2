#include "frontend/chat_message.h"

#include <algorithm>
#include <optional>

#include "base/ends.h"
#include "base/error.h"

namespace invar {

using json::Array;
using json::Object;
using json::Value;

void Changes::note(std::string_view change) {
  if (std::ranges::find(all_, change) == all_.end()) all_.emplace_back(change);
}

bool is_role(const Value& message, std::string_view role) {
  const Value* found = message.find("role");
  return found && *found == Value(role);
}

Value* member_of(Value& object, std::string_view name) {
  for (auto& [key, value] : object.as_object())
    if (key == name) return &value;
  return nullptr;
}

void erase_member(Value& object, std::string_view name) {
  std::erase_if(object.as_object(), [&](const auto& member) { return member.first == name; });
}

std::string joined_parts(const Array& parts) {
  std::string text;
  for (const Value& part : parts) {
    const Value* type = part.find("type");
    const bool is_refusal = type && *type == Value("refusal");  // the assistant's words, too
    const Value* piece = part.find(is_refusal ? "refusal" : "text");
    if (!type || (*type != Value("text") && !is_refusal) || !piece || !piece->is_string())
      fail_usage("expected parts of type \"text\" in a message's content, found {}",
                 json::excerpt(part));
    if (&part != &first_of(parts)) text += '\n';
    text += piece->as_string();
  }
  return text;
}

namespace {

class Reader {
 public:
  Reader(const TemplateTraits& traits, Changes& changes) : traits_(traits), changes_(changes) {}

  Value read_tools(const Value& tools) {
    if (tools.is_null()) return nullptr;
    if (!tools.is_array())
      fail_usage("expected \"tools\" as an array, found {}", tools.type_name());
    Array all = tools.as_array();
    if (all.empty()) changes_.note("an empty list of tools is none");
    if (all.empty()) return nullptr;
    for (Value& tool : all) {
      Value* function = tool.is_object() ? member_of(tool, "function") : nullptr;
      if (function && function->is_object()) read_function(*function);
    }
    return all;
  }

  Array read_messages(const Value& source) {
    if (!source.is_array())
      fail_usage("expected \"messages\" as an array, found {}", source.type_name());
    if (source.as_array().empty()) fail_usage("expected at least one message, found none");
    Array all;
    for (size_t i = 0; i < source.as_array().size(); ++i) {
      Value message = source.as_array()[i];
      const Value* role = message.find("role");
      if (!role || !role->is_string())
        fail_usage("expected an object with a \"role\" as message {}, found {}", i,
                   json::excerpt(message));
      read_message(message, i);
      all.push_back(std::move(message));
    }
    return all;
  }

 private:
  // Takes the members that are null away, which say nothing.
  void drop_nulls(Value& object) {
    if (std::erase_if(object.as_object(), [](const auto& one) { return one.second.is_null(); }) > 0)
      changes_.note("members that are null are left out");
  }

  void read_function(Value& function) {
    drop_nulls(function);
    Object& members = function.as_object();
    if (!function.find("description")) {
      const auto name = std::ranges::find(members, "name", &json::Member::first);
      members.emplace(name == members.end() ? name : name + 1, "description", "");
      changes_.note("a tool without a description has an empty one");
    }
    const Value* parameters = function.find("parameters");
    if (parameters && *parameters != Value(Object())) return;
    function.set("parameters", Object{{"type", "object"}, {"properties", Object()}});
    changes_.note("a tool without parameters takes an empty object");
  }

  void read_message(Value& message, size_t i) {
    if (Value* content = member_of(message, "content"); content && content->is_null()) {
      *content = "";
      changes_.note("a message without content has an empty one");
    }
    drop_nulls(message);
    for (const char* name : {"name", "tool_call_id"})
      if (const Value* text = message.find(name); text && !text->is_string())
        fail_usage("expected the {} of message {} as a text, found {}", name, i, text->type_name());
    if (const Value* name = message.find("name"); name && *name == Value(""))
      erase_member(message, "name");
    if (is_role(message, "developer")) {
      message.set("role", "system");
      changes_.note("developer messages are system messages");
    }
    read_old_calls(message);
    read_content(message, i);
    read_thought(message);
    if (Value* calls = member_of(message, "tool_calls")) read_calls(message, *calls, i);
  }

  // OpenAI's names before there were tools.
  void read_old_calls(Value& message) {
    if (is_role(message, "function")) {
      message.set("role", "tool");
      changes_.note("results of functions are results of tools");
    }
    const Value* call = message.find("function_call");
    if (!call) return;
    if (!message.find("tool_calls"))
      message.set("tool_calls", Array{Object{{"type", "function"}, {"function", *call}}});
    erase_member(message, "function_call");
    changes_.note("calls of functions are calls of tools");
  }

  void read_content(Value& message, size_t i) {
    Value* content = member_of(message, "content");
    if (!content) {
      message.set("content", "");
      return changes_.note("a message without content has an empty one");
    }
    if (!content->is_string() && !content->is_array())
      fail_usage("expected the content of message {} as a text or parts, found {}", i,
                 content->type_name());
    if (content->is_string()) return;
    for (Value& part : content->as_array()) read_part(part);
    const std::string text = joined_parts(content->as_array());
    if (traits_.takes_parts && is_role(message, "user") && !content->as_array().empty()) return;
    *content = text;
    changes_.note("parts of a content are joined by line breaks");
  }

  // A part may be a text itself, one that is null is empty, and responses name them otherwise.
  static void read_part(Value& part) {
    if (part.is_string()) part = Object{{"type", "text"}, {"text", part}};
    if (!part.is_object()) return;
    Value *text = member_of(part, "text"), *type = member_of(part, "type");
    if (text && text->is_null()) *text = "";
    if (type && (*type == Value("input_text") || *type == Value("output_text"))) *type = "text";
  }

  // Reads the assistant's thought, by the names that templates read.
  void read_thought(Value& message) {
    const Value* thought = message.find("reasoning_content");
    if (!thought) thought = message.find("reasoning");
    if (!thought) return;
    if (!thought->is_string())
      fail_usage("expected reasoning_content of a message as a text, found {}",
                 thought->type_name());
    const Value text = *thought;
    message.set("reasoning_content", text);
    if (traits_.reads_thinking) message.set("thinking", text);
  }

  void read_calls(Value& message, Value& calls, size_t i) {
    if (!calls.is_array())
      fail_usage("expected the tool_calls of message {} as a list, found {}", i, calls.type_name());
    if (calls.as_array().empty()) {
      erase_member(message, "tool_calls");
      return changes_.note("an empty list of calls is none");
    }
    for (Value& call : calls.as_array()) {
      if (call.is_object()) drop_nulls(call);
      Value* function = call.is_object() ? member_of(call, "function") : nullptr;
      const Value* name = function ? function->find("name") : nullptr;
      const Value* id = call.find("id");
      if (!name || !name->is_string() || (id && !id->is_string()))
        fail_usage("expected calls with a function that has a name in message {}, found {}", i,
                   json::excerpt(call));
      if (!call.find("type")) call.set("type", "function");
      read_arguments(*member_of(call, "function"));
    }
  }

  // An object where the text is one, else {}: a call may have been cut. A template that takes a
  // text has it as it was.
  void read_arguments(Value& function) {
    const Value* given = function.find("arguments");
    if (given && given->is_object()) return;
    std::optional<Value> object;
    if (given && given->is_string()) {
      try {
        object = json::parse(given->as_string(), "arguments");
      } catch (const Error&) {
      }
    }
    const bool is_object = object && object->is_object();
    const bool is_kept = given && given->is_string() && traits_.shows_calls &&
                         traits_.text_arguments && (is_object || (!object && !is_blank(*given)));
    if (!is_object) changes_.note("arguments that are no object are {}");
    if (!is_kept) function.set("arguments", is_object ? std::move(*object) : Value(Object()));
  }

  static bool is_blank(const Value& text) {
    return text.as_string().find_first_not_of(" \t\r\n") == std::string::npos;
  }

  const TemplateTraits& traits_;
  Changes& changes_;
};

}  // namespace

json::Array read_messages(const Value& source, const TemplateTraits& traits, Changes& changes) {
  return Reader(traits, changes).read_messages(source);
}

Value read_tools(const Value& source, Changes& changes) {
  return Reader({}, changes).read_tools(source);
}

}  // namespace invar
