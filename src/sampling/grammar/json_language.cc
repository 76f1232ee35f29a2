#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sampling/grammar/languages.h"

namespace invar::grammar {

namespace {

using State = Nfa::State;
using CodePoints = Nfa::CodePoints;

constexpr int kMaxNesting = 32, kMaxCount = 1000, kIndent = 16, kAnyDepth = 6;

constexpr std::string_view kAnnotations[] = {
    "title",    "description", "default",     "examples", "$schema",   "$id",
    "$comment", "$defs",       "definitions", "readOnly", "writeOnly", "deprecated"};

class Builder {
 public:
  Builder(Nfa& nfa, const json::Value& root) : nfa_(nfa), root_(root) {}

  State add_schema(State from, const json::Value& schema, int level) {
    if (level > kMaxNesting)
      fail_usage("the JSON schema is recursive or nested deeper than {} levels", kMaxNesting);
    if (schema.is_bool() && schema.as_bool()) return add_any(from, kAnyDepth - 1);
    if (!schema.is_object())
      fail_usage("expected an object as JSON schema, found {}", json::excerpt(schema));
    if (const json::Value* ref = schema.find("$ref")) {
      only(schema, {"$ref"});
      return add_schema(from, resolve(*ref), level + 1);
    }
    if (const json::Value* value = schema.find("const")) {
      only(schema, {"const", "type"});
      return nfa_.add_text(from, json::dump(*value));
    }
    if (const json::Value* values = schema.find("enum")) {
      only(schema, {"enum", "type"});
      return add_enum(from, *values);
    }
    for (const char* word : {"anyOf", "oneOf"})
      if (const json::Value* options = schema.find(word)) {
        only(schema, {word});
        const json::Array& list = non_empty_array(*options, word);
        return nfa_.add_choice(from, list.size(), [&](State begin, size_t i) {
          return add_schema(begin, list[i], level + 1);
        });
      }
    const json::Value* type = schema.find("type");
    if (!type) {
      if (schema.find("properties")) return add_typed(from, schema, "object", level);
      only(schema, {});
      return add_any(from, kAnyDepth - 1);
    }
    if (type->is_string()) return add_typed(from, schema, type->as_string(), level);
    const json::Array& types = non_empty_array(*type, "type");
    return nfa_.add_choice(from, types.size(), [&](State begin, size_t i) {
      if (!types[i].is_string())
        fail_usage("expected names of types, found {}", json::excerpt(types[i]));
      return add_typed(begin, schema, types[i].as_string(), level, types.size() > 1);
    });
  }

  // Any value, nested `depth` levels at most.
  State add_any(State from, int depth) {
    const int kinds = depth > 0 ? 6 : 4;
    return nfa_.add_choice(from, kinds, [&](State begin, size_t kind) {
      switch (kind) {
        case 0:
          return add_string(begin, 0, -1);
        case 1:
          return add_number(begin, true);
        case 2:
          return add_word(begin, {"true", "false"});
        case 3:
          return nfa_.add_text(begin, "null");
        case 4:
          return add_any_object(begin, depth);
        default:
          return add_list(begin, '[', ']', 0, -1,
                          [&](State item) { return add_any(item, depth - 1); });
      }
    });
  }
  State add_any_object(State from, int depth) {
    return add_map(from, [&](State value) { return add_any(value, depth - 1); });
  }

 private:
  static const json::Array& non_empty_array(const json::Value& value, const char* word) {
    if (!value.is_array() || value.as_array().empty())
      fail_usage("expected a list at {} of the JSON schema, found {}", word, json::excerpt(value));
    return value.as_array();
  }

  static const std::string& text(const json::Value& value, const char* word) {
    if (!value.is_string())
      fail_usage("expected a text at {} of the JSON schema, found {}", word, json::excerpt(value));
    return value.as_string();
  }

