#include "frontend/normal_conversation.h"

#include <algorithm>
#include <string_view>

#include "base/ends.h"
#include "base/error.h"
#include "base/sha256.h"
#include "frontend/chat_message.h"
#include "frontend/generic_tools.h"

namespace invar {

namespace {

using json::Array;
using json::Object;
using json::Value;

// Nine letters or digits that stand for an id of any form.
std::string brief_id(const std::string& id) {
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string made(9, ' ');
  if (id.size() == made.size() && id.find_first_not_of(kDigits) == id.npos) return id;
  const Digest digest = sha256(std::as_bytes(std::span(id)));
  for (size_t i = 0; i < made.size(); ++i)
    made[i] = kDigits[static_cast<size_t>(digest[i]) % kDigits.size()];
  return made;
}

// Takes the members that are null from all objects in it; false where there were none.
bool drop_null_members(Value& value) {
  bool dropped = false;
  if (value.is_array())
    for (Value& one : value.as_array()) dropped |= drop_null_members(one);
  if (!value.is_object()) return dropped;
  dropped = std::erase_if(value.as_object(), [](const auto& one) { return one.second.is_null(); });
  for (auto& [name, one] : value.as_object()) dropped |= drop_null_members(one);
  return dropped;
}

class Normalizer {
 public:
  explicit Normalizer(const TemplateTraits& traits) : traits_(traits) {}

  NormalConversation normalize(const Value& messages, const Value& tools) {
    made_.tools = read_tools(tools, changes_);
    made_.messages = read_messages(messages, traits_, changes_);
    if (traits_.spells_nulls && drop_null_members(made_.tools))
      changes_.note("null members of tools' schemas are left out");
    if (!traits_.shows_tools && made_.tools.is_array()) describe_tools();
    place_system();
    if (!traits_.starts_with_answer) begin_with_user();
    if (!traits_.shows_calls || !traits_.shows_results) write_calls();
    if (!traits_.empty_answers) drop_empty_answers();
    if (!traits_.repeats_roles) join_turns();
    if (traits_.shows_calls) split_words();
    if (traits_.shows_calls && traits_.single_calls) split_calls();
    part_users();
    if (traits_.shows_calls) shape_calls();
    if (traits_.parts_alone) make_parts();
    made_.changes = changes_.take();
    return std::move(made_);
  }

 private:
  // A template that has no place for tools has them in the system message.
  void describe_tools() {
    const bool asks = traits_.format == ToolFormat::none;
    Value words = Object{{"role", "system"}, {"content", generic_tools(made_.tools, asks)}};
    made_.messages.insert(made_.messages.begin(), std::move(words));
    if (made_.messages.size() > 1 && is_role(made_.messages[1], "system"))
      std::swap(made_.messages[0], made_.messages[1]);
    made_.tools = nullptr;
    changes_.note("the template has no place for tools: the system message describes them");
  }

  // One system message in front; later ones stand where the template allows them.
  void place_system() {
    Array others;
    std::string text;
    Value front;
    size_t systems = 0;
    for (Value& message : made_.messages) {
      const bool moves = is_role(message, "system") &&
                         (others.empty() || traits_.system != TemplateTraits::System::anywhere);
      if (!moves) {
        others.push_back(std::move(message));
        continue;
      }
      if (!others.empty()) changes_.note("system messages in the middle stand in front");
      if (systems == 1) changes_.note("system messages are joined");
      add_words(text, message.find("content")->as_string());
      if (++systems == 1) front = std::move(message);
    }
    made_.messages = std::move(others);
    if (systems == 0) return;
    if (traits_.system == TemplateTraits::System::none || !(traits_.lone_system || has_user()))
      return give_to_user(text);
    front.set("content", text);
    made_.messages.insert(made_.messages.begin(), std::move(front));
  }

  static void add_words(std::string& text, std::string_view more) {
    if (!text.empty() && !more.empty()) text += "\n\n";
    text += more;
  }

  bool has_user() const {
    return std::ranges::any_of(made_.messages,
                               [](const Value& message) { return is_role(message, "user"); });
  }

  void give_to_user(const std::string& text) {
    changes_.note(
        "the template has no place for system messages: the first user's message has them");
    const auto user = std::ranges::find_if(
        made_.messages, [](const Value& message) { return is_role(message, "user"); });
    const Value first = Object{{"role", "user"}, {"content", text}};
    if (user == made_.messages.end())
      made_.messages.insert(made_.messages.begin(), first);
    else
      *user = joined_messages(first, *user);
  }

  // Two messages of one role as one.
  static Value joined_messages(const Value& one, Value next) {
    const Value &a = *one.find("content"), &b = *next.find("content");
    if (a.is_string() && b.is_string()) {
      std::string text = a.as_string();
      add_words(text, b.as_string());
      next.set("content", text);
      return next;
    }
    Array parts;
    for (const Value* content : {&a, &b}) {
      if (content->is_string())
        parts.push_back(Object{{"type", "text"}, {"text", *content}});
      else
        parts.insert(parts.end(), content->as_array().begin(), content->as_array().end());
    }
    next.set("content", std::move(parts));
    return next;
  }

