#include "frontend/argument_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace invar {

namespace {

class JsonObject final : public ArgumentReader {
 public:
  size_t read(std::string_view text, std::string& json) override {
    const size_t end = scan_.end_in(text);
    over_ = end > 0;
    const size_t taken = over_ ? end : text.size();
    json += text.substr(0, taken);
    return taken;
  }

 private:
  BracketScan scan_;
};

}  // namespace

size_t BracketScan::end_in(std::string_view text) {
  const bool is_python = of_ == Of::python;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (escaped_) {
      escaped_ = false;
    } else if (quote_) {
      escaped_ = c == '\\';
      if (c == quote_) quote_ = 0;
    } else if (c == '"' || (is_python && c == '\'')) {
      quote_ = c;
    } else if (c == '{' || c == '[' || (is_python && c == '(')) {
      ++depth_;
    } else if ((c == '}' || c == ']' || (is_python && c == ')')) && --depth_ == 0) {
      return i + 1;
    }
  }
  return 0;
}

void append_escaped(std::string_view piece, std::string& json) {
  for (const char c : piece) {
    if (c == '"' || c == '\\')
      json += '\\', json += c;
    else if (c == '\n')
      json += "\\n";
    else if (c == '\t')
      json += "\\t";
    else if (c == '\r')
      json += "\\r";
    else if (static_cast<unsigned char>(c) < 0x20)
      json += fmt::format("\\u{:04x}", c);
    else
      json += c;
  }
}

std::unique_ptr<ArgumentReader> read_json_object() {
  return std::make_unique<JsonObject>();
}

// Behind each bracket and before each comma the text can be closed.
json::Value whole_part(std::string_view text) {
  std::string closers;  // of the brackets that are open, the innermost last
  size_t place = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '{' || c == '[')) {
      closers += c == '{' ? '}' : ']';
      place = i + 1;
    } else if (!in_string && (c == '}' || c == ']') && !closers.empty()) {
      closers.pop_back();
      place = i + 1;
    } else if (!in_string && c == ',') {
      place = i;
    }
  }
  std::ranges::reverse(closers);
  for (const std::string& whole :
       {std::string(text), std::string(text.substr(0, place)) + closers}) {
    try {
      json::Value value = json::parse(whole, "arguments");
      if (value.is_object()) return value;
    } catch (const Error&) {
    }
  }
  return json::Object();
}

}  // namespace invar
