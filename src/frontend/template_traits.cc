#include "frontend/template_traits.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "frontend/tool_calls.h"

namespace invar {

namespace {

using json::Array;
using json::Object;
using json::Value;
using Ids = TemplateTraits::Ids;
using NoWords = TemplateTraits::NoWords;
using System = TemplateTraits::System;

// Words that no template has of its own.
constexpr const char *kUser = "proben", *kMoreWords = "probeo", *kSystem = "probes",
                     *kLater = "probel", *kAnswer = "probea", *kTool = "probet", *kKey = "probek",
                     *kArgument = "probev", *kResult = "prober", *kOtherKey = "probem";
constexpr const char *kBriefId = "abcdefgh1", *kNextBriefId = "abcdefgh2",
                     *kNamedId = "functions.probet:0", *kNextNamedId = "functions.probet:1",
                     *kLongId = "call_0123456789abcdef_0_0";

Value said(const char* role, const Value& content) {
  return Object{{"role", role}, {"content", content}};
}
Value user(const char* words = kUser) {
  return said("user", words);
}

// The form of a message with a call.
struct Shape {
  const char* id;
  bool is_text;  // the arguments are
  NoWords no_words;
};

Value call_of(const Shape& shape, const char* id, const char* argument) {
  const Value object = Object{{kKey, argument}};
  const Value arguments = shape.is_text ? Value(json::dump(object)) : object;
  return Object{{"id", id},
                {"type", "function"},
                {"function", Object{{"name", kTool}, {"arguments", arguments}}}};
}

Value caller_of(const Shape& shape, Array calls) {
  Object message = {{"role", "assistant"}};
  if (shape.no_words == NoWords::empty) message.emplace_back("content", "");
  if (shape.no_words == NoWords::null) message.emplace_back("content", nullptr);
  message.emplace_back("tool_calls", std::move(calls));
  return message;
}

Value result(const char* id, const char* words = kResult) {
  return Object{{"role", "tool"}, {"tool_call_id", id}, {"name", kTool}, {"content", words}};
}

Value some_tools(bool has_null = false) {
  Value word = Object{{"type", "string"}, {"description", "A word"}};
  if (has_null) word.set("default", nullptr);
  const Value parameters = Object{{"type", "object"}, {"properties", Object{{kKey, word}}}};
  return Array{
      Object{{"type", "function"},
             {"function",
              Object{{"name", kTool}, {"description", "A tool"}, {"parameters", parameters}}}}};
}

int64_t words_of_python(std::string_view text) {
  int64_t count = 0;
  for (size_t i = 0; i < text.size(); ++i)
    for (const char* word : {"None", "{'", "['"}) count += text.substr(i).starts_with(word);
  return count;
}

Value as_parts(const Value& text) {
  return Array{Object{{"type", "text"}, {"text", text}}};
}

class Prober {
 public:
  Prober(const jinja::Template& program, const jinja::Variables& fixed)
      : program_(program), fixed_(fixed) {}

  // Whether it takes an empty list of tools alone where there are none.
  bool lists_no_tools() {
    if (shows({user()}, {kUser})) return false;
    no_tools_ = Array();
    if (shows({user()}, {kUser})) return true;
    no_tools_ = nullptr;
    return false;
  }

  // Whether it reads lists of parts alone.
  bool reads_parts_alone() {
    if (shows({user()}, {kUser})) return false;
    wraps_texts_ = true;
    if (shows({user()}, {kUser}) && !shows({user()}, {"type"})) return true;
    wraps_texts_ = false;
    return false;
  }

  // Whether a null member of a tool's schema makes it say None.
  bool spells_nulls() const {
    return words_of_python(rendered({user()}, some_tools(true))) >
           words_of_python(rendered({user()}, some_tools()));
  }