  // An empty turn of the user before an answer that would be the first message.
  void begin_with_user() {
    const auto first = std::ranges::find_if(
        made_.messages, [](const Value& message) { return !is_role(message, "system"); });
    if (first == made_.messages.end() || !is_role(*first, "assistant")) return;
    made_.messages.insert(first, Object{{"role", "user"}, {"content", ""}});
    changes_.note("the template wants a user's message first: an empty one stands there");
  }

  // Every text as a part, of a template that reads nothing else.
  void make_parts() {
    for (Value& message : made_.messages)
      if (Value* text = member_of(message, "content"); text && text->is_string())
        *text = Array{Object{{"type", "text"}, {"text", Value(*text)}}};
    changes_.note("contents are lists of parts, as the template reads them");
  }

  // Calls and results as words, of a template that does not show them.
  void write_calls() {
    Array all;
    bool behind_result = false;
    for (Value& message : made_.messages) {
      if (const Value* calls = traits_.shows_calls ? nullptr : message.find("tool_calls")) {
        std::string text = message.find("content")->as_string();
        add_line(text, generic_calls(calls->as_array(), traits_.format));
        message.set("content", text);
        erase_member(message, "tool_calls");
        changes_.note("the template has no place for calls: they stand in the text");
      }
      const bool is_result = !traits_.shows_results && is_role(message, "tool");
      if (is_result) {
        message = Object{{"role", "user"},
                         {"content", generic_result(message.find("content")->as_string())}};
        changes_.note(
            "the template has no place for results of tools: they stand in users' messages");
      }
      if (is_result && !all.empty() && is_role(last_of(all), "user") && behind_result)
        add_result(last_of(all), message);
      else
        all.push_back(std::move(message));
      behind_result = is_result;
    }
    made_.messages = std::move(all);
  }

  static void add_line(std::string& text, const std::string& more) {
    if (!text.empty()) text += '\n';
    text += more;
  }

  static void add_result(Value& before, const Value& result) {
    std::string text = before.find("content")->as_string();
    add_line(text, result.find("content")->as_string());
    before.set("content", text);
  }

  void drop_empty_answers() {
    const auto is_empty = [](const Value& message) {
      return is_role(message, "assistant") && !message.find("tool_calls") &&
             *message.find("content") == Value("");
    };
    if (std::erase_if(made_.messages, is_empty) > 0)
      changes_.note("answers without words are left out");
  }

  // Neighbours of one role as one message, of a template whose turns alternate.
  void join_turns() {
    Array all;
    for (Value& message : made_.messages) {
      const bool joins = !all.empty() && *last_of(all).find("role") == *message.find("role") &&
                         (is_role(message, "user") ||
                          (is_role(message, "assistant") && !last_of(all).find("tool_calls")));
      if (joins) {
        message = joined_messages(last_of(all), std::move(message));
        all.pop_back();
        changes_.note("messages of one role in a row are joined");
      }
      all.push_back(std::move(message));
    }
    made_.messages = std::move(all);
  }

  // Makes words before a call a message of their own.
  void split_words() {
    Array all;
    for (Value& message : made_.messages) {
      const Value words = *message.find("content");
      const bool thinks = message.find("reasoning_content");
      const bool splits = !traits_.calls_beside_words || (thinks && !traits_.calls_beside_thoughts);
      if (splits && message.find("tool_calls") && words != Value("")) {
        all.push_back(message);
        erase_member(last_of(all), "tool_calls");
        message.set("content", "");
        for (const char* name : {"reasoning_content", "reasoning", "thinking"})
          erase_member(message, name);
        changes_.note("what is said before a call is a message of its own");
      }
      all.push_back(std::move(message));
    }
    made_.messages = std::move(all);
  }

  // Each call as a message of its own with its result behind it.
  void split_calls() {
    Array all;
    Array& messages = made_.messages;
    for (size_t i = 0; i < messages.size(); ++i) {
      const Value* calls = messages[i].find("tool_calls");
      if (!calls || calls->as_array().size() == 1) {
        all.push_back(messages[i]);
        continue;
      }
      changes_.note("each call is a message of its own");
      size_t end = i + 1;
      while (end < messages.size() && is_role(messages[end], "tool")) ++end;
      Array results(messages.begin() + static_cast<int64_t>(i) + 1,
                    messages.begin() + static_cast<int64_t>(end));
      add_split(messages[i], results, all);
      i = end - 1;
    }
    messages = std::move(all);
  }

