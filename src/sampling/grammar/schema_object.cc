#include "sampling/grammar/schema_object.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "sampling/grammar/regex.h"
#include "sampling/grammar/schema_merge.h"
#include "sampling/grammar/schema_words.h"

namespace invar::grammar {

namespace {

using Expr = Language::Expr;
using json::Value;

// The properties that a schema names are written in its order, then the others in any.
class ObjectBuilder {
 public:
  ObjectBuilder(SchemaCompiler& compiler, const Value& schema)
      : compiler_(compiler), language_(compiler.language), schema_(schema) {}

  Expr build() {
    read_properties();
    read_required();
    read_names();
    add_others();
    if (properties_.empty()) return add_map();
    check_counts();
    return add_properties();
  }

 private:
  struct Property {
    std::string name;
    Value schema;
    bool is_required;
  };

  const Value* object_at(const char* word) const {
    const Value* value = schema_.find(word);
    if (value && !value->is_object())
      fail_usage("expected an object at {} of the JSON schema, found {}", word,
                 json::excerpt(*value));
    return value;
  }

  // The schema of properties that no word names: null where there is none.
  const Value* others() const {
    const Value* more = schema_.find("additionalProperties");
    return more ? more : schema_.find("unevaluatedProperties");
  }

  Value with_patterns(const std::string& name, Value schema) {
    if (const Value* patterns = object_at("patternProperties"))
      for (const auto& [pattern, more] : patterns->as_object())
        if (matches_pattern(pattern, name, Match::anywhere, language_))
          schema = both_schemas(schema, more, language_.budget());
    return schema;
  }
  bool has_pattern(const std::string& name) {
    const Value* patterns = object_at("patternProperties");
    return patterns &&
           std::any_of(patterns->as_object().begin(), patterns->as_object().end(),
                       [&](const auto& member) {
                         return matches_pattern(member.first, name, Match::anywhere, language_);
                       });
  }

  void add_property(const std::string& name, const Value& schema, bool is_required) {
    places_[name] = properties_.size();
    properties_.push_back({name, with_patterns(name, schema), is_required});
  }

  void read_properties() {
    if (const Value* properties = object_at("properties"))
      for (const auto& [name, schema] : properties->as_object()) add_property(name, schema, false);
  }

  void read_required() {
    const Value* required = schema_.find("required");
    if (!required) return;
    if (!required->is_array())
      fail_usage("expected a list at required of the JSON schema, found {}",
                 json::excerpt(*required));
    for (const Value& one : required->as_array()) {
      if (!one.is_string())
        fail_usage("expected a text at required of the JSON schema, found {}", json::excerpt(one));
      const auto at = places_.find(one.as_string());
      if (at != places_.end()) {
        properties_[at->second].is_required = true;
        continue;
      }
      const bool has = has_pattern(one.as_string());
      if (const Value* more = others(); more && *more == Value(false) && !has)
        compiler_.contradict(
            fmt::format("the JSON schema requires {}, which its additionalProperties exclude",
                        json::quoted(one.as_string())));
      add_property(one.as_string(), has || !others() ? Value(true) : *others(), true);
    }
  }

  // A list of names stands for properties; anything else is a rule for the names of the others.
  void read_names() {
    const Value* names = schema_.find("propertyNames");
    if (!names) return;
    const std::vector<Value> plain = compiler_.plain(*names);
    const bool are_listed =
        std::ranges::all_of(plain, [](const Value& one) { return one.find("enum"); });
    if (plain.size() == 1 && !are_listed) {
      key_ = string_rules(plain[0]);
      return;
    }
    if (!are_listed || plain.empty())
      fail_usage("expected propertyNames of the JSON schema as one schema of strings, found {}",
                 json::excerpt(*names));
    for (const Value& one : plain) add_listed(one.find("enum")->as_array());
    has_others_ = false;
  }
  void add_listed(const json::Array& names) {
    for (const Value& name : names)
      if (name.is_string() && !places_.contains(name.as_string()) && writes_others())
        add_property(name.as_string(), others() ? *others() : Value(true), false);
  }

  bool writes_others() const {
    const Value* more = others();
    if (more) return *more != Value(false);
    // Where properties are named, others are written only if the schema speaks of them.
    return !schema_.find("properties") || schema_.find("propertyNames");
  }