  // Whether the template takes the messages, shows all of the words, and no more of them as Python
  // prints it than of a user's message alone.
  bool shows(const Array& messages, std::initializer_list<std::string_view> words,
             bool has_tools = false) const {
    const Value tools = has_tools ? some_tools() : no_tools_;
    const std::string text = rendered(messages, tools);
    const auto is_shown = [&](std::string_view word) { return text.find(word) != text.npos; };
    return std::ranges::all_of(words, is_shown) &&
           words_of_python(text) <= words_of_python(rendered({user()}, tools));
  }

  void find_words(TemplateTraits& traits) const {
    const Value answer = said("assistant", kAnswer);
    const Array parts = {said("user", as_parts(kUser))};
    traits.takes_parts = shows(parts, {kUser}) && !shows(parts, {"\"type\""});
    traits.starts_with_answer =
        shows({answer, user()}, {kAnswer, kUser}) || !shows({user(""), answer, user()}, {kAnswer});
    traits.repeats_roles = shows({user(), user(kMoreWords)}, {kUser, kMoreWords}) &&
                           shows({user(), answer, said("assistant", kLater), user(kMoreWords)},
                                 {kUser, kAnswer, kLater, kMoreWords});
    traits.empty_answers = shows({user(), said("assistant", ""), user(kMoreWords)}, {kMoreWords}) ||
                           !shows({user(), answer, user(kMoreWords)}, {kMoreWords});
    if (!shows({said("system", kSystem), user()}, {kSystem, kUser}))
      traits.system = System::none;
    else if (!traits.repeats_roles ||  // it would stand between two that are joined
             !shows({said("system", kSystem), user(), answer, said("system", kLater),
                     user(kMoreWords)},
                    {kSystem, kUser, kAnswer, kLater, kMoreWords}))
      traits.system = System::first;
    traits.lone_system = shows({said("system", kSystem)}, {kSystem});
  }

  void find_tools(TemplateTraits& traits) const {
    traits.shows_tools = shows({user()}, {kTool}, true);
    traits.spells_nulls = traits.shows_tools && spells_nulls();
    const auto shape = shape_of_calls();
    traits.shows_calls = shape.has_value();
    const Value answer = said("assistant", kAnswer);
    const Value caller =
        shape ? caller_of(*shape, {call_of(*shape, shape->id, kArgument)}) : answer;
    const Value found = result(shape ? shape->id : kBriefId);
    traits.shows_results = shows({user(), caller, found}, {kResult}, true);
    traits.user_after_tool =
        shows({user(), caller, found, user(kMoreWords)}, {kResult, kMoreWords}, true) ||
        !shows({user(), caller, found, answer, user(kMoreWords)}, {kResult, kMoreWords}, true);
    traits.answer_to_call = answer_to(caller);
    // Whether a system message may stand between a result and what follows it.
    const auto takes_system = [&](const Value& next, std::string_view words) {
      return !shows({user(), caller, found, next}, {kResult, words}, true) ||
             shows({user(), caller, found, said("system", kLater), next}, {kLater, words}, true);
    };
    if (shape && traits.system == System::anywhere &&
        !(traits.user_after_tool && takes_system(answer, kAnswer) &&
          takes_system(user(kMoreWords), kMoreWords)))
      traits.system = System::first;
    if (shape) find_calls(*shape, traits);
  }

 private:
  // As few words as the template takes between a call and a user.
  const char* answer_to(const Value& caller) const {
    if (shows({user(), caller, user(kMoreWords)}, {kMoreWords}, true)) return nullptr;
    for (const char* words : {"", " "})
      if (shows({user(), caller, said("assistant", words), user(kMoreWords)}, {kMoreWords}, true))
        return words;
    return nullptr;
  }

  // The first in which the template shows a call.
  std::optional<Shape> shape_of_calls() const {
    for (const char* id : {kBriefId, kNamedId})
      for (const bool is_text : {false, true})
        for (const NoWords no_words : {NoWords::empty, NoWords::null, NoWords::absent})
          if (const Shape shape{id, is_text, no_words}; shows_call(shape, id)) return shape;
    return std::nullopt;
  }

