#include "sampling/grammar/unique_items.h"

#include <algorithm>

namespace invar::grammar {

namespace {

using json::Value;

bool is_named(const Value& schema, const char* word) {
  const Value* found = schema.find(word);
  return found && *found == Value(true);
}

}  // namespace

void UniqueItems::read(std::string_view bytes) {
  for (const char byte : bytes)
    if (in_string_)
      read_in_string(byte);
    else
      read_outside(byte);
}

void UniqueItems::read_in_string(char byte) {
  write(byte);
  const bool ends = byte == '"' && !is_escaped_;
  is_escaped_ = byte == '\\' && !is_escaped_;
  if (!open_.empty() && open_.back().awaits_name) {
    if (ends)
      open_.back().awaits_name = false;
    else
      open_.back().name += byte;
  }
  if (ends) in_string_ = false;
}

void UniqueItems::read_outside(char byte) {
  if (byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t') return;
  if (byte == '"') in_string_ = true;
  if (byte == '[' || byte == '{') {
    write(byte);
    return open(byte == '[');
  }
  if (open_.empty()) return;
  if (byte == ']' || byte == '}') {
    open_.pop_back();
    return write(byte);
  }
  Open& innermost = open_.back();
  write(byte, byte == ',');
  if (byte != ',') return;
  if (innermost.is_unique) innermost.items.insert(std::exchange(innermost.item, {}));
  ++innermost.index;
  innermost.name.clear();
  innermost.awaits_name = !innermost.is_array;
}

void UniqueItems::open(bool is_array) {
  Open opened{.is_array = is_array, .schemas = schemas_here(), .awaits_name = !is_array};
  opened.is_unique = is_array && std::ranges::any_of(opened.schemas, [](const Value* schema) {
                       return is_named(*schema, "uniqueItems");
                     });
  open_.push_back(std::move(opened));
}

void UniqueItems::write(char byte, bool structures) {
  for (Open& around : open_)
    if (around.is_unique && !(structures && &around == &open_.back())) around.item += byte;
}

// The schemas that the value which begins may have to follow.
UniqueItems::Schemas UniqueItems::schemas_here() const {
  Schemas all;
  if (open_.empty()) {
    add(*schema_, all);
    return all;
  }
  const Open& around = open_.back();
  for (const Value* schema : around.schemas)
    if (around.is_array) {
      const Value* named = schema->find("prefixItems");
      const bool is_named = named && named->is_array() && around.index < named->as_array().size();
      if (is_named)
        add(named->as_array()[around.index], all);
      else if (const Value* items = schema->find("items"))
        add(*items, all);
    } else {
      const Value* properties = schema->find("properties");
      if (const Value* own = properties ? properties->find(around.name) : nullptr) add(*own, all);
      if (const Value* patterns = schema->find("patternProperties");
          patterns && patterns->is_object())
        for (const auto& [pattern, one] : patterns->as_object()) add(one, all);
      if (const Value* others = schema->find("additionalProperties")) add(*others, all);
    }
  return all;
}

// A schema, and those that it refers to or is made of.
void UniqueItems::add(const Value& schema, Schemas& all) const {
  constexpr size_t kMost = 64;
  if (!schema.is_object() || all.size() >= kMost || std::ranges::count(all, &schema) > 0) return;
  all.push_back(&schema);
  if (const Value* ref = schema.find("$ref")) add(references_->resolve(*ref), all);
  for (const char* word : {"allOf", "anyOf", "oneOf"})
    if (const Value* parts = schema.find(word); parts && parts->is_array())
      for (const Value& part : parts->as_array()) add(part, all);
  for (const char* word : {"then", "else"})
    if (const Value* part = schema.find("if") ? schema.find(word) : nullptr) add(*part, all);
}

void UniqueItems::for_repeats(FunctionRef<void(std::string_view, bool)> use) const {
  for (const Open& array : open_) {
    if (!array.is_unique) continue;
    for (auto known = array.items.lower_bound(array.item);
         known != array.items.end() && known->starts_with(array.item); ++known) {
      const bool ends_itself = std::string_view("\"}]").find(known->back()) != std::string::npos;
      const std::string_view rest = std::string_view(*known).substr(array.item.size());
      if (!rest.empty() || !ends_itself) use(rest, !ends_itself);
    }
  }
}

}  // namespace invar::grammar
