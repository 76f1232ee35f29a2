// JSON of a schema as a grammar: every schema that something refers to is a rule.
#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <map>
#include <optional>

#include "base/error.h"
#include "sampling/grammar/json_text.h"
#include "sampling/grammar/languages.h"
#include "sampling/grammar/schema_check.h"
#include "sampling/grammar/schema_merge.h"
#include "sampling/grammar/schema_object.h"
#include "sampling/grammar/schema_words.h"

namespace invar::grammar {

namespace {

using Expr = Language::Expr;
using json::Value;
constexpr int kMaxLevels = 100;
// More are refused before anything is read.
constexpr size_t kMaxBytes = size_t{1} << 20;

class SchemaBuilder : public SchemaCompiler {
 public:
  // `root` is a normal schema.
  SchemaBuilder(Language& language, const Value& root, std::string_view whitespace,
                Spelling spelling)
      : SchemaCompiler(language, whitespace, spelling),
        merger_(root, language.budget()),
        check_(root),
        root_(root) {}

  Expr build() {
    const Expr root = rule_of(root_, "#");
    for (; !open_.empty(); open_.pop_front()) {
      const Task task = open_.front();
      level_ = 0;
      language.define(task.rule, task.schema ? add_here(*task.schema) : add_merged(task.merged));
    }
    return root;
  }

  Expr add(const Value& schema) override {
    if (++level_ > kMaxLevels)
      fail_usage("the JSON schema is nested deeper than {} levels", kMaxLevels);
    const Expr added = add_nested(schema);
    --level_;
    return added;
  }

  std::vector<Value> plain(const Value& schema) override { return merger_.plain(schema); }
  void check(const char* word) override { checked_ = word; }
  void contradict(std::string reason) override {
    if (contradiction_.empty()) contradiction_ = std::move(reason);
  }
  // The first one's reason; empty: there is none.
  const std::string& contradiction() const { return contradiction_; }
  // Null: none is.
  const char* checked_word() const { return checked_ ? checked_ : merger_.checked_word(); }

 private:
  struct Task {
    int32_t rule;
    const Value* schema;  // in the root; or null
    Value merged;
  };

  static std::vector<std::string_view> words_of(const Value& schema) {
    std::vector<std::string_view> words;
    for (const auto& [word, value] : schema.as_object())
      if (!is_annotation(word)) words.push_back(word);
    return words;
  }

  // The rule of a schema that stands in the root.
  Expr rule_of(const Value& schema, const std::string& name) {
    const auto [at, is_new] = by_place_.try_emplace(&schema, -1);
    if (is_new) {
      at->second = language.rule(language.add_rule(name));
      open_.push_back({language.node(at->second).at, &schema, {}});
    }
    return at->second;
  }

  Expr rule_of_merged(const Value& schema) {
    std::string key = json::dump(schema);
    language.budget().spend(std::ssize(key) / 16);
    const auto [at, is_new] = by_text_.try_emplace(std::move(key), -1);
    if (is_new) {
      at->second = language.rule(language.add_rule(json::excerpt(schema)));
      open_.push_back({language.node(at->second).at, nullptr, schema});
    }
    return at->second;
  }

  Expr add_nested(const Value& schema) {
    if (!schema.is_object() || !schema.find("$ref")) return add_here(schema);
    if (words_of(schema).size() > 1) return rule_of_merged(schema);
    const Value& ref = *schema.find("$ref");
    return rule_of(merger_.resolve(ref), ref.as_string());
  }

  Expr add_here(const Value& schema) {
    if (schema == Value(false)) return language.nothing();
    if (schema == Value(true)) return text.any();
    if (!schema.is_object())
      fail_usage("expected an object as JSON schema, found {}", json::excerpt(schema));
    const auto words = words_of(schema);
    if (words.empty()) return text.any();
    if (words.size() == 1) {
      const Value& value = *schema.find(words[0]);
      const bool is_choice =
          words[0] == "anyOf" || words[0] == "oneOf" ||
          (words[0] == "allOf" && value.is_array() && value.as_array().size() == 1);
      if (words[0] == "$ref") return rule_of(merger_.resolve(value), value.as_string());
      if (is_choice && value.is_array() && !value.as_array().empty()) {
        std::vector<Expr> options;
        for (const Value& option : value.as_array()) options.push_back(add(option));
        return language.choice(options);
      }
    }
    if (std::none_of(words.begin(), words.end(), is_combination)) return add_merged(schema);
    return rule_of_merged(schema);
  }

