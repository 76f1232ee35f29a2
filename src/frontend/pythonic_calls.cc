#include "frontend/pythonic_calls.h"

#include <cctype>
#include <optional>

#include "base/error.h"

namespace invar {

namespace {

constexpr int kMostNested = 64;

// Literals and names at the front of a text. Nothing: there is none, or its end is not there.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  bool take(std::string_view word) {
    skip_spaces();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  bool is_empty() {
    skip_spaces();
    return text_.empty();
  }

  // Letters, digits, underscores and points; empty where there are none.
  std::string name() {
    skip_spaces();
    size_t size = 0;
    while (size < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[size])) ||
                                   text_[size] == '_' || text_[size] == '.'))
      ++size;
    std::string word(text_.substr(0, size));
    text_.remove_prefix(size);
    return word;
  }

  std::optional<json::Value> value(int depth = 0) {
    skip_spaces();
    if (text_.empty() || depth > kMostNested) return std::nullopt;
    const char first = text_[0];
    if (first == '"' || first == '\'') return quoted();
    if (take("[") || take("(")) return list(first == '[' ? "]" : ")", depth);
    if (take("{")) return dict(depth);
    return word();
  }

 private:
  void skip_spaces() {
    text_.remove_prefix(std::min(text_.find_first_not_of(" \t\r\n"), text_.size()));
  }

  // As JSON reads it, but for the quotes and \'.
  std::optional<json::Value> quoted() {
    const char quote = text_[0];
    std::string inner = "\"";
    size_t i = 1;
    for (; i < text_.size() && text_[i] != quote; ++i) {
      if (text_[i] == '\\' && i + 1 < text_.size()) {
        ++i;
        if (text_[i] != '\'') inner += '\\';
        inner += text_[i];
      } else if (text_[i] == '"') {
        inner += "\\\"";
      } else if (text_[i] == '\n') {
        inner += "\\n";
      } else {
        inner += text_[i];
      }
    }
    if (i >= text_.size()) return std::nullopt;
    text_.remove_prefix(i + 1);
    return parsed(inner + '"');
  }

  std::optional<json::Value> list(std::string_view end, int depth) {
    json::Array items;
    while (!take(end)) {
      auto item = value(depth + 1);
      if (!item) return std::nullopt;
      items.push_back(std::move(*item));
      if (!take(",") && !text_.starts_with(end)) return std::nullopt;
    }
    return items;
  }

  std::optional<json::Value> dict(int depth) {
    json::Value members = json::Object();
    while (!take("}")) {
      const auto key = value(depth + 1);
      if (!key || !key->is_string() || !take(":")) return std::nullopt;
      auto member = value(depth + 1);
      if (!member) return std::nullopt;
      members.set(key->as_string(), std::move(*member));
      if (!take(",") && !text_.starts_with('}')) return std::nullopt;
    }
    return members;
  }

  // A number or a constant, whose end is what stands behind it.
  std::optional<json::Value> word() {
    const size_t size = text_.find_first_of(" \t\r\n,)]}:=");
    if (size == text_.npos || size == 0) return std::nullopt;
    const std::string_view found = text_.substr(0, size);
    text_.remove_prefix(size);
    if (found == "True" || found == "true") return json::Value(true);
    if (found == "False" || found == "false") return json::Value(false);
    if (found == "None" || found == "null") return json::Value();
    return parsed(found);
  }

  static std::optional<json::Value> parsed(std::string_view text) {
    try {
      return json::parse(text, "a literal");
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  std::string_view text_;
};

// Arguments up to the closing bracket; false: they end before it.
bool read_keywords(LiteralReader& reader, json::Value& arguments) {
  while (!reader.take(")")) {
    const std::string key = reader.name();
    if (key.empty() || !reader.take("=")) return false;
    auto value = reader.value();
    if (!value) return false;
    arguments.set(key, std::move(*value));
    if (reader.take(",")) continue;
    return reader.take(")");
  }
  return true;
}

}  // namespace

void read_pythonic_calls(std::string_view text, bool is_cut, std::vector<ToolCall>& calls) {
  LiteralReader reader(text);
  std::vector<ToolCall> found;
  if (!reader.take("[")) return;
  while (!reader.take("]")) {
    ToolCall call{.name = reader.name(), .arguments = ""};
    const bool is_named = !call.name.empty() && reader.take("(");
    if (!is_named && !is_cut) return;
    if (!is_named) break;
    json::Value arguments = json::Object();
    const bool is_whole = read_keywords(reader, arguments);
    if (!is_whole && !is_cut) return;
    call.arguments = json::dump(arguments);
    if (!is_whole) call.arguments.pop_back();
    found.push_back(std::move(call));
    if (!is_whole) break;
    if (reader.take(",")) continue;
    if (reader.take("]")) break;
    if (!is_cut) return;
    break;
  }
  if (!is_cut && !reader.is_empty()) return;
  calls.insert(calls.end(), found.begin(), found.end());
}

}  // namespace invar
