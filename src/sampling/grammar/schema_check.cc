#include "sampling/grammar/schema_check.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/error.h"
#include "sampling/grammar/json_text.h"
#include "sampling/grammar/regex.h"

namespace invar::grammar {

namespace {

using json::Value;

bool is_of_type(const Value& value, std::string_view type) {
  if (type == "number") return value.is_number();
  if (type == "integer")
    return value.is_number() && value.as_number() == std::floor(value.as_number());
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  return type == "array" ? value.is_array() : type == "object" && value.is_object();
}

bool is_same(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_number() == b.as_number();
  return a == b;
}

bool has(const Value& list, const Value& value) {
  return list.is_array() && std::ranges::any_of(list.as_array(), [&](const Value& one) {
           return is_same(one, value);
         });
}

// Members sorted, so that what is the same is written the same.
std::string canonical(const Value& value) {
  if (value.is_number() && !value.is_integer() && value.to_integer())
    return std::to_string(*value.to_integer());
  if (value.is_array()) {
    std::string out = "[";
    for (const Value& one : value.as_array()) out += canonical(one) + ",";
    return out + "]";
  }
  if (!value.is_object()) return json::dump(value);
  std::vector<std::string> members;
  for (const auto& [name, one] : value.as_object())
    members.push_back(json::quoted(name) + ":" + canonical(one));
  std::sort(members.begin(), members.end());
  std::string out = "{";
  for (const std::string& member : members) out += member + ",";
  return out + "}";
}

// Whether some array's items must differ.
bool has_unique_items(const Value& schema) {
  if (schema.is_array()) return std::ranges::any_of(schema.as_array(), has_unique_items);
  return schema.is_object() && std::ranges::any_of(schema.as_object(), [](const auto& member) {
           return (member.first == "uniqueItems" && member.second == Value(true)) ||
                  has_unique_items(member.second);
         });
}

bool are_unique(const json::Array& items) {
  std::unordered_set<std::string> seen;
  return std::ranges::all_of(items,
                             [&](const Value& one) { return seen.insert(canonical(one)).second; });
}

double characters(const std::string& text) {
  return static_cast<double>(
      std::ranges::count_if(text, [](char byte) { return (byte & 0xc0) != 0x80; }));
}

struct Sentence {
  std::string_view word;
  const char* sentence;
};
#define INVAR_SENTENCE(word) \
  { word, "the answer does not follow " word " of the JSON schema, which is checked at its end" }
constexpr Sentence kSentences[] = {INVAR_SENTENCE("uniqueItems"),
                                   INVAR_SENTENCE("not"),
                                   INVAR_SENTENCE("if"),
                                   INVAR_SENTENCE("contains"),
                                   INVAR_SENTENCE("dependentRequired"),
                                   INVAR_SENTENCE("dependentSchemas"),
                                   INVAR_SENTENCE("minProperties"),
                                   INVAR_SENTENCE("maxProperties")};
#undef INVAR_SENTENCE

constexpr const char* kSomeFault =
    "the answer does not follow the JSON schema where it is checked at its end";
constexpr const char* kUncheckable =
    "the answer cannot be checked against the JSON schema: it has a name twice, or takes more "
    "steps than there are";

bool is_checked_here(std::string_view word) {
  return std::ranges::any_of(kSentences, [&](const Sentence& one) { return one.word == word; });
}

}  // namespace

// Each returns the word that the value does not follow, or null.
class SchemaCheck::Visit {
 public:
  explicit Visit(const SchemaReferences& references)
      : references_(references), language_(std::make_shared<Budget>(kSteps)) {}

  const char* fault(const Value& schema, const Value& value) {
    if (++depth_ > kMostLevels) fail_usage("it refers to itself too often");
    language_.budget().spend(1);
    const char* word = nullptr;
    if (schema == Value(false)) word = "false";
    if (schema.is_object())
      for (const auto check :
           {&Visit::any, &Visit::combined, &Visit::scalar, &Visit::array, &Visit::object})
        if (!word) word = (this->*check)(schema, value);
    --depth_;
    return word;
  }

 private:
  static constexpr int64_t kSteps = 500'000;
  static constexpr int kMostLevels = 1000;

  bool follows(const Value& schema, const Value& value) { return !fault(schema, value); }