  // Whatever else stands in a schema would change its meaning.
  static void only(const json::Value& schema, std::vector<std::string_view> known) {
    for (const auto& [key, value] : schema.as_object())
      if (std::find(known.begin(), known.end(), key) == known.end() &&
          std::find(std::begin(kAnnotations), std::end(kAnnotations), key) ==
              std::end(kAnnotations))
        fail_usage("the JSON schema's keyword {} is not supported here", json::quoted(key));
  }

  const json::Value& resolve(const json::Value& ref) const {
    const std::string& path = text(ref, "$ref");
    if (path == "#") return root_;
    const json::Value* at = &root_;
    size_t begin = 1;
    while (path.starts_with("#/") && at && begin < path.size()) {
      const size_t end = std::min(path.find('/', begin + 1), path.size());
      at = at->find(path.substr(begin + 1, end - begin - 1));
      begin = end;
    }
    if (!path.starts_with("#/") || !at)
      fail_usage("the JSON schema refers to {}, which it does not have", json::quoted(path));
    return *at;
  }

  static int count(const json::Value& schema, const char* word, int otherwise) {
    const json::Value* value = schema.find(word);
    if (!value) return otherwise;
    const auto found = value->to_integer();
    if (!found || *found < 0 || *found > kMaxCount)
      fail_usage("expected {} of the JSON schema from 0 to {}, found {}", word, kMaxCount,
                 json::excerpt(*value));
    return static_cast<int>(*found);
  }
  static std::pair<int, int> counts(const json::Value& schema, const char* least,
                                    const char* most) {
    const int low = count(schema, least, 0), high = count(schema, most, -1);
    if (high >= 0 && high < low) fail_usage("{} of the JSON schema is below {}", most, least);
    return {low, high};
  }

  // `shared`: the schema's words may belong to another of its types.
  State add_typed(State from, const json::Value& schema, const std::string& type, int level,
                  bool shared = false) {
    std::vector<std::string_view> known = {"type"};
    const auto allow = [&](const char* of, std::initializer_list<std::string_view> words) {
      if (type == of || shared) known.insert(known.end(), words);
    };
    allow("string", {"minLength", "maxLength", "pattern"});
    allow("array", {"items", "minItems", "maxItems"});
    allow("object", {"properties", "required", "additionalProperties"});
    only(schema, known);
    if (type == "string") return add_string_of(from, schema);
    if (type == "integer") return add_number(from, false);
    if (type == "number") return add_number(from, true);
    if (type == "boolean") return add_word(from, {"true", "false"});
    if (type == "null") return nfa_.add_text(from, "null");
    if (type == "array") return add_array(from, schema, level);
    if (type == "object") return add_object(from, schema, level);
    fail_usage("the JSON schema has the type {}, which is none", json::quoted(type));
  }

  State add_enum(State from, const json::Value& values) {
    const json::Array& list = non_empty_array(values, "enum");
    return nfa_.add_choice(from, list.size(), [&](State begin, size_t i) {
      return nfa_.add_text(begin, json::dump(list[i]));
    });
  }
  State add_word(State from, std::vector<std::string_view> words) {
    return nfa_.add_choice(from, words.size(),
                           [&](State begin, size_t i) { return nfa_.add_text(begin, words[i]); });
  }

  // Nothing, a space, or a newline with its indentation.
  State add_space(State from) {
    return nfa_.add_choice(from, 3, [&](State begin, size_t kind) {
      if (kind == 0) return begin;
      if (kind == 1) return nfa_.add_text(begin, " ");
      return nfa_.add_repeated(nfa_.add_text(begin, "\n"), 0, kIndent,
                               [&](State at) { return nfa_.add_text(at, " "); });
    });
  }

  State add_string_of(State from, const json::Value& schema) {
    const auto [low, high] = counts(schema, "minLength", "maxLength");
    const json::Value* pattern = schema.find("pattern");
    if (!pattern) return add_string(from, low, high);
    if (low > 0 || high >= 0)
      fail_usage("a JSON schema's pattern beside minLength or maxLength is not supported");
    from = nfa_.add_text(from, "\"");
    return nfa_.add_text(add_json_string_pattern(nfa_, from, text(*pattern, "pattern")), "\"");
  }

