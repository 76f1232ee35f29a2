// Texts with calls of tools in them.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/function_ref.h"
#include "sampling/grammar/json_text.h"
#include "sampling/grammar/languages.h"
#include "sampling/grammar/schema_merge.h"
#include "sampling/grammar/schema_words.h"

namespace invar::grammar {

namespace {

using Expr = Language::Expr;

// Any byte but these.
Expr other_than(Language& language, std::string_view bytes) {
  ByteSet set{};
  for (unsigned byte = 0; byte < 256; ++byte)
    if (bytes.find(static_cast<char>(byte)) == bytes.npos) add_to(set, byte, byte);
  return language.bytes(set);
}

Expr any_text(Language& language) {
  return language.repeat(other_than(language, ""), 0, kEndless);
}

// A mark in a text, and what follows it there.
struct MarkEnd {
  std::string mark;
  FunctionRef<Expr(Expr again)> behind;  // `again`: the text before the next mark
};

// Text in which marks may stand; what is behind one follows it wherever the text has it. A rule for
// each beginning of a mark that the text ends with, the longest one. Each ends with the next one,
// so that none lies within another however long the text is. The marks have one first byte, and
// none has another in it. `may_end`: the text need not have a mark.
class MarkedText {
 public:
  // Some have a parameter's name in them. Each of their bytes has a rule.
  static constexpr size_t kMostMarkBytes = 256;

  MarkedText(Language& language, std::span<const MarkEnd> ends, bool may_end)
      : language_(language), ends_(ends), may_end_(may_end) {
    text_ = language.rule(language.add_rule("text"));
    for (const MarkEnd& end : ends) check(end.mark);
    for (const MarkEnd& end : ends)
      for (size_t size = 1; size < end.mark.size(); ++size) {
        const std::string front = end.mark.substr(0, size);
        if (!fronts_.contains(front)) fronts_[front] = language.rule(language.add_rule(front));
      }
    for (const auto& [front, rule] : fronts_) define(rule, ways_behind(front));
    const std::string first = ends[0].mark.substr(0, 1);
    const Expr mark = language.sequence({language.text(first), fronts_[first]});
    language.define(language.node(text_).at,
                    language.sequence({language.repeat(other_than(language, first), 0, kEndless),
                                       may_end ? language.optional(mark) : mark}));
  }
  Expr text() const { return text_; }

 private:
  void check(const std::string& mark) const {
    if (mark.size() > kMostMarkBytes)
      fail_usage("expected marks of calls of at most {} bytes, found {}", kMostMarkBytes,
                 json::quoted(mark));
    const auto has = [&](const MarkEnd& other) { return mark.find(other.mark) != mark.npos; };
    if (mark.size() < 2 || mark[0] != ends_[0].mark[0] || std::ranges::count_if(ends_, has) > 1)
      fail_usage("expected marks of calls with one first byte, none of them in another, found {}",
                 json::quoted(mark));
  }
  // The ways to go on behind the longest beginning of a mark that a text ends with.
  std::vector<Expr> ways_behind(const std::string& front) {
    std::set<char> next;
    for (const MarkEnd& end : ends_) next.insert(end.mark.begin(), end.mark.end());
    std::string read;
    std::vector<Expr> ways;
    for (const char byte : next) {
      const std::optional<Expr> behind = behind_text(front + byte);
      if (!behind) continue;
      read += byte;
      ways.push_back(language_.sequence({language_.text({&byte, 1}), *behind}));
    }
    ways.push_back(language_.sequence({other_than(language_, read), text_}));
    return ways;
  }
  // The rest of a text that ends with a mark, or with the beginning of one; nothing: with neither.
  std::optional<Expr> behind_text(std::string_view text) {
    for (const MarkEnd& end : ends_)
      if (text.ends_with(end.mark)) return end.behind(text_);
    for (; !text.empty(); text.remove_prefix(1))
      if (const auto found = fronts_.find(text); found != fronts_.end()) return found->second;
    return std::nullopt;
  }
  void define(Expr rule, std::vector<Expr> ways) {
    if (may_end_) ways.push_back(language_.empty());
    language_.define(language_.node(rule).at, language_.choice(ways));
  }