  const char* any(const Value& schema, const Value& value) {
    if (const Value* type = schema.find("type")) {
      const bool is_null =
          value.is_null() && schema.find("nullable") && *schema.find("nullable") == Value(true);
      const auto fits = [&](const Value& one) {
        return one.is_string() && is_of_type(value, one.as_string());
      };
      const bool is_one =
          type->is_array() ? std::ranges::any_of(type->as_array(), fits) : fits(*type);
      if (!is_one && !is_null) return "type";
    }
    if (const Value* values = schema.find("enum"); values && !has(*values, value)) return "enum";
    if (const Value* one = schema.find("const"); one && !is_same(*one, value)) return "const";
    if (const Value* values = schema.find(kExcluded); values && has(*values, value)) return "not";
    return nullptr;
  }

  // Null where the value follows an option; else a word of one's that a grammar does not hold to,
  // or `word`.
  const char* none_of(const Value& options, const Value& value, const char* word) {
    const char* found = nullptr;
    for (const Value& option : options.as_array()) {
      const char* fault_of_option = fault(option, value);
      if (!fault_of_option) return nullptr;
      if (!found && is_checked_here(fault_of_option)) found = fault_of_option;
    }
    return found ? found : word;
  }

  const char* combined(const Value& schema, const Value& value) {
    if (const Value* ref = schema.find("$ref"))
      if (const char* word = fault(references_.resolve(*ref), value)) return word;
    if (const Value* all = schema.find("allOf"))
      for (const Value& each : all->as_array())
        if (const char* word = fault(each, value)) return word;
    const Value *some = schema.find("anyOf"), *one = schema.find("oneOf");
    if (const char* word = some ? none_of(*some, value, "anyOf") : nullptr) return word;
    if (const char* word = one ? none_of(*one, value, "oneOf") : nullptr) return word;
    if (const Value* other = schema.find("not"); other && follows(*other, value)) return "not";
    if (const Value* condition = schema.find("if")) {
      const Value* branch = schema.find(follows(*condition, value) ? "then" : "else");
      if (branch && !follows(*branch, value)) return "if";
    }
    return nullptr;
  }

  static bool is_below(const Value& schema, const char* word, double count) {
    const Value* bound = schema.find(word);
    return bound && bound->is_number() && count < bound->as_number();
  }
  static bool is_above(const Value& schema, const char* word, double count) {
    const Value* bound = schema.find(word);
    return bound && bound->is_number() && count > bound->as_number();
  }

  const char* scalar(const Value& schema, const Value& value) {
    if (value.is_number()) return number(schema, value.as_number());
    if (!value.is_string()) return nullptr;
    const double length = characters(value.as_string());
    if (is_below(schema, "minLength", length)) return "minLength";
    if (is_above(schema, "maxLength", length)) return "maxLength";
    for (const std::string& pattern : texts_of(schema, "pattern"))
      if (!matches_pattern(pattern, value.as_string(), Match::anywhere, language_))
        return "pattern";
    for (const std::string& grammar : texts_of(schema, kLark))
      if (!follows_grammar(grammar, value.as_string())) return kLark;
    for (const std::string& format : texts_of(schema, "format")) {
      const std::string* known = format_pattern(format);
      if (known && !matches_pattern(*known, value.as_string(), Match::whole, language_))
        return "format";
    }
    return nullptr;
  }

  bool follows_grammar(const std::string& grammar, const std::string& text) const {
    Language language(language_.shared_budget());
    language.finish(add_lark(language, grammar, {Characters::Spelling::plain}));
    return is_in(language, text);
  }

  // One, or those of a plain schema.
  static std::vector<std::string> texts_of(const Value& schema, const char* word) {
    std::vector<std::string> texts;
    const Value* found = schema.find(word);
    if (found && found->is_string()) texts.push_back(found->as_string());
    if (found && found->is_array())
      for (const Value& one : found->as_array()) texts.push_back(one.as_string());
    return texts;
  }

  static const char* number(const Value& schema, double value) {
    if (is_below(schema, "minimum", value)) return "minimum";
    if (is_above(schema, "maximum", value)) return "maximum";
    const Value *low = schema.find("exclusiveMinimum"), *high = schema.find("exclusiveMaximum");
    if (low && low->is_number() && value <= low->as_number()) return "exclusiveMinimum";
    if (high && high->is_number() && value >= high->as_number()) return "exclusiveMaximum";
    const Value* multiple = schema.find("multipleOf");
    if (!multiple || !multiple->is_number() || multiple->as_number() <= 0) return nullptr;
    const double times = value / multiple->as_number();
    return std::abs(times - std::round(times)) > 1e-9 * std::max(1.0, std::abs(times))
               ? "multipleOf"
               : nullptr;
  }

