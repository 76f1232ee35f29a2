// Texts with calls of tools in them.
#include "base/error.h"
#include "sampling/grammar/json_text.h"
#include "sampling/grammar/languages.h"

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

}  // namespace

// A rule for each number of bytes of the opening mark that the text ends with. Each ends with the
// next one, so that none lies within another however long the text is.
Language marked_calls_language(const json::Value& schema, const CallMarks& marks, bool once) {
  const std::string& open = marks.open;
  if (open.empty() || open.find(open[0], 1) != open.npos)
    fail_usage("expected a mark of calls whose first byte stands in it once, found {}",
               json::quoted(open));
  Language language;
  JsonText text(language, kAnyLayout);  // models write calls as they learned to
  std::vector<Expr> behind;             // so many bytes of the mark
  for (size_t read = 0; read < open.size(); ++read)
    behind.push_back(language.rule(language.add_rule(open.substr(0, read))));
  const Expr call =
      language.sequence({text.space(), add_json_schema(language, schema, kAnyLayout), text.space(),
                         language.text(marks.close), once ? language.empty() : behind[0]});
  const auto define = [&](size_t read, Expr body) {
    language.define(language.node(behind[read]).at, body);
  };
  const Expr first = language.text(open.substr(0, 1));
  const auto next = [&](size_t read) { return read == open.size() ? call : behind[read]; };
  define(0,
         language.sequence({language.repeat(other_than(language, open.substr(0, 1)), 0, kEndless),
                            language.optional(language.sequence({first, next(1)}))}));
  for (size_t read = 1; read < open.size(); ++read) {
    const std::string expected = open.substr(read, 1);
    define(read, language.choice(
                     {language.empty(),
                      language.sequence({other_than(language, expected + open[0]), behind[0]}),
                      language.sequence({first, behind[1 % open.size()]}),
                      language.sequence({language.text(expected), next(read + 1)})}));
  }
  language.finish(behind[0]);
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
