// Arguments as Gemma 4 writes them: {KEY:VALUE,...}, where texts stand between marks as they are.
#include <algorithm>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/argument_reader.h"
#include "frontend/front_reader.h"
#include "frontend/thoughts.h"

namespace invar {

namespace {

constexpr std::string_view kQuoteMark = "<|\"|>", kLiteralEnds = ",}]";
constexpr size_t kMostOpen = 64;

// As JSON. What is no literal is a text.
std::string json_literal(std::string_view word) {
  const size_t end = word.find_last_not_of(kGaps);
  word = word.substr(0, end == word.npos ? 0 : end + 1);
  for (const auto& [name, value] :
       {std::pair("True", "true"), std::pair("False", "false"), std::pair("None", "null")})
    if (word == name) return value;
  if (word.empty()) return "null";
  try {
    json::parse(word, "a literal");
    return std::string(word);
  } catch (const Error&) {
    return json::dump(json::Value(word));
  }
}

class MarkedObject final : public ArgumentReader {
 public:
  size_t read(std::string_view text, std::string& json) override {
    const std::string_view all = text;
    while (!over_ && step(text, json)) {
    }
    return all.size() - text.size();
  }

  // Closes what the answer has left open.
  void close(std::string_view rest, std::string& json) override {
    if (at_ == At::text) {
      append_escaped(rest, json);
      json += '"';
    }
    if (at_ == At::value && last_of(open_) == '{') json += json_literal(rest);
    end_in_midst(json);
  }

 private:
  enum class At { begin, key, value, text, behind };

  // False: more is needed.
  bool step(std::string_view& text, std::string& json) {
    if (at_ == At::text) return read_text(text, json);
    skip_spaces(text);
    if (text.empty()) return false;
    switch (at_) {
      case At::begin:
        return open(text, json);
      case At::key:
        return read_key(text, json);
      case At::value:
        return read_value(text, json);
      default:
        return read_behind(text, json);
    }
  }

  bool open(std::string_view& text, std::string& json) {
    if (open_.size() >= kMostOpen) {
      json += "null";
      return end_in_midst(json);
    }
    open_ += text[0];
    json += text[0];
    text.remove_prefix(1);
    at_ = last_of(open_) == '{' ? At::key : At::value;
    is_first_ = true;
    return true;
  }

  bool shut(std::string_view& text, std::string& json) {
    json += text[0];
    text.remove_prefix(1);
    open_.pop_back();
    is_first_ = false;
    at_ = At::behind;
    return over_ = open_.empty(), true;
  }

  // The text here is no part of an object.
  bool end_in_midst(std::string& json) {
    for (; !open_.empty(); open_.pop_back()) json += last_of(open_) == '{' ? '}' : ']';
    return over_ = true;
  }

  void separate(std::string& json) {
    if (!std::exchange(is_first_, false)) json += ", ";
  }

  // Where a name between marks ends; 0: there is none, npos: more has to come.
  static size_t end_of_quoted_key(std::string_view front) {
    if (front.size() < kQuoteMark.size() && kQuoteMark.starts_with(front)) return front.npos;
    if (!front.starts_with(kQuoteMark)) return 0;
    const size_t end = front.find(kQuoteMark, kQuoteMark.size());
    return end == front.npos ? end : end + kQuoteMark.size();
  }

  bool read_key(std::string_view& text, std::string& json) {
    if (text[0] == '}') return shut(text, json);
    const std::string_view front = text.substr(0, kMostOfName);
    const size_t behind = end_of_quoted_key(front), colon = front.find(':', behind),
                 odd = front.find_first_of("{}[],", behind);
    if (behind == front.npos || (colon == front.npos && odd == front.npos))
      return front.size() == kMostOfName && end_in_midst(json);
    if (odd < colon) return end_in_midst(json);
    std::string_view key = front.substr(0, colon);
    for (const std::string_view mark : {kQuoteMark, std::string_view("\"")})
      if (key.size() >= 2 * mark.size() && key.starts_with(mark) && key.ends_with(mark))
        key = key.substr(mark.size(), key.size() - 2 * mark.size());
    separate(json);
    json::append_quoted(json, key);
    json += ": ";
    text.remove_prefix(colon + 1);
    at_ = At::value;
    return true;
  }

  bool read_value(std::string_view& text, std::string& json) {
    const bool is_item = last_of(open_) == '[';
    if (is_item && text[0] == ']') return shut(text, json);
    if (text.size() < kQuoteMark.size() && kQuoteMark.starts_with(text)) return false;
    const bool is_text = text.starts_with(kQuoteMark), is_open = text[0] == '{' || text[0] == '[';
    const size_t end = is_text || is_open ? 0 : text.find_first_of(kLiteralEnds, looked_);
    if (end == text.npos) return looked_ = text.size(), false;
    looked_ = 0;
    if (is_item) separate(json);
    if (is_open) return open(text, json);
    if (is_text)
      json += '"';
    else
      json += json_literal(text.substr(0, end));
    text.remove_prefix(is_text ? kQuoteMark.size() : end);
    at_ = is_text ? At::text : At::behind;
    return true;
  }

  bool read_text(std::string_view& text, std::string& json) {
    const size_t end = text.find(kQuoteMark);
    const size_t shown = end == text.npos ? text.size() - beginning_of(kQuoteMark, text) : end;
    append_escaped(text.substr(0, shown), json);
    text.remove_prefix(shown);
    if (end == text.npos) return false;
    text.remove_prefix(kQuoteMark.size());
    json += '"';
    at_ = At::behind;
    return true;
  }

  bool read_behind(std::string_view& text, std::string& json) {
    const bool is_object = last_of(open_) == '{';
    if (text[0] == (is_object ? '}' : ']')) return shut(text, json);
    if (text[0] != ',') return end_in_midst(json);
    text.remove_prefix(1);
    at_ = is_object ? At::key : At::value;
    return true;
  }

  At at_ = At::begin;
  std::string open_;      // brackets
  bool is_first_ = true;  // nothing stands in the innermost one
  size_t looked_ = 0;     // bytes in which a word does not end
};

}  // namespace

std::unique_ptr<ArgumentReader> read_marked_object() {
  return std::make_unique<MarkedObject>();
}

}  // namespace invar
