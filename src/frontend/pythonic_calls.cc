#include "frontend/pythonic_calls.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "frontend/argument_reader.h"

namespace invar {

namespace {

constexpr int kMostNested = 64;
constexpr std::string_view kWordEnds = " \t\r\n,)]}:=";
const BracketScan kBrackets(0, BracketScan::Of::python);

// An object as it grows; of members of one name the last one counts, at the first one's place.
class PythonDict {
 public:
  void set(const std::string& name, json::Value value) {
    const auto [found, is_new] = places_.try_emplace(name, members_.size());
    if (is_new)
      members_.emplace_back(name, std::move(value));
    else
      members_[found->second].second = std::move(value);
  }
  json::Value take() { return std::move(members_); }

 private:
  json::Object members_;
  std::unordered_map<std::string, size_t> places_;
};

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

  size_t rest() const { return text_.size(); }

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
    PythonDict members;
    while (!take("}")) {
      const auto key = value(depth + 1);
      if (!key || !key->is_string() || !take(":")) return std::nullopt;
      auto member = value(depth + 1);
      if (!member) return std::nullopt;
      members.set(key->as_string(), std::move(*member));
      if (!take(",") && !text_.starts_with('}')) return std::nullopt;
    }
    return members.take();
  }

  // A number or a constant, whose end is what stands behind it.
  std::optional<json::Value> word() {
    const size_t size = text_.find_first_of(kWordEnds);
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
bool take_keywords(LiteralReader& reader, PythonDict& arguments) {
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

class Keywords final : public ArgumentReader {
 public:
  size_t read(std::string_view text, std::string& json) override {
    const std::string_view all = text;
    while (!over_ && step(text, json)) {
    }
    return all.size() - text.size();
  }

 private:
  enum class At { key, value, text, end };

  // False: more is needed.
  bool step(std::string_view& text, std::string& json) {
    if (at_ == At::text) return read_text(text, json);
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (text.empty()) return false;
    if (at_ == At::value) return read_value(text, json);
    if (at_ == At::end && text[0] == ',') {
      text.remove_prefix(1);
      at_ = At::key;
      return true;
    }
    if (text[0] == ')') {
      text.remove_prefix(1);
      json += keys_.empty() ? "{}" : "}";
      return over_ = true;
    }
    if (at_ == At::end) return over_ = true;
    return read_key(text, json);
  }

  bool read_key(std::string_view& text, std::string& json) {
    const std::string_view front = text.substr(0, kMostOfName);
    LiteralReader reader(front);
    const std::string key = reader.name();
    if (reader.is_empty()) return front.size() == kMostOfName && (over_ = true);
    if (key.empty() || !reader.take("=") || !keys_.insert(key).second) return over_ = true;
    text.remove_prefix(front.size() - reader.rest());
    json += keys_.size() == 1 ? "{" : ", ";
    json::append_quoted(json, key);
    json += ": ";
    at_ = At::value;
    return true;
  }

  bool read_value(std::string_view& text, std::string& json) {
    if (text[0] == '"' || text[0] == '\'') {
      quote_ = text[0];
      text.remove_prefix(1);
      json += '"';
      at_ = At::text;
      return true;
    }
    return std::string_view("[({").find(text[0]) == text.npos ? read_word(text, json)
                                                              : read_brackets(text, json);
  }

  // A value that is no literal is a text.
  bool read_word(std::string_view& text, std::string& json) {
    const size_t size = text.find_first_of(kWordEnds, looked_);
    if (size == 0) return over_ = true;
    if (size == text.npos) {
      looked_ = text.size();
      return false;
    }
    const auto value = LiteralReader(text.substr(0, size + 1)).value();
    show(value ? *value : json::Value(text.substr(0, size)), size, text, json);
    return true;
  }

  // Values that are no literal show nothing, whatever comes.
  bool read_brackets(std::string_view& text, std::string& json) {
    if (is_none_) return false;
    const size_t from = std::exchange(looked_, text.size());
    const size_t size = brackets_.end_in(text.substr(from));
    if (size == 0) return false;
    const auto value = LiteralReader(text.substr(0, from + size)).value();
    is_none_ = !value;
    if (value) show(*value, from + size, text, json);
    return !is_none_;
  }

  void show(const json::Value& value, size_t size, std::string_view& text, std::string& json) {
    json::append(json, value);
    text.remove_prefix(size);
    at_ = At::end;
    looked_ = 0;
    brackets_ = kBrackets;
  }

  bool read_text(std::string_view& text, std::string& json) {
    const size_t size = std::min(text.find_first_of(std::string{quote_, '\\'}), text.size());
    append_escaped(text.substr(0, size), json);
    text.remove_prefix(size);
    if (text.empty()) return false;
    if (text[0] == quote_) {
      text.remove_prefix(1);
      json += '"';
      at_ = At::end;
      return true;
    }
    return read_escape(text, json);
  }

  // As JSON has them, and \'; a backslash before anything else is one.
  bool read_escape(std::string_view& text, std::string& json) {
    if (text.size() < 2) return false;
    size_t size = 2;
    if (text[1] == 'u') {
      while (size < 6 && size < text.size() &&
             std::isxdigit(static_cast<unsigned char>(text[size])))
        ++size;
      if (size < 6 && size == text.size()) return false;
    }
    const bool is_known =
        text[1] == 'u' ? size == 6 : std::string_view("\"\\/bfnrt").find(text[1]) != text.npos;
    if (text[1] == '\'') {
      json += '\'';
    } else if (is_known) {
      json += text.substr(0, size);
    } else {
      json += "\\\\";
      size = 1;
    }
    text.remove_prefix(size);
    return true;
  }

  At at_ = At::key;
  char quote_ = 0;
  std::set<std::string> keys_;
  // Bytes in which a value that comes as a whole does not end.
  size_t looked_ = 0;
  BracketScan brackets_ = kBrackets;
  bool is_none_ = false;  // its brackets are no literal
};

}  // namespace

std::unique_ptr<ArgumentReader> read_keywords() {
  return std::make_unique<Keywords>();
}

void read_pythonic_calls(std::string_view text, bool is_cut, std::vector<ToolCall>& calls) {
  LiteralReader reader(text);
  std::vector<ToolCall> found;
  if (!reader.take("[")) return;
  while (!reader.take("]")) {
    ToolCall call{.name = reader.name(), .arguments = ""};
    const bool is_named = !call.name.empty() && reader.take("(");
    if (!is_named && !is_cut) return;
    if (!is_named) break;
    PythonDict arguments;
    const bool is_whole = take_keywords(reader, arguments);
    if (!is_whole && !is_cut) return;
    call.arguments = json::dump(arguments.take());
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