  // The names and values of what is not named.
  void add_others() {
    if (!has_others_) return;
    StringRules key = key_;
    for (const Property& property : properties_) key.excluded.push_back(property.name);
    const Value* patterns = object_at("patternProperties");
    if (patterns)
      for (const auto& [pattern, schema] : patterns->as_object()) {
        StringRules one = key;
        one.patterns.push_back(pattern);
        for (const auto& [other, unused] : patterns->as_object())
          if (other != pattern) one.excluded_patterns.push_back(other);
        others_.push_back(compiler_.text.member(compiler_.text.name(one), compiler_.add(schema)));
      }
    if (!writes_others() || (patterns && !others())) return;
    if (patterns)
      for (const auto& [pattern, unused] : patterns->as_object())
        key.excluded_patterns.push_back(pattern);
    const Expr value = others() ? compiler_.add(*others()) : compiler_.text.any();
    others_.push_back(compiler_.text.member(compiler_.text.name(key), value));
  }

  Expr add_map() {
    const int32_t low = schema_count(schema_, "minProperties", 0);
    const int32_t high = schema_count(schema_, "maxProperties", kEndless);
    if (low > 1) compiler_.check("minProperties");  // names may repeat
    const Expr other = language_.choice(others_);
    if (other == language_.nothing() || high == 0)
      return low == 0 ? language_.sequence({language_.text("{"), language_.text("}")})
                      : language_.nothing();
    return compiler_.text.list("{", "}", other, low, high);
  }

  void check_counts() {
    const auto required = std::count_if(properties_.begin(), properties_.end(),
                                        [](const Property& p) { return p.is_required; });
    low_ = schema_count(schema_, "minProperties", 0);
    const int32_t high = schema_count(schema_, "maxProperties", kEndless);
    const bool fits = high == kEndless || (others_.empty() && high >= std::ssize(properties_));
    if (low_ > std::max<int64_t>(required, 1)) compiler_.check("minProperties");
    if (!fits) compiler_.check("maxProperties");
  }

  // tails[i]: properties from i on, behind another.
  Expr add_properties() {
    const Expr comma = compiler_.text.comma(), other = language_.choice(others_);
    std::vector<Expr> members, options;
    for (const Property& property : properties_)
      members.push_back(compiler_.text.member(compiler_.text.name(property.name),
                                              compiler_.add(property.schema)));
    std::vector<Expr> tails(members.size() + 1);
    tails.back() = language_.repeat(language_.sequence({comma, other}), 0, kEndless);
    for (size_t i = members.size(); i-- > 0;) {
      const Expr member = language_.sequence({comma, members[i]});
      tails[i] = language_.sequence(
          {properties_[i].is_required ? member : language_.optional(member), tails[i + 1]});
    }
    size_t i = 0;
    for (bool may_skip = true; may_skip && i < members.size(); ++i) {
      options.push_back(language_.sequence({members[i], tails[i + 1]}));
      may_skip = !properties_[i].is_required;
    }
    const bool may_have_others = i == members.size() && !properties_.back().is_required;
    const bool may_be_empty = may_have_others && low_ == 0;
    if (may_have_others) options.push_back(language_.sequence({other, tails.back()}));
    const Expr body = language_.sequence({language_.choice(options), compiler_.text.space()});
    return language_.sequence({language_.text("{"), compiler_.text.space(),
                               may_be_empty ? language_.optional(body) : body,
                               language_.text("}")});
  }

  SchemaCompiler& compiler_;
  Language& language_;
  const Value& schema_;
  std::vector<Property> properties_;
  std::map<std::string, size_t> places_;
  StringRules key_;
  bool has_others_ = true;
  int32_t low_ = 0;  // properties at least
  std::vector<Expr> others_;
};

}  // namespace

StringRules string_rules(const Value& schema) {
  StringRules rules{.low = schema_count(schema, "minLength", 0),
                    .high = schema_count(schema, "maxLength", kEndless)};
  if (const Value* patterns = schema.find("pattern"))
    for (const Value& pattern : patterns->as_array()) rules.patterns.push_back(pattern.as_string());
  if (const Value* grammars = schema.find(kLark))
    for (const Value& grammar : grammars->as_array()) rules.grammars.push_back(grammar.as_string());
  if (const Value* values = schema.find(kExcluded))
    for (const Value& value : values->as_array())
      if (value.is_string()) rules.excluded.push_back(value.as_string());
  if (const Value* formats = schema.find("format"))
    for (const Value& format : formats->as_array())
      if (format_pattern(format.as_string())) rules.formats.push_back(format.as_string());
  return rules;
}

Expr add_object(SchemaCompiler& compiler, const Value& schema) {
  return ObjectBuilder(compiler, schema).build();
}

}  // namespace invar::grammar