  static void add_split(const Value& message, Array& results, Array& all) {
    const Array& calls = message.find("tool_calls")->as_array();
    for (const Value& call : calls) {
      Value one = message;
      if (&call != &first_of(calls)) {
        one = Object{{"role", "assistant"}, {"content", ""}};
      }
      one.set("tool_calls", Array{call});
      all.push_back(std::move(one));
      const Value* id = call.find("id");
      auto result = std::ranges::find_if(results, [&](const Value& each) {
        const Value* of = each.find("tool_call_id");
        return id && of && *of == *id;
      });
      if (result == results.end() && !id) result = results.begin();
      if (result == results.end()) continue;
      all.push_back(std::move(*result));
      results.erase(result);
    }
    all.insert(all.end(), results.begin(), results.end());
  }

  // A user's words behind a result or a lone call, of a template that wants an answer between.
  void part_users() {
    Array all;
    for (Value& message : made_.messages) {
      const bool is_user = !all.empty() && is_role(message, "user");
      if (is_user && traits_.answer_to_call && last_of(all).find("tool_calls")) {
        all.push_back(Object{{"role", "assistant"}, {"content", traits_.answer_to_call}});
        changes_.note("an empty answer stands behind a call that has no result");
      }
      if (is_user && !traits_.user_after_tool && is_role(last_of(all), "tool")) {
        const Value* words = message.find("content");
        std::string text = last_of(all).find("content")->as_string();
        add_words(text, words->is_string() ? words->as_string() : joined_parts(words->as_array()));
        last_of(all).set("content", text);
        changes_.note("what a user says behind a result stands in it");
      } else {
        all.push_back(std::move(message));
      }
    }
    made_.messages = std::move(all);
  }

  // Calls as the template reads them.
  void shape_calls() {
    std::vector<std::string> open;  // ids of the calls that have no result yet
    for (Value& message : made_.messages) {
      if (Value* calls = member_of(message, "tool_calls")) {
        open.clear();
        for (Value& call : calls->as_array()) shape_call(call, open);
        if (*message.find("content") == Value("")) shape_content(message);
      } else if (is_role(message, "tool") && traits_.ids != TemplateTraits::Ids::any) {
        shape_result(message, open);
      }
    }
  }

  void shape_call(Value& call, std::vector<std::string>& open) {
    Value& function = *member_of(call, "function");
    Value* arguments = member_of(function, "arguments");
    if (traits_.text_arguments && arguments && !arguments->is_string()) {
      *arguments = json::dump(*arguments);
      changes_.note("arguments are texts, as the template reads them");
    }
    if (traits_.spells_arguments && arguments && arguments->is_object()) spell(*arguments);
    if (traits_.spells_null_arguments && arguments && drop_null_members(*arguments))
      changes_.note("null arguments are left out");
    if (traits_.ids == TemplateTraits::Ids::any) return;
    const Value* given = call.find("id");
    const std::string id = given ? given->as_string() : "";
    open.push_back(shaped_id(id, *function.find("name")));
    if (id == last_of(open)) return;
    call.set("id", last_of(open));
    ids_.emplace_back(id, last_of(open));
    changes_.note("ids of calls have the form that the template reads");
  }

  // Values as JSON that the template would spell as Python does.
  void spell(Value& arguments) {
    for (auto& [name, value] : arguments.as_object()) {
      if (value.is_string() || value.is_number()) continue;
      value = json::dump(value);
      changes_.note("arguments that the template would show as Python's are JSON");
    }
  }

  std::string shaped_id(const std::string& id, const Value& name) {
    const size_t number = calls_++;
    if (traits_.ids == TemplateTraits::Ids::named)
      return fmt::format("functions.{}:{}", name.as_string(), number);
    return brief_id(id.empty() ? fmt::format("call {}", number) : id);
  }

  // A result has the id of its call, or of the first one that has none.
  void shape_result(Value& message, std::vector<std::string>& open) {
    const Value* given = message.find("tool_call_id");
    const auto call = std::find_if(ids_.rbegin(), ids_.rend(), [&](const auto& pair) {
      return given && *given == Value(pair.first);
    });
    std::string id = given ? given->as_string() : "";
    if (call != ids_.rend())
      id = call->second;
    else if (std::ranges::find(open, id) == open.end() && !open.empty())
      id = first_of(open);
    else if (traits_.ids == TemplateTraits::Ids::brief)
      id = brief_id(id);
    message.set("tool_call_id", id);
    std::erase(open, id);
  }

  void shape_content(Value& message) {
    if (traits_.no_words == TemplateTraits::NoWords::null) message.set("content", nullptr);
    if (traits_.no_words == TemplateTraits::NoWords::absent) erase_member(message, "content");
  }

  const TemplateTraits& traits_;
  NormalConversation made_;
  Changes changes_;
  std::vector<std::pair<std::string, std::string>> ids_;  // of calls: as given, as made
  size_t calls_ = 0;
};

}  // namespace

NormalConversation normal_form(const Value& messages, const Value& tools,
                               const TemplateTraits& traits) {
  return Normalizer(traits).normalize(messages, tools);
}

}  // namespace invar
