#include "frontend/nested_tags.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "frontend/argument_reader.h"
#include "frontend/front_reader.h"

namespace invar {

namespace {

constexpr int kMostNested = 16;
using Children = std::vector<std::pair<std::string, std::string_view>>;

// Where the value that `text` begins with ends, whose own tags may stand in it; npos: nowhere.
size_t end_of_child(std::string_view text, std::string_view open, std::string_view close) {
  size_t at = 0, end = text.find(close);
  for (int opened = 0; end != text.npos;) {
    const size_t again = text.substr(at, end - at).find(open);
    if (again != text.npos) {
      ++opened;
      at += again + open.size();
      continue;
    }
    if (opened-- == 0) return end;
    at = end + close.size();
    end = text.find(close, at);
  }
  return text.npos;
}

// The tags that `text` is; nothing where it is more or less.
std::optional<Children> children_of(const TagStyle& style, std::string_view text) {
  Children children;
  for (skip_spaces(text); !text.empty(); skip_spaces(text)) {
    const size_t name_end = text.find(style.key_end, style.key.size());
    if (!text.starts_with(style.key) || name_end == text.npos) return std::nullopt;
    const std::string name(text.substr(style.key.size(), name_end - style.key.size()));
    text.remove_prefix(name_end + style.key_end.size());
    const std::string close = style.value_end_of(name);
    const size_t end = end_of_child(text, style.key_tag(name), close);
    if (end == text.npos) return std::nullopt;
    children.emplace_back(name, text.substr(0, end));
    text.remove_prefix(end + close.size());
  }
  return children;
}

bool is_of(const json::Value* schema, const char* kind) {
  const json::Value* type = schema ? schema->find("type") : nullptr;
  if (type && type->is_array()) return std::ranges::count(type->as_array(), json::Value(kind)) > 0;
  return type && *type == json::Value(kind);
}

// The one option of a choice that is not null; null: there are more, or none.
const json::Value* only_option(const json::Value& schema) {
  const json::Value* only = nullptr;
  for (const char* word : {"anyOf", "oneOf"}) {
    const json::Value* options = schema.find(word);
    if (!options || !options->is_array()) continue;
    for (const json::Value& option : options->as_array()) {
      const json::Value* type = option.find("type");
      if (type && *type == json::Value("null")) continue;
      if (only) return nullptr;
      only = &option;
    }
  }
  return only;
}

// Where references lead, and choices of one thing or null.
const json::Value* followed(const json::Value* schema, const json::Value& root) {
  for (int steps = 0; schema && steps < kMostNested; ++steps) {
    const json::Value* reference = schema->find("$ref");
    const json::Value* next = reference && reference->is_string()
                                  ? referred(root, reference->as_string())
                                  : only_option(*schema);
    if (!next) break;
    schema = next;
  }
  return schema;
}

}  // namespace

const json::Value* referred(const json::Value& root, std::string_view pointer) {
  const json::Value* found = pointer.starts_with('#') ? &root : nullptr;
  while (found && pointer.find('/') != pointer.npos) {
    pointer.remove_prefix(pointer.find('/') + 1);
    found = found->find(pointer.substr(0, pointer.find('/')));
  }
  return found;
}

json::Value value_of(std::string_view text) {
  if (text == "True" || text == "False") return text == "True";
  if (text == "None") return nullptr;
  try {
    return json::parse(text, "a parameter");
  } catch (const Error&) {
    return text;
  }
}

json::Value nested_value(const TagStyle& style, std::string_view text, const json::Value* schema,
                         const json::Value& root, int depth) {
  schema = followed(schema, root);
  std::string_view front = text;
  skip_spaces(front);
  const bool has_tags = depth < kMostNested && front.starts_with(style.key);
  const std::optional<Children> children = has_tags ? children_of(style, front) : std::nullopt;
  if (!children) {
    if (schema && may_be_text(*schema, root)) return text;
    if (front.empty() && is_of(schema, "array")) return json::Array();
    if (front.empty() && is_of(schema, "object")) return json::Object();
    return value_of(text);
  }
  const auto member = [&](const char* word) { return schema ? schema->find(word) : nullptr; };
  const auto is_item = [](const auto& child) { return child.first == "item"; };
  if (!is_of(schema, "object") && std::ranges::all_of(*children, is_item)) {
    json::Array items;
    for (const auto& [name, value] : *children)
      items.push_back(nested_value(style, value, member("items"), root, depth + 1));
    return items;
  }
  json::Value object = json::Object();
  const json::Value* properties = member("properties");
  for (const auto& [name, value] : *children)
    object.set(name, nested_value(style, value, properties ? properties->find(name) : nullptr, root,
                                  depth + 1));
  return object;
}

}  // namespace invar