  void find_calls(const Shape& shape, TemplateTraits& traits) const {
    traits.text_arguments = shape.is_text;
    traits.no_words = shape.no_words;
    if (shape.id == kNamedId)
      traits.ids = Ids::named;
    else if (!shows_call(shape, kLongId))
      traits.ids = Ids::brief;
    const Value one = call_of(shape, shape.id, kArgument);
    const char* next = traits.ids == Ids::named ? kNextNamedId : kNextBriefId;
    const bool spells_some = !shape.is_text && spells_arguments(shape, true);
    traits.spells_arguments = spells_some && spells_arguments(shape, false);
    traits.spells_null_arguments = spells_some && !traits.spells_arguments;
    traits.single_calls = !shows({user(), caller_of(shape, {one, call_of(shape, next, kMoreWords)}),
                                  result(shape.id), result(next, kLater)},
                                 {kArgument, kMoreWords}, true);
    Value speaker = caller_of(shape, {one});
    speaker.set("content", kMoreWords);
    traits.calls_beside_words = shows({user(), speaker, result(shape.id)}, {kArgument}, true);
    for (const char* name : {"reasoning_content", "thinking"}) speaker.set(name, kLater);
    traits.calls_beside_thoughts = shows({user(), speaker, result(shape.id)}, {kArgument}, true);
  }

  // Whether it shows a text as it is and other values as Python spells them, `has_null`: or null
  // among them. What puts a text in quotes writes calls in Python.
  bool spells_arguments(const Shape& shape, bool has_null) const {
    Value call = call_of(shape, shape.id, kArgument);
    const auto shows_as = [&](std::string_view argument) {
      return shows({user(), caller_of(shape, {call}), result(shape.id)}, {argument}, true);
    };
    for (const char quote : {'\'', '"'})
      if (shows_as(fmt::format("{}{}{}", quote, kArgument, quote))) return false;
    Value function = *call.find("function");
    Value arguments = Object{{kKey, kArgument}, {kMoreWords, Object{{kOtherKey, Array{kLater}}}}};
    if (has_null) arguments.set(kOtherKey, nullptr);
    function.set("arguments", std::move(arguments));
    call.set("function", std::move(function));
    return !shows_as(kArgument);
  }

  // A result is behind the call, since a template may ask for it.
  bool shows_call(const Shape& shape, const char* id) const {
    return shows({user(), caller_of(shape, {call_of(shape, id, kArgument)}), result(id)},
                 {kTool, kArgument}, true);
  }

  // Empty: it refuses them.
  std::string rendered(const Array& messages, const Value& tools) const {
    std::tm day{};
    day.tm_mday = 1;
    day.tm_year = 100;
    jinja::Variables variables = fixed_;
    variables.emplace_back("messages", jinja::Value::from_json(shaped(messages)));
    variables.emplace_back("tools", jinja::Value::from_json(tools));
    variables.emplace_back("documents", nullptr);
    variables.emplace_back("add_generation_prompt", true);
    try {
      return program_.render(variables, {.limits = {}, .clock = [&] { return day; }});
    } catch (const Error&) {
      return "";
    }
  }

  Array shaped(Array messages) const {
    for (Value& message : messages)
      if (const Value* text = message.find("content"); wraps_texts_ && text && text->is_string())
        message.set("content", as_parts(Value(*text)));
    return messages;
  }

  const jinja::Template& program_;
  const jinja::Variables& fixed_;
  Value no_tools_;
  bool wraps_texts_ = false;
};

}  // namespace

TemplateTraits traits_of(const jinja::Template& program, std::string_view source,
                         const jinja::Variables& fixed) {
  Prober prober(program, fixed);
  TemplateTraits plain;
  plain.reads_thinking = source.find(".thinking") != source.npos;
  plain.format = tool_format_of(source);
  plain.lists_no_tools = prober.lists_no_tools();
  plain.parts_alone = prober.reads_parts_alone();
  TemplateTraits traits = plain;
  prober.find_words(traits);
  if (!traits.takes_parts && !prober.shows({user()}, {kUser})) return plain;
  prober.find_tools(traits);
  return traits;
}

}  // namespace invar
