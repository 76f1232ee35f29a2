#include "sampling/grammar/schema_merge.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "sampling/grammar/regex.h"
#include "sampling/grammar/schema_opposite.h"
#include "sampling/grammar/schema_words.h"

namespace invar::grammar {

namespace {

using json::Value;

bool is_false(const Value* value) {
  return value && *value == Value(false);
}

// Combining compares every one with every other.
void spend_pairs(Budget& budget, size_t a, size_t b) {
  budget.spend(static_cast<int64_t>(a * b / 4));
}

int64_t size_of(const Value& value) {
  int64_t size = 1;
  if (value.is_string()) size += std::ssize(value.as_string()) / 64;
  if (value.is_array())
    for (const Value& one : value.as_array()) size += size_of(one);
  if (value.is_object())
    for (const auto& [name, one] : value.as_object()) size += 1 + size_of(one);
  return size;
}

const json::Array& list_of(const Value& value, std::string_view word) {
  if (!value.is_array())
    fail_usage("expected a list at {} of the JSON schema, found {}", word, json::excerpt(value));
  return value.as_array();
}

const json::Array& options_of(const Value& value, std::string_view word) {
  const json::Array& list = list_of(value, word);
  if (list.empty()) fail_usage("expected a list at {} of the JSON schema, found []", word);
  return list;
}

const json::Object& members_of(const Value& value, std::string_view word) {
  if (!value.is_object())
    fail_usage("expected an object at {} of the JSON schema, found {}", word, json::excerpt(value));
  return value.as_object();
}

Value as_list(const Value& value, std::string_view word) {
  if (!value.is_string() && !value.is_array())
    fail_usage("expected a text at {} of the JSON schema, found {}", word, json::excerpt(value));
  if (value.is_string()) return json::Array{value};
  for (const Value& one : options_of(value, word))
    if (!one.is_string())
      fail_usage("expected texts at {} of the JSON schema, found {}", word, json::excerpt(one));
  return value;
}

// Draft 4 has true beside minimum.
void read_exclusive(Value& plain, const char* word, const char* bound) {
  const Value* value = plain.find(word);
  if (!value || !value->is_bool()) return;
  const bool is_set = value->as_bool();
  json::Object kept;
  std::optional<Value> limit;
  for (auto& [key, one] : plain.as_object()) {
    if (key == word) continue;
    if (key == bound && is_set)
      limit = one;
    else
      kept.emplace_back(key, one);
  }
  if (limit) kept.emplace_back(word, *limit);
  plain = std::move(kept);
}

void add_word(Value& plain, const std::string& word, const Value& value) {
  if (word == "const" || word == "enum") {
    json::Array values = word == "const" ? json::Array{value} : options_of(value, word);
    if (const Value* other = plain.find("enum"))  // the schema has both
      std::erase_if(values, [&](const Value& one) {
        return std::ranges::count(other->as_array(), one) == 0;
      });
    plain.set("enum", std::move(values));
  } else if (word == "type" || word == "pattern" || word == "format" || word == kLark) {
    plain.set(word, as_list(value, word));
  } else if (word == "items" && value.is_array()) {
    plain.set("prefixItems", value);
  } else if (word == "additionalItems") {
    if (!plain.find("items")) plain.set("items", value);
  } else if (word == "contains") {
    plain.set(word, json::Array{value});
  } else if (word == "unevaluatedItems") {
    if (!is_false(&value))
      fail_usage("expected unevaluatedItems of the JSON schema as false, found {}",
                 json::excerpt(value));
  } else if (word != "nullable") {
    plain.set(word, value);
  }
}

// The schema's own plain words.
Value own_words(const Value& schema) {
  Value plain = json::Object();
  const Value* items = schema.find("items");
  for (const auto& [word, value] : schema.as_object()) {
    if (is_annotation(word) || is_combination(word)) continue;
    // Beside an items that is no list it means nothing.
    if (word == "additionalItems" && !(items && items->is_array())) continue;
    add_word(plain, word, value);
  }
  read_exclusive(plain, "exclusiveMinimum", "minimum");
  read_exclusive(plain, "exclusiveMaximum", "maximum");
  const Value* nullable = schema.find("nullable");
  if (const Value* type = plain.find("type"); type && nullable && *nullable == Value(true)) {
    json::Array types = type->as_array();
    types.push_back("null");
    plain.set("type", std::move(types));
  }
  return plain;
}

double number_at(const Value& value, std::string_view word) {
  if (!value.is_number())
    fail_usage("expected a number at {} of the JSON schema, found {}", word, json::excerpt(value));
  return value.as_number();
}

Value common(const json::Array& a, const json::Array& b, Budget& budget) {
  spend_pairs(budget, a.size(), b.size());
  json::Array out;
  for (const Value& one : a)
    if (std::find(b.begin(), b.end(), one) != b.end()) out.push_back(one);
  return out;
}

Value common_types(const json::Array& a, const json::Array& b, Budget& budget) {
  json::Array out = common(a, b, budget).as_array();
  const auto has = [](const json::Array& list, const char* type) {
    return std::find(list.begin(), list.end(), Value(type)) != list.end();
  };
  const bool is_integer =
      (has(a, "integer") && has(b, "number")) || (has(b, "integer") && has(a, "number"));
  if (is_integer && !has(out, "integer") && !has(out, "number")) out.push_back("integer");
  return out;
}

Value together(const json::Array& a, const json::Array& b, Budget& budget) {
  spend_pairs(budget, a.size() + b.size(), b.size());
  json::Array out = a;
  for (const Value& one : b)
    if (std::find(out.begin(), out.end(), one) == out.end()) out.push_back(one);
  return out;
}

// The number in units of 1 / `scale`; 0 where it is none of them.
int64_t in_units(const Value& value, int64_t scale) {
  const double units = std::round(value.as_number() * static_cast<double>(scale));
  const bool is_exact = units / static_cast<double>(scale) == value.as_number();
  return is_exact && units >= 1 && units <= INT32_MAX ? static_cast<int64_t>(units) : 0;
}

Value common_multiple(const Value& a, const Value& b) {
  constexpr int64_t kSmallestUnit = 1'000'000;
  if (a == b) return a;
  for (int64_t scale = 1; scale <= kSmallestUnit && a.is_number() && b.is_number(); scale *= 10) {
    const int64_t one = in_units(a, scale), other = in_units(b, scale);
    if (one == 0 || other == 0) continue;
    const int64_t both = std::lcm(one, other);
    if (both % scale == 0) return both / scale;
    return static_cast<double>(both) / static_cast<double>(scale);
  }
  fail_usage("the JSON schema asks for multiples of both {} and {}", json::excerpt(a),
             json::excerpt(b));
}

// Whether patternProperties of the schema speak of a name.
bool has_pattern(const Value& schema, const std::string& name, Budget& budget) {
  const Value* patterns = schema.find("patternProperties");
  if (!patterns) return false;
  const Language language(std::make_shared<Budget>(budget.left()));
  const auto matches = [&](const auto& member) {
    return matches_pattern(member.first, name, Match::anywhere, language);
  };
  const bool found = std::ranges::any_of(members_of(*patterns, "patternProperties"), matches);
  budget.spend(budget.left() - language.budget().left());
  return found;
}

// The schema of a property, whether it stands in `properties` or not; but for what its pattern
// says, which stays beside it.
std::optional<Value> property_of(const Value& schema, const std::string& name, Budget& budget) {
  const Value* properties = schema.find("properties");
  if (const Value* own = properties ? properties->find(name) : nullptr) return *own;
  const Value* more = schema.find("additionalProperties");
  return more && !has_pattern(schema, name, budget) ? std::optional(*more) : std::nullopt;
}

Value common_properties(const Value& a, const Value& b, Budget& budget) {
  const auto count = [](const Value& of) {
    const Value* properties = of.find("properties");
    return properties ? members_of(*properties, "properties").size() : 0;
  };
  spend_pairs(budget, count(a) + count(b), count(a) + count(b));
  json::Object out;
  for (const Value* from : {&a, &b}) {
    const Value* properties = from->find("properties");
    if (!properties) continue;
    for (const auto& [name, schema] : members_of(*properties, "properties")) {
      if (std::any_of(out.begin(), out.end(),
                      [&name = name](const auto& m) { return m.first == name; }))
        continue;
      const auto other = property_of(from == &a ? b : a, name, budget);
      out.emplace_back(name, !other       ? schema
                             : from == &a ? both_schemas(schema, *other, budget)
                                          : both_schemas(*other, schema, budget));
    }
  }
  return out;
}

Value common_prefix(const Value& a, const Value& b, Budget& budget) {
  static const json::Array kNone;
  const auto prefix = [](const Value& of) -> const json::Array& {
    const Value* items = of.find("prefixItems");
    return items ? list_of(*items, "prefixItems") : kNone;
  };
  const auto item = [&](const Value& of, size_t i) {
    const Value* rest = of.find("items");
    return i < prefix(of).size() ? prefix(of)[i] : rest ? *rest : Value(true);
  };
  json::Array out;
  for (size_t i = 0; i < std::max(prefix(a).size(), prefix(b).size()); ++i)
    out.push_back(both_schemas(item(a, i), item(b, i), budget));
  return out;
}

Value both_words(const std::string& word, const Value& a, const Value& b, Budget& budget) {
  const bool is_lower_end = word.starts_with("min") || word == "exclusiveMinimum";
  const bool is_upper_end = word.starts_with("max") || word == "exclusiveMaximum";
  if (is_lower_end || is_upper_end)
    return (number_at(a, word) < number_at(b, word)) == is_lower_end ? b : a;
  if (word == "uniqueItems") return Value(a == Value(true) || b == Value(true));
  if (word == kExcluded || word == "contains")
    return together(list_of(a, word), list_of(b, word), budget);
  if (word == "type") return common_types(a.as_array(), b.as_array(), budget);
  if (word == "enum") return common(a.as_array(), b.as_array(), budget);
  if (word == "multipleOf") return common_multiple(a, b);
  if (word == "pattern" || word == "format" || word == kLark)
    return together(a.as_array(), b.as_array(), budget);
  if (word == "required") return together(list_of(a, word), list_of(b, word), budget);
  if (word == "unevaluatedProperties") return is_false(&a) ? a : b;
  if (word == "patternProperties") {
    Value out = a;
    for (const auto& [pattern, schema] : members_of(b, word)) {
      const Value* own = a.find(pattern);
      out.set(pattern, own ? both_schemas(*own, schema, budget) : schema);
    }
    return out;
  }
  return both_schemas(a, b, budget);  // items, additionalProperties, propertyNames
}

// None where nothing can follow both.
std::optional<Value> merged(const Value& a, const Value& b, Budget& budget) {
  budget.spend(10 + size_of(a) + size_of(b));
  Value out = a;
  for (const auto& [word, value] : b.as_object()) {
    const Value* own = a.find(word);
    out.set(word, own ? both_words(word, *own, value, budget) : value);
    const bool is_list = word == "type" || word == "enum";
    if (is_list && out.find(word)->as_array().empty()) return std::nullopt;
  }
  if (a.find("properties") || b.find("properties"))
    out.set("properties", common_properties(a, b, budget));
  if (a.find("prefixItems") || b.find("prefixItems"))
    out.set("prefixItems", common_prefix(a, b, budget));
  return out;
}

}  // namespace

int32_t schema_count(const Value& schema, const char* word, int32_t otherwise) {
  constexpr double kMost = 1e6;
  const Value* value = schema.find(word);
  if (!value) return otherwise;
  const double count = value->is_number() ? value->as_number() : -1;
  const bool is_most = std::string_view(word).starts_with("max");
  if (count < 0 || count != std::floor(count) || (count > kMost && !is_most))
    fail_usage("expected {} of the JSON schema as an integer from 0 to {:.0f}, found {}", word,
               kMost, json::excerpt(*value));
  return count > kMost ? otherwise : static_cast<int32_t>(count);
}

Value both_schemas(const Value& a, const Value& b, Budget& budget) {
  budget.spend(size_of(a) + size_of(b));
  if (a == b || b == Value(true)) return a;
  if (a == Value(true)) return b;
  json::Array all;
  for (const Value* one : {&a, &b}) {
    const Value* list =
        one->is_object() && one->as_object().size() == 1 ? one->find("allOf") : nullptr;
    if (list && list->is_array())
      all = together(all, list->as_array(), budget).as_array();
    else
      all = together(all, {*one}, budget).as_array();
  }
  return json::Object{{"allOf", std::move(all)}};
}

void SchemaMerger::combine(std::vector<Value>& found, const std::vector<Value>& others) {
  std::vector<Value> out;
  for (const Value& a : found)
    for (const Value& b : others) {
      if (++merged_ > kMaxMerged || out.size() > kMaxPlain)
        fail_usage(
            "the JSON schema is too large: its allOf, anyOf and oneOf together stand for more than "
            "{} schemas",
            kMaxPlain);
      if (auto both = merged(a, b, budget_)) out.push_back(std::move(*both));
    }
  found = std::move(out);
}

std::vector<Value> SchemaMerger::plain(const Value& schema, int level) {
  if (level > kMaxLevel || ++merged_ > kMaxMerged)
    fail_usage(
        "the JSON schema refers to itself without an object or a list between, or its "
        "combinations are nested deeper than {} levels",
        kMaxLevel);
  if (schema == Value(true)) return {json::Object()};
  if (schema == Value(false)) return {};
  if (!schema.is_object())
    fail_usage("expected an object as JSON schema, found {}", json::excerpt(schema));
  budget_.spend(size_of(schema));
  std::vector<Value> found{own_words(schema)};
  if (const Value* ref = schema.find("$ref"))
    combine(found, plain(references_.resolve(*ref), level + 1));
  if (const Value* all = schema.find("allOf"))
    for (const Value& one : options_of(*all, "allOf")) combine(found, plain(one, level + 1));
  for (const char* word : {"anyOf", "oneOf"}) {
    const Value* options = schema.find(word);
    if (!options) continue;
    std::vector<Value> any;
    for (const Value& one : options_of(*options, word))
      for (Value& value : plain(one, level + 1)) any.push_back(std::move(value));
    combine(found, any);
  }
  for (const Value& more : implied(schema)) combine(found, plain(more, level + 1));
  return found;
}

// Conditions as alternatives: of what they exclude as far as that can be said, the rest is checked
// at the answer's end.
std::vector<Value> SchemaMerger::implied(const Value& schema) {
  std::vector<Value> all;
  if (const Value* other = schema.find("not")) all.push_back(opposite_of(*other, "not"));
  const auto part = [&](const char* word) {
    const Value* found = schema.find(word);
    return found ? *found : Value(true);
  };
  if (const Value* condition = schema.find("if"))
    all.push_back(any_of(both_schemas(*condition, part("then"), budget_),
                         both_schemas(opposite_of(*condition, "if"), part("else"), budget_)));
  for (const char* word : {"dependentRequired", "dependentSchemas"}) {
    const Value* found = schema.find(word);
    if (!found) continue;
    checked_ = word;
    // Each makes twice as many alternatives.
    const json::Object& members = members_of(*found, word);
    for (size_t i = 0; i < std::min<size_t>(members.size(), 4); ++i) {
      const auto& [name, value] = members[i];
      const Value there = json::Object{{"required", json::Array{name}}};
      const Value more = value.is_array() ? Value(json::Object{{"required", value}}) : value;
      all.push_back(any_of(opposite_of(there, word), both_schemas(there, more, budget_)));
    }
  }
  return all;
}

Value SchemaMerger::opposite_of(const Value& schema, const char* word) {
  if (schema.is_object() && !schema.as_object().empty()) checked_ = word;
  const auto found = opposite_schema(schema);
  return found ? *found : Value(true);
}

}  // namespace invar::grammar