  Language& language_;
  const std::span<const MarkEnd> ends_;
  const bool may_end_;
  Expr text_ = 0;
  std::map<std::string, Expr, std::less<>> fronts_;  // of marks, each with its rule
};

// The rules that the schema of a text has for it.
StringRules text_rules(const json::Value& schema) {
  StringRules rules;
  if (!schema.is_object()) return rules;
  rules.low = schema_count(schema, "minLength", 0);
  rules.high = schema_count(schema, "maxLength", kEndless);
  const auto text_in = [&](const char* word) {
    const json::Value* text = schema.find(word);
    if (text && !text->is_string())
      fail_usage("expected {} of a parameter as a text, found {}", word, text->type_name());
    return text ? text->as_string() : std::string();
  };
  if (schema.find("pattern")) rules.patterns.push_back(text_in("pattern"));
  if (schema.find(kLark)) rules.grammars.push_back(text_in(kLark));
  if (const std::string format = text_in("format"); format_pattern(format))
    rules.formats.push_back(format);
  return rules;
}

// A line break between the parts of a call; where values need no lines of their own, it may be
// left out.
Expr line_break(Language& language, const TagWords& words) {
  const Expr line = language.text("\n");
  return words.has_lines ? line : language.optional(line);
}

// Behind a parameter's tag, with its end: a text as it is, or JSON.
Expr tag_value(Language& language, const CallParameter& parameter, const TagWords& words) {
  const std::string name = words.names_end ? parameter.name + ">" : "";
  const std::string mark = (words.has_lines ? "\n" : "") + words.value_end + name;
  const Expr line = line_break(language, words);
  const Expr end = language.sequence({language.text(mark), line});
  if (parameter.is_text) {
    const StringRules rules = text_rules(parameter.schema);
    if (rules != StringRules()) return language.sequence({plain_text(language, rules, mark), end});
    const auto behind = [&](Expr) { return line; };
    const MarkEnd one{mark, behind};
    return MarkedText(language, {&one, 1}, false).text();
  }
  const Expr value = parameter.texts.empty()
                         ? add_json_schema(language, parameter.schema, kAnyLayout)
                         : language.texts(parameter.texts);
  return language.sequence({value, end});
}

Expr tag_parameter(Language& language, const CallParameter& parameter, const TagWords& words) {
  const bool is_text = parameter.is_text || !parameter.texts.empty();
  std::vector<Expr> parts = {
      language.text(words.key + parameter.name + (is_text ? words.text_key_end : words.key_end))};
  if (words.has_lines || !words.value.empty()) parts.push_back(line_break(language, words));
  parts.push_back(language.text(words.value));
  parts.push_back(tag_value(language, parameter, words));
  const Expr one = language.sequence(parts);
  return parameter.is_required ? one : language.optional(one);
}

// Whatever stands before the call's end. A name that no tag ends has the tag of a parameter behind
// it, or the end.
Expr free_parameters(Language& language, const TagWords& words, Expr line) {
  const auto behind = [&](Expr) { return line; };
  const MarkEnd mark{words.call_end, behind};
  const Expr any = MarkedText(language, {&mark, 1}, false).text();
  if (!words.name_end.empty()) return any;
  return language.choice({language.sequence({language.text(words.call_end), line}),
                          language.sequence({language.text(words.key), any})});
}

// The parameters in their order; of a tool that is not strict any. `closes`: the call's end is not
// the mark behind calls.
Expr tag_call(Language& language, const CallForm& call, const TagWords& words, bool closes) {
  const Expr line = line_break(language, words), last = closes ? line : language.empty();
  std::vector<Expr> parts = {closes ? line : language.empty(),
                             language.text(words.call + call.name + words.name_end), line};
  if (!call.is_strict) {
    parts.push_back(free_parameters(language, words, last));
    return language.sequence(parts);
  }
  for (const CallParameter& parameter : call.parameters)
    parts.push_back(tag_parameter(language, parameter, words));
  parts.push_back(language.text(words.call_end));
  parts.push_back(last);
  return language.sequence(parts);
}

// Keywords of a call in their order: from the last on, what may follow where one stands before and
// where none does.
Expr keywords(Language& language, const CallForm& call) {
  Expr later = language.empty(), first = later;
  for (size_t i = call.parameters.size(); i-- > 0;) {
    const CallParameter& parameter = call.parameters[i];
    const Expr value =
        language.sequence({language.text(parameter.name + "="),
                           add_json_schema(language, parameter.schema, kCompact), later});
    const Expr behind = language.sequence({language.text(", "), value});
    first = parameter.is_required ? value : language.choice({value, first});
    later = parameter.is_required ? behind : language.choice({behind, later});
  }
  return first;
}

// NAME(KEY=JSON, ...) of any of the calls.
Expr pythonic_call(Language& language, std::span<const CallForm> calls) {
  std::vector<Expr> options;
  for (const CallForm& call : calls)
    options.push_back(language.sequence(
        {language.text(call.name + "("), keywords(language, call), language.text(")")}));
  return language.choice(options);
}

// [NAME(KEY=JSON, ...), ...]
Expr pythonic_calls(Language& language, std::span<const CallForm> calls, bool once) {
  const Expr one = pythonic_call(language, calls);
  const Expr more =
      language.repeat(language.sequence({language.text(", "), one}), 0, once ? 0 : kEndless);
  return language.sequence({language.text("["), one, more, language.text("]")});
}

// The text of a message of gpt_oss's channels, without what ends one; `another`: behind its end.
Expr channel_text(Language& language, std::optional<Expr> another) {
  const auto next = [&](Expr) { return another.value_or(language.nothing()); };
  const auto none = [&](Expr) { return language.nothing(); };
  const MarkEnd ends[] = {{"<|end|>", next},
                          {"<|call|>", none},
                          {"<|return|>", none},
                          {"<|start|>", none},
                          {"<|channel|>", none}};
  return MarkedText(language, ends, true).text();
}

// A message that calls a tool: it is named before the channel or behind it.
Expr channel_call(Language& language, const NamedCall& call) {
  const std::string recipient = " to=functions." + call.name, channel = "<|channel|>commentary";
  const Expr type =
      language.choice({language.empty(), language.text(" json"),
                       language.text(" <|constrain|>json"), language.text("<|constrain|>json")});
  return language.sequence(
      {language.choice({language.text(channel + recipient), language.text(recipient + channel)}),
       type, language.text("<|message|>"), add_json_schema(language, call.arguments, kAnyLayout)});
}

// Calls and nothing else, or JSON of the answer's schema; or without one text with calls in it.
Language calls_language(const CallMarks& marks, bool once, const json::Value& answer,
                        const std::string& unwrapped, FunctionRef<Expr(Language&)> call_in) {
  Language language;
  const Expr call = language.sequence({call_in(language), language.text(marks.close)});
  if (!answer.is_null()) {
    JsonText text(language, kAnyLayout);
    const Expr one = language.sequence({language.text(marks.open), call});
    const Expr more =
        language.repeat(language.sequence({text.space(), one}), 0, once ? 0 : kEndless);
    language.finish(language.choice(
        {language.sequence({one, more}), add_json_schema(language, answer, kCompact)}));
    return language;
  }
  const auto behind = [&](Expr again) {
    return language.sequence({call, once ? language.empty() : again});
  };
  const auto none = [&](Expr) { return language.nothing(); };
  std::vector<MarkEnd> ends = {{marks.open, behind}};
  if (!unwrapped.empty()) ends.push_back({unwrapped, none});
  language.finish(MarkedText(language, ends, true).text());
  return language;
}

}  // namespace

Language marked_calls_language(const json::Value& schema, const CallMarks& marks, bool once,
                               const json::Value& answer) {
  return calls_language(marks, once, answer, "", [&](Language& language) {
    JsonText text(language, kAnyLayout);  // models write calls as they learned to
    return language.sequence(
        {text.space(), add_json_schema(language, schema, kAnyLayout), text.space()});
  });
}

Language tag_calls_language(std::span<const CallForm> calls, const TagWords& words,
                            const CallMarks& marks, bool once, const json::Value& answer) {
  return calls_language(marks, once, answer, words.bare, [&](Language& language) {
    std::vector<Expr> options;
    for (const CallForm& call : calls)
      options.push_back(tag_call(language, call, words, !marks.close.empty()));
    const Expr one = language.choice(options);
    return marks.has_several && !once ? language.repeat(one, 1, kEndless) : one;
  });
}

Language named_calls_language(std::span<const NamedCall> calls, std::span<const CallWords> ways,
                              const CallMarks& marks, bool once, const json::Value& answer,
                              Spelling spelling) {
  return calls_language(marks, once, answer, "", [&](Language& language) {
    const Expr digits = language.repeat(language.byte_range('0', '9'), 1, 4);
    const Expr number = language.sequence({language.text(":"), digits});
    const std::string_view spacing = spelling == Spelling::json ? kAnyLayout : kCompact;
    std::vector<Expr> options;
    for (const NamedCall& call : calls) {
      const Expr arguments = add_json_schema(language, call.arguments, spacing, spelling);
      for (const CallWords& words : ways)
        options.push_back(language.sequence(
            {language.text(words.before + call.name), words.has_number ? number : language.empty(),
             language.text(words.between), arguments, language.text(words.after)}));
    }
    const Expr one = language.choice(options);
    if (!marks.has_several) return one;
    const Expr next = language.sequence({language.optional(language.text("\n")), one});
    return language.sequence({one, language.repeat(next, 0, once ? 0 : kEndless)});
  });
}

Language marked_pythonic_language(std::span<const CallForm> calls, const CallMarks& marks,
                                  bool are_lines, bool once, const json::Value& answer) {
  return calls_language(marks, once, answer, "", [&](Language& language) {
    if (!are_lines) return pythonic_calls(language, calls, once);
    const Expr line = language.text("\n"), one = pythonic_call(language, calls);
    const Expr more = language.repeat(language.sequence({line, one}), 0, once ? 0 : kEndless);
    return language.sequence({language.optional(line), one, more, language.optional(line)});
  });
}

// A message for the user ends the answer; one beside the calls goes before another.
Language channel_calls_language(std::span<const NamedCall> calls, bool once,
                                const json::Value& answer) {
  Language language;
  const Expr message = language.rule(language.add_rule("message"));
  const Expr another = language.sequence({language.text("<|start|>assistant"), message});
  std::vector<Expr> options;
  for (const NamedCall& call : calls) options.push_back(channel_call(language, call));
  const Expr behind =
      language.sequence({language.text("<|call|>"),
                         once ? language.empty() : language.choice({language.empty(), another})});
  std::vector<Expr> messages = {
      language.sequence({language.choice(options), language.choice({language.empty(), behind})})};
  const std::string final = "<|channel|>final";
  if (answer.is_null()) {
    messages.push_back(language.sequence(
        {language.text("<|channel|>commentary<|message|>"), channel_text(language, another)}));
    messages.push_back(
        language.sequence({language.text(final + "<|message|>"), channel_text(language, {})}));
  } else {
    messages.push_back(language.sequence(
        {language.text(final), language.optional(language.text(" <|constrain|>json")),
         language.text("<|message|>"), add_json_schema(language, answer, kCompact)}));
  }
  language.define(language.node(message).at, language.choice(messages));
  language.finish(message);
  return language;
}

// A text does not begin with a bracket, as calls do.
Language pythonic_calls_language(std::span<const CallForm> calls, bool once,
                                 const json::Value& answer) {
  Language language;
  const Expr all = pythonic_calls(language, calls, once);
  const Expr other = answer.is_null() ? language.optional(language.sequence(
                                            {other_than(language, "[ \t\r\n"), any_text(language)}))
                                      : add_json_schema(language, answer, kCompact);
  language.finish(language.choice({all, other}));
  return language;
}

// A text does not begin like a call: neither with an object nor with <|python_tag|>, which some
// models write before one.
Language bare_call_language(const json::Value& schema) {
  constexpr std::string_view kSpaces = " \t\r\n";
  Language language;
  ByteSet space{};
  for (const char byte : kSpaces)
    add_to(space, static_cast<unsigned char>(byte), static_cast<unsigned char>(byte));
  const Expr spaces = language.repeat(language.bytes(space), 0, kEndless);
  const Expr call = language.sequence({add_json_schema(language, schema, kAnyLayout), spaces});
  const Expr text =
      language.sequence({other_than(language, std::string(kSpaces) + "{<"), any_text(language)});
  const Expr angle = language.sequence(
      {language.text("<"),
       language.optional(language.sequence({other_than(language, "|"), any_text(language)}))});
  language.finish(
      language.sequence({spaces, language.optional(language.choice({call, text, angle}))}));
  return language;
}

}  // namespace invar::grammar
