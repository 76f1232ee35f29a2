#include "frontend/jinja/value.h"

#include <algorithm>

#include <fmt/format.h>

namespace invar::jinja {

void fault(const std::string& message) {
  throw Fault(message);
}

void fault_undefined(const Undefined& undefined) {
  fault(undefined.name.empty() ? "a value is undefined" : undefined.name + " is undefined");
}

namespace {

int depth_of(const Value& value) {
  if (const Sequence* sequence = value.as_sequence()) return sequence->depth;
  if (const Dict* dict = value.as_dict()) return dict->depth;
  return 0;
}

int checked_depth(int of_children) {
  if (of_children >= Value::kMaxDepth)
    fault(fmt::format("lists and dicts are nested deeper than {} levels", Value::kMaxDepth));
  return of_children + 1;
}

}  // namespace

Value Value::sequence(SequenceKind kind, Items items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  Value value;
  value.data_ =
      std::make_shared<const Sequence>(Sequence{kind, std::move(items), checked_depth(depth)});
  return value;
}

Value Value::safe(const std::string& text) {
  Value value(text);
  value.safe_ = true;
  return value;
}

Value Value::dict(std::vector<Pair> pairs, bool distinct) {
  int depth = 0;
  for (const auto& [key, value] : pairs) {
    if (depth_of(key) > 0 && !(key.as_sequence() && key.as_sequence()->kind == SequenceKind::tuple))
      fault(fmt::format("a {} cannot be the key of a dict", key.type_name()));
    depth = std::max({depth, depth_of(key), depth_of(value)});
  }
  if (!distinct) {
    std::vector<Pair> kept;
    for (Pair& pair : pairs) {
      const auto old = std::find_if(kept.begin(), kept.end(),
                                    [&](const Pair& p) { return p.first == pair.first; });
      if (old == kept.end())
        kept.push_back(std::move(pair));
      else
        old->second = std::move(pair.second);
    }
    pairs = std::move(kept);
  }
  Value value;
  value.data_ = std::make_shared<const Dict>(Dict{std::move(pairs), checked_depth(depth)});
  return value;
}

Value Value::from_json(const json::Value& value) {
  if (value.is_null()) return nullptr;
  if (value.is_bool()) return value.as_bool();
  if (value.is_integer() && value.to_integer()) return value.as_integer();
  if (value.is_number()) return value.as_number();
  if (value.is_string()) return value.as_string();
  if (value.is_array()) {
    Items items;
    for (const json::Value& item : value.as_array()) items.push_back(from_json(item));
    return list(std::move(items));
  }
  std::vector<Pair> pairs;
  for (const auto& [key, member] : value.as_object()) pairs.emplace_back(key, from_json(member));
  return dict(std::move(pairs), true);
}

namespace {

template <typename T, typename Data>
T* shared(const Data& data) {
  const auto* pointer = std::get_if<std::shared_ptr<T>>(&data);
  return pointer ? pointer->get() : nullptr;
}

}  // namespace

const std::string* Value::as_string() const {
  return shared<const std::string>(data_);
}
const Sequence* Value::as_sequence() const {
  return shared<const Sequence>(data_);
}
const Dict* Value::as_dict() const {
  return shared<const Dict>(data_);
}
Namespace* Value::as_namespace() const {
  return shared<Namespace>(data_);
}
Loop* Value::as_loop() const {
  return shared<Loop>(data_);
}
const Callable* Value::as_callable() const {
  return shared<const Callable>(data_);
}

std::optional<int64_t> Value::as_integer() const {
  if (const bool* truth = std::get_if<bool>(&data_)) return *truth;
  if (const int64_t* integer = std::get_if<int64_t>(&data_)) return *integer;
  return std::nullopt;
}
std::optional<double> Value::as_float() const {
  if (const double* number = std::get_if<double>(&data_)) return *number;
  return std::nullopt;
}
std::optional<double> Value::as_number() const {
  if (const auto integer = as_integer()) return static_cast<double>(*integer);
  return as_float();
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (const auto integer = as_integer()) return *integer != 0;
  if (const auto number = as_float()) return *number != 0;
  if (const std::string* text = as_string()) return !text->empty();
  if (const Dict* dict = as_dict()) return !dict->pairs.empty();
  if (const Sequence* sequence = as_sequence())
    return sequence->kind == SequenceKind::iterator || !sequence->items.empty();
  return true;
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {"undefined", "NoneType", "bool",    "int",
                                           "float",     "str",      "",        "dict",
                                           "Namespace", "loop",     "callable"};
  static constexpr const char* kSequences[] = {"list",        "tuple",      "range",    "dict_keys",
                                               "dict_values", "dict_items", "generator"};
  if (const Sequence* sequence = as_sequence()) return kSequences[static_cast<int>(sequence->kind)];
  return kNames[data_.index()];
}

bool Value::operator==(const Value& other) const {
  if (as_number() && other.as_number()) return compare(other) == 0;
  if (data_.index() != other.data_.index()) return false;
  if (is_undefined() || is_none()) return true;
  if (const std::string* text = as_string()) return *text == *other.as_string();
  if (const Sequence* sequence = as_sequence()) {
    const Sequence* with = other.as_sequence();
    if (sequence->kind != with->kind) return false;
    if (sequence->kind == SequenceKind::iterator) return sequence == with;
    return sequence->items == with->items;
  }
  if (const Dict* dict = as_dict()) {
    if (dict->pairs.size() != other.as_dict()->pairs.size()) return false;
    return std::all_of(dict->pairs.begin(), dict->pairs.end(), [&](const Pair& pair) {
      const Value* found = other.find(pair.first);
      return found && *found == pair.second;
    });
  }
  return same_as(other);
}

int Value::compare(const Value& other) const {
  if (const auto a = as_integer(), b = other.as_integer(); a && b) return (*a > *b) - (*a < *b);
  if (as_number() && other.as_number()) {
    // A long double holds every 64-bit integer. A NaN is neither less nor equal.
    const auto wide = [](const Value& v) {
      return v.as_integer() ? static_cast<long double>(*v.as_integer()) : *v.as_float();
    };
    const long double a = wide(*this), b = wide(other);
    return a == b ? 0 : a < b ? -1 : 1;
  }
  if (as_string() && other.as_string()) {
    const int order = as_string()->compare(*other.as_string());  // UTF-8 sorts as code points do
    return (order > 0) - (order < 0);
  }
  const Sequence *a = as_sequence(), *b = other.as_sequence();
  if (a && b && a->kind == b->kind && a->kind <= SequenceKind::tuple) {
    for (size_t i = 0; i < std::min(a->items.size(), b->items.size()); ++i)
      if (!(a->items[i] == b->items[i])) return a->items[i].compare(b->items[i]);
    return (a->items.size() > b->items.size()) - (a->items.size() < b->items.size());
  }
  for (const Value* value : {this, &other})
    if (value->is_undefined()) fault_undefined(*value->as_undefined());
  fault(fmt::format("a {} and a {} have no order", type_name(), other.type_name()));
}

bool Value::same_as(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  return std::visit(
      [&](const auto& mine) {
        using T = std::decay_t<decltype(mine)>;
        if constexpr (std::is_same_v<T, None>)
          return true;
        else if constexpr (std::is_same_v<T, Undefined>)
          return false;
        else
          return mine == std::get<T>(other.data_);
      },
      data_);
}

const Value* Value::find(const Value& key) const {
  const Dict* dict = as_dict();
  if (!dict) return nullptr;
  for (const auto& [name, value] : dict->pairs)
    if (name == key) return &value;
  return nullptr;
}

}  // namespace invar::jinja