  const char* array(const Value& schema, const Value& value) {
    if (!value.is_array()) return nullptr;
    const json::Array& items = value.as_array();
    const auto count = static_cast<double>(items.size());
    if (is_below(schema, "minItems", count)) return "minItems";
    if (is_above(schema, "maxItems", count)) return "maxItems";
    if (schema.find("uniqueItems") == nullptr || *schema.find("uniqueItems") == Value(false) ||
        are_unique(items)) {
      return named_items(schema, items);
    }
    return "uniqueItems";
  }

  const char* named_items(const Value& schema, const json::Array& items) {
    const Value *prefix = schema.find("prefixItems"), *rest = schema.find("items");
    if (rest && rest->is_array()) prefix = rest, rest = schema.find("additionalItems");
    const size_t named = prefix && prefix->is_array() ? prefix->as_array().size() : 0;
    for (size_t i = 0; i < items.size(); ++i) {
      const Value* one = i < named ? &prefix->as_array()[i] : rest;
      if (const char* word = one ? fault(*one, items[i]) : nullptr) return word;
    }
    const Value* contained = schema.find("contains");
    if (!contained) return nullptr;
    const auto found = static_cast<double>(
        std::ranges::count_if(items, [&](const Value& item) { return follows(*contained, item); }));
    const bool is_none = found == 0 && !schema.find("minContains");
    return is_none || is_below(schema, "minContains", found) ||
                   is_above(schema, "maxContains", found)
               ? "contains"
               : nullptr;
  }

  const char* object(const Value& schema, const Value& value) {
    if (!value.is_object()) return nullptr;
    const auto count = static_cast<double>(value.as_object().size());
    if (is_below(schema, "minProperties", count)) return "minProperties";
    if (is_above(schema, "maxProperties", count)) return "maxProperties";
    if (const Value* names = schema.find("required"); names && !has_all(*names, value))
      return "required";
    for (const auto& [name, member] : value.as_object())
      if (const char* word = property(schema, name, member)) return word;
    return dependent(schema, value);
  }

  static bool has_all(const Value& names, const Value& value) {
    return !names.is_array() || std::ranges::all_of(names.as_array(), [&](const Value& name) {
      return name.is_string() && value.find(name.as_string());
    });
  }

  const char* property(const Value& schema, const std::string& name, const Value& member) {
    bool is_named = false;
    if (const Value* names = schema.find("propertyNames"); names && !follows(*names, name))
      return "propertyNames";
    const Value* properties = schema.find("properties");
    if (const Value* own = properties ? properties->find(name) : nullptr) {
      is_named = true;
      if (const char* word = fault(*own, member)) return word;
    }
    if (const Value* patterns = schema.find("patternProperties"); patterns && patterns->is_object())
      for (const auto& [pattern, one] : patterns->as_object()) {
        if (!matches_pattern(pattern, name, Match::anywhere, language_)) continue;
        is_named = true;
        if (const char* word = fault(one, member)) return word;
      }
    const Value* more = schema.find("additionalProperties");
    return more && !is_named ? fault(*more, member) : nullptr;
  }

  const char* dependent(const Value& schema, const Value& value) {
    if (const Value* all = schema.find("dependentRequired"); all && all->is_object())
      for (const auto& [name, names] : all->as_object())
        if (value.find(name) && !has_all(names, value)) return "dependentRequired";
    if (const Value* all = schema.find("dependentSchemas"); all && all->is_object())
      for (const auto& [name, one] : all->as_object())
        if (value.find(name) && !follows(one, value)) return "dependentSchemas";
    return nullptr;
  }

  const SchemaReferences& references_;
  Language language_;  // its budget is that of all patterns
  int depth_ = 0;
};

bool SchemaCheck::follows(const Value& schema, const Value& value) const {
  return !Visit(references_).fault(schema, value);
}

std::optional<UniqueItems> SchemaCheck::unique_items() const {
  if (!has_unique_items(root_)) return std::nullopt;
  return UniqueItems(root_, references_);
}

const char* SchemaCheck::fault_of(std::string_view answer) const {
  try {
    const char* word = Visit(references_).fault(root_, json::parse(answer, "the answer"));
    if (!word) return nullptr;
    for (const Sentence& one : kSentences)
      if (one.word == word) return one.sentence;
    return kSomeFault;
  } catch (const Error&) {
    return kUncheckable;
  }
}

bool SchemaCheck::is_fault(std::string_view sentence) {
  return sentence == kSomeFault || sentence == kUncheckable ||
         std::ranges::any_of(kSentences,
                             [&](const Sentence& one) { return one.sentence == sentence; });
}

}  // namespace invar::grammar