  State add_string(State from, int low, int high) {
    from = nfa_.add_text(from, "\"");
    from = nfa_.add_repeated(from, low, high, [&](State at) { return add_string_character(at); });
    return nfa_.add_text(from, "\"");
  }

  State add_string_character(State from) {
    const CodePoints plain = {{0x20, '!'}, {'#', '['}, {']', 0x10ffff}};
    const CodePoints escapes = {{'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'b', 'b'},
                                {'f', 'f'}, {'n', 'n'}, {'r', 'r'},   {'t', 't'}};
    return nfa_.add_choice(from, 3, [&](State begin, size_t kind) {
      if (kind == 0) return nfa_.add_character(begin, plain);
      begin = nfa_.add_text(begin, "\\");
      return kind == 1 ? nfa_.add_character(begin, escapes) : add_unicode_escape(begin);
    });
  }

  // u and four digits, no surrogate.
  State add_unicode_escape(State from) {
    const CodePoints hex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    from = nfa_.add_text(from, "u");
    from = nfa_.add_choice(from, 2, [&](State begin, size_t kind) {
      if (kind == 0) {
        begin =
            nfa_.add_character(begin, {{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}});
        return nfa_.add_character(begin, hex);
      }
      begin = nfa_.add_character(begin, {{'D', 'D'}, {'d', 'd'}});
      return nfa_.add_character(begin, {{'0', '7'}});
    });
    return nfa_.add_character(nfa_.add_character(from, hex), hex);
  }

  // Up to 18 digits, so that integers have 64 bits.
  State add_number(State from, bool fraction) {
    const CodePoints digit = {{'0', '9'}};
    const auto digits = [&](State at, int low, int high) {
      return nfa_.add_repeated(at, low, high,
                               [&](State d) { return nfa_.add_character(d, digit); });
    };
    from = optional(from, [&](State at) { return nfa_.add_text(at, "-"); });
    from = nfa_.add_choice(from, 2, [&](State begin, size_t kind) {
      if (kind == 0) return nfa_.add_text(begin, "0");
      return digits(nfa_.add_character(begin, {{'1', '9'}}), 0, 17);
    });
    if (!fraction) return from;
    from = optional(from, [&](State at) { return digits(nfa_.add_text(at, "."), 1, 17); });
    return optional(from, [&](State at) {
      at = nfa_.add_character(at, {{'E', 'E'}, {'e', 'e'}});
      at = optional(at, [&](State s) { return nfa_.add_character(s, {{'+', '+'}, {'-', '-'}}); });
      return digits(at, 1, 2);
    });
  }

  template <typename F>
  State optional(State from, F add) {
    return nfa_.add_repeated(from, 0, 1, add);
  }

  // open item, item ... close. What `add` adds stands once, so that nesting does not multiply.
  template <typename F>
  State add_list(State from, char open, char close, int low, int high, F add) {
    from = add_space(nfa_.add_text(from, std::string_view(&open, 1)));
    const State end = nfa_.add_state();
    const auto separated = [&](State at) { return add_space(nfa_.add_text(at, ",")); };
    if (high < 0 && low <= 1) {
      const State item = nfa_.add_state(), behind = nfa_.add_state();
      nfa_.add_empty(from, item);
      if (low == 0) nfa_.add_empty(from, behind);
      const State added = add(item);
      nfa_.add_empty(separated(added), item);
      nfa_.add_empty(add_space(added), end);
      if (low == 0) nfa_.add_empty(behind, end);
    } else {
      if (low == 0) nfa_.add_empty(from, end);
      for (int i = 1; high < 0 ? i <= low : i <= high; ++i) {
        const State item = i == 1 ? from : separated(from);
        from = add(item);
        if (high < 0 && i == low) nfa_.add_empty(separated(from), item);
        if (i >= low) nfa_.add_empty(add_space(from), end);
      }
    }
    return nfa_.add_text(end, std::string_view(&close, 1));
  }

  State add_array(State from, const json::Value& schema, int level) {
    const auto [low, high] = counts(schema, "minItems", "maxItems");
    const json::Value* items = schema.find("items");
    if (high == 0) return nfa_.add_text(from, "[]");
    return add_list(from, '[', ']', low, high, [&](State item) {
      return items ? add_schema(item, *items, level + 1) : add_any(item, kAnyDepth - 2);
    });
  }

  template <typename F>
  State add_map(State from, F add_value) {
    return add_list(from, '{', '}', 0, -1, [&](State item) {
      item = nfa_.add_text(add_string(item, 0, -1), ":");
      return add_value(add_space(item));
    });
  }

  State add_object(State from, const json::Value& schema, int level) {
    const json::Value* properties = schema.find("properties");
    const json::Value* more = schema.find("additionalProperties");
    const json::Value* required = schema.find("required");
    std::vector<std::string> names;
    if (required && !required->is_array())
      fail_usage("expected a list at required of the JSON schema, found {}",
                 json::excerpt(*required));
    if (required)
      for (const json::Value& name : required->as_array()) names.push_back(text(name, "required"));
    if (!properties) {
      if (!names.empty())
        fail_usage("the JSON schema requires properties that it does not describe");
      if (more && more->is_bool() && !more->as_bool()) return nfa_.add_text(from, "{}");
      return add_map(from, [&](State value) {
        return more && more->is_object() ? add_schema(value, *more, level + 1)
                                         : add_any(value, kAnyDepth - 2);
      });
    }
    if (!properties->is_object())
      fail_usage("expected an object at properties of the JSON schema, found {}",
                 json::excerpt(*properties));
    if (more && !(more->is_bool() && !more->as_bool()))
      fail_usage("additionalProperties beside properties is supported as false only");
    for (const std::string& name : names)
      if (!properties->find(name))
        fail_usage("the JSON schema requires {}, which it does not describe", json::quoted(name));
    return add_properties(from, properties->as_object(), names, level);
  }

  // The properties in their order. `none` is where nothing was written yet, `some` behind one.
  State add_properties(State from, const json::Object& properties,
                       const std::vector<std::string>& required, int level) {
    State none = add_space(nfa_.add_text(from, "{"));
    State some = -1;
    for (const auto& [name, schema] : properties) {
      const bool optional = std::find(required.begin(), required.end(), name) == required.end();
      const State key = nfa_.add_state();
      if (none >= 0) nfa_.add_empty(none, key);
      if (some >= 0) nfa_.add_empty(add_space(nfa_.add_text(some, ",")), key);
      std::string quoted;
      json::append_quoted(quoted, name);
      const State value = add_space(nfa_.add_text(key, quoted + ":"));
      const State written = nfa_.add_state();
      nfa_.add_empty(add_schema(value, schema, level + 1), written);
      if (!optional)
        none = -1;
      else if (some >= 0)
        nfa_.add_empty(some, written);
      some = written;
    }
    const State end = nfa_.add_state();
    if (none >= 0) nfa_.add_empty(none, end);
    if (some >= 0) nfa_.add_empty(add_space(some), end);
    return nfa_.add_text(end, "}");
  }

  Nfa& nfa_;
  const json::Value& root_;
};

}  // namespace

Nfa json_schema_language(const json::Value& schema) {
  Nfa nfa;
  nfa.accept(Builder(nfa, schema).add_schema(nfa.start(), schema, 0));
  return nfa;
}

Nfa json_object_language() {
  Nfa nfa;
  const json::Value none;
  nfa.accept(Builder(nfa, none).add_any_object(nfa.start(), kAnyDepth));
  return nfa;
}

}  // namespace invar::grammar