  Expr add_merged(const Value& schema) {
    std::vector<Expr> options;
    for (const Value& plain : merger_.plain(schema)) options.push_back(add_plain(plain));
    return language.choice(options);
  }

  Expr add_plain(const Value& schema) {
    json::Array types = types_of(schema);
    // Words of other types say nothing of a value.
    if (const Value* values = schema.find("enum"))
      return add_enum(schema, *values, schema.find("type") ? types : json::Array());
    if (types.empty()) return text.any();
    std::vector<Expr> options;
    for (const Value& type : types) options.push_back(add_type(schema, type.as_string()));
    return language.choice(options);
  }

  // Those that it names, or those that its words speak of.
  static json::Array types_of(const Value& schema) {
    if (const Value* type = schema.find("type")) return type->as_array();
    const std::pair<const char*, std::vector<std::string_view>> kWords[] = {
        {"object",
         {"properties", "required", "additionalProperties", "unevaluatedProperties",
          "patternProperties", "propertyNames", "minProperties", "maxProperties"}},
        {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"}},
        {"string", {"minLength", "maxLength", "pattern", "format", kLark}},
        {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
    json::Array types;
    for (const auto& [type, words] : kWords)
      if (std::any_of(words.begin(), words.end(), [&](auto word) { return schema.find(word); }))
        types.push_back(type);
    return types;
  }

  static bool is_of(const Value& value, const json::Array& types) {
    const std::string_view found = value.is_null()     ? "null"
                                   : value.is_bool()   ? "boolean"
                                   : value.is_string() ? "string"
                                   : value.is_array()  ? "array"
                                   : value.is_object() ? "object"
                                                       : "number";
    if (types.empty()) return true;
    return std::any_of(types.begin(), types.end(), [&](const Value& type) {
      const std::string& name = type.as_string();
      const bool is_whole =
          value.is_integer() ||
          (value.is_number() && value.as_number() == std::floor(value.as_number()));
      return name == found || (name == "integer" && found == "number" && is_whole);
    });
  }

  Expr add_enum(const Value& schema, const Value& values, const json::Array& types) {
    json::Object others;
    for (const auto& [word, value] : schema.as_object())
      if (word != "enum" && word != "type") others.emplace_back(word, value);
    const bool is_free = others.empty();
    const Value rest = std::move(others);
    json::Array kept;
    for (const Value& value : values.as_array())
      if (is_of(value, types) && (is_free || check_.follows(rest, value))) kept.push_back(value);
    return text.one_of(kept);
  }

  // All values of the type but the excluded ones; null: there is no such list.
  static const Value* all_of_type(const std::string& type) {
    static const Value kBooleans = json::Array{true, false}, kNull = json::Array{Value()};
    return type == "boolean" ? &kBooleans : type == "null" ? &kNull : nullptr;
  }

  Expr add_type(const Value& schema, const std::string& type) {
    if (schema.find(kExcluded))
      if (const Value* all = all_of_type(type)) return add_enum(schema, *all, {});
    if (type == "string") return text.string(string_rules(schema));
    if (type == "integer" || type == "number") return text.number(number_rules(schema, type));
    if (type == "boolean") return text.boolean();
    if (type == "null") return text.null();
    if (type == "array") return add_array(schema);
    if (type == "object") return add_object(*this, schema);
    fail_usage("the JSON schema has the type {}, which is none", json::quoted(type));
  }

  static NumberRules number_rules(const Value& schema, const std::string& type) {
    NumberRules rules{.is_integer = type == "integer"};
    const auto read = [&](const char* bound, const char* excluded, Value& value, bool& is_excluded,
                          bool is_low) {
      const Value* with = schema.find(bound);
      const Value* without = schema.find(excluded);
      for (const Value* one : {with, without})
        if (one && !one->is_number())
          fail_usage("expected a number at {} of the JSON schema, found {}",
                     one == with ? bound : excluded, json::excerpt(*one));
      is_excluded = without && (!with || (is_low ? without->as_number() >= with->as_number()
                                                 : without->as_number() <= with->as_number()));
      if (with || without) value = is_excluded ? *without : *with;
    };
    read("minimum", "exclusiveMinimum", rules.low, rules.low_excluded, true);
    read("maximum", "exclusiveMaximum", rules.high, rules.high_excluded, false);
    if (const Value* multiple = schema.find("multipleOf")) rules.multiple = *multiple;
    return rules;
  }

  // The items that are named one by one, then any number of `items`. Where minItems does not say
  // how many of the first there must be, all are written.
  Expr add_array(const Value& schema) {
    const Value* prefix = schema.find("prefixItems");
    const Value* items = schema.find("items");
    const int32_t high = schema_count(schema, "maxItems", kEndless);
    const bool are_unique =
        schema.find("uniqueItems") && *schema.find("uniqueItems") == Value(true);
    if (prefix && schema.find("contains")) check("contains");
    if (are_unique && items && !prefix && !schema.find("contains"))
      if (const auto values = few_values(*items))
        return add_distinct(*values, schema_count(schema, "minItems", 0), high);
    if (are_unique && high > 1) check("uniqueItems");
    if (!prefix) {
      const int32_t low = schema_count(schema, "minItems", 0);
      if (schema.find("contains")) return add_containing(schema, low, high);
      if (!items && low == 0 && high == kEndless) return text.any_array();
      return text.list("[", "]", items ? add(*items) : text.any(), low, high);
    }
    if (!prefix->is_array())
      fail_usage("expected a list at prefixItems of the JSON schema, found {}",
                 json::excerpt(*prefix));
    const auto named = static_cast<int32_t>(prefix->as_array().size());
    const int32_t low = schema_count(schema, "minItems", std::min(named, high));
    if (high < low) return language.nothing();
    Expr rest = language.empty();
    if (items && high > named)
      rest = language.repeat(language.sequence({text.comma(), add(*items)}),
                             std::max(low - named, 0), high == kEndless ? high : high - named);
    else if (low > named)
      rest = language.nothing();
    for (int32_t i = std::min(named, high); i-- > 0;) {
      const Expr item = add(prefix->as_array()[i]);
      rest = language.sequence({i == 0 ? language.empty() : text.comma(), item, rest});
      if (i >= low && i > 0) rest = language.optional(rest);
    }
    rest = language.sequence({rest, text.space()});
    if (low == 0) rest = language.optional(rest);
    return language.sequence({language.text("["), text.space(), rest, language.text("]")});
  }

  // Those that an item may have, where they are named and few.
  std::optional<json::Array> few_values(const Value& items) {
    constexpr size_t kFew = 7;
    const std::vector<Value> plain = merger_.plain(items);
    const Value* values = plain.size() == 1 ? plain[0].find("enum") : nullptr;
    if (!values) return std::nullopt;
    json::Array kept;
    for (const Value& value : values->as_array())
      if (check_.follows(plain[0], value) && std::ranges::count(kept, value) == 0)
        kept.push_back(value);
    return kept.size() <= kFew ? std::optional(kept) : std::nullopt;
  }

  // A rule for each set of values that there are already, which ends with the rule of one more.
  Expr add_distinct(const json::Array& values, int32_t low, int32_t high) {
    const size_t sets = size_t{1} << values.size();
    std::vector<int32_t> rules;
    for (size_t set = 0; set < sets; ++set) rules.push_back(language.add_rule("distinct items"));
    for (size_t set = 0; set < sets; ++set) {
      const int count = std::popcount(set);
      std::vector<Expr> options;
      if (count >= low) options.push_back(text.space());
      for (size_t i = 0; i < values.size() && count < high; ++i)
        if (!(set >> i & 1))
          options.push_back(
              language.sequence({count ? text.comma() : language.empty(), text.one_of({values[i]}),
                                 language.rule(rules[set | size_t{1} << i])}));
      language.define(rules[set], language.choice(options));
    }
    return language.sequence(
        {language.text("["), text.space(), language.rule(rules[0]), language.text("]")});
  }

  // So many items that are contained, the others around them; where the list has a length, in front
  // of them.
  Expr add_containing(const Value& schema, int32_t low, int32_t high) {
    constexpr int32_t kMost = 1000;
    const Value* items = schema.find("items");
    const json::Array& contained = schema.find("contains")->as_array();
    const int32_t count = schema_count(schema, "minContains", 1);
    if (contained.size() > 1 || schema.find("maxContains") || count > kMost) check("contains");
    const Expr other = items ? add(*items) : text.any();
    if (count == 0 || count > kMost) return text.list("[", "]", other, low, high);
    const Expr one =
        add(items ? both_schemas(*items, contained[0], language.budget()) : contained[0]);
    const bool is_free = low <= count && high == kEndless;
    if (high < count) return language.nothing();
    const Expr before = language.repeat(language.sequence({other, text.comma()}),
                                        is_free ? 0 : std::max(low - count, 0),
                                        high == kEndless ? high : high - count);
    const Expr behind = language.repeat(language.sequence({text.comma(), other}), 0, kEndless);
    const Expr between = is_free ? language.sequence({text.comma(), before, one})
                                 : language.sequence({text.comma(), one});
    return language.sequence({language.text("["), text.space(), before, one,
                              language.repeat(between, count - 1, count - 1),
                              is_free ? behind : language.empty(), text.space(),
                              language.text("]")});
  }

  SchemaMerger merger_;
  const SchemaCheck check_;
  const char* checked_ = nullptr;
  std::string contradiction_;
  const Value& root_;
  std::deque<Task> open_;
  std::map<const Value*, Expr> by_place_;
  std::map<std::string, Expr> by_text_;
  int level_ = 0;
};

}  // namespace

namespace {

struct Built {
  Expr expr;
  Value root;
  const char* checked;        // a word, or null
  std::string contradiction;  // why nothing follows a part of it; or empty
};

Built built(Language& language, const Value& schema, std::string_view whitespace,
            Spelling spelling) {
  const size_t bytes = json::dump(schema).size();
  if (bytes > kMaxBytes)
    fail_usage("the JSON schema is too large: expected at most {} bytes, found {}", kMaxBytes,
               bytes);
  Value root = normal_schema(schema);
  SchemaBuilder builder(language, root, whitespace, spelling);
  const Expr expr = builder.build();
  return {expr, std::move(root), builder.checked_word(), builder.contradiction()};
}

}  // namespace

Expr add_json_schema(Language& language, const Value& schema, std::string_view whitespace,
                     Spelling spelling) {
  const Built made = built(language, schema, whitespace, spelling);
  if (made.checked)
    fail_usage(
        "the JSON schema's {} is checked at an answer's end, and is not supported where other text "
        "may stand around what follows the schema",
        made.checked);
  // Refuses a schema that no value follows. Whether none does is known of a whole language alone.
  if (!made.contradiction.empty()) json_schema_language(schema, whitespace);
  return made.expr;
}

Language json_schema_language(const Value& schema, std::string_view whitespace) {
  Language language;
  Built made = built(language, schema, whitespace, Spelling::json);
  if (made.checked) language.check_at_end(std::make_shared<SchemaCheck>(std::move(made.root)));
  language.finish(made.expr);
  const bool has_text = language.node(language.root()).depth <= Language::kMaxDepth;
  if (!has_text && !made.contradiction.empty()) fail_usage("{}", made.contradiction);
  return language;
}

}  // namespace invar::grammar
