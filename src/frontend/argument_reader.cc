#include "frontend/argument_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "frontend/thoughts.h"

namespace invar {

namespace {

constexpr std::string_view kGaps = " \t\r\n";
constexpr std::string_view kParameter = "<parameter=", kEndParameter = "</parameter>",
                           kBeforeEnd = "\n</parameter>", kEndFunction = "</function>";

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

// The schema of the function's parameters.
const json::Value* parameters_of(const json::Value& tools, std::string_view function) {
  if (!tools.is_array()) return nullptr;
  for (const json::Value& tool : tools.as_array()) {
    const json::Value* made = tool.find("function");
    const json::Value* name = made ? made->find("name") : nullptr;
    if (name && *name == json::Value(function)) return made->find("parameters");
  }
  return nullptr;
}

// What "#/a/b" names within `root`.
const json::Value* referred(const json::Value& root, std::string_view pointer) {
  const json::Value* found = pointer.starts_with('#') ? &root : nullptr;
  while (found && pointer.find('/') != pointer.npos) {
    pointer.remove_prefix(pointer.find('/') + 1);
    found = found->find(pointer.substr(0, pointer.find('/')));
  }
  return found;
}

// What a value may be.
struct Kinds {
  bool text = false, null = false;
};

Kinds kinds_of(const json::Value* schema, const json::Value& root, int depth = 0) {
  constexpr int kMostNested = 16;
  Kinds kinds;
  if (!schema || depth > kMostNested) return kinds;
  const auto add = [&](const Kinds& more) {
    kinds.text |= more.text;
    kinds.null |= more.null;
  };
  const auto each = [&](const char* name, auto take) {
    const json::Value* all = schema->find(name);
    for (const json::Value& one : all && all->is_array() ? all->as_array() : json::Array())
      take(one);
  };
  const auto name_type = [&](const json::Value& type) {
    add({.text = type == json::Value("string"), .null = type == json::Value("null")});
  };
  const auto name_value = [&](const json::Value& value) {
    add({.text = value.is_string(), .null = value.is_null()});
  };
  if (const json::Value* type = schema->find("type")) {
    name_type(*type);
    each("type", name_type);
    return kinds;
  }
  if (const json::Value* value = schema->find("const")) name_value(*value);
  each("enum", name_value);
  for (const char* name : {"anyOf", "oneOf", "allOf"})
    each(name, [&](const json::Value& one) { add(kinds_of(&one, root, depth + 1)); });
  if (const json::Value* ref = schema->find("$ref"); ref && ref->is_string())
    add(kinds_of(referred(root, ref->as_string()), root, depth + 1));
  return kinds;
}

Kinds kinds_of_parameter(const json::Value& tools, std::string_view function,
                         std::string_view parameter) {
  const json::Value* parameters = parameters_of(tools, function);
  const json::Value* properties = parameters ? parameters->find("properties") : nullptr;
  const json::Value* schema = properties ? properties->find(parameter) : nullptr;
  return schema ? kinds_of(schema, *parameters) : Kinds{.text = true};
}

// A value that need not be a text.
json::Value value_of(std::string_view text) {
  if (text == "True" || text == "False") return text == "True";
  if (text == "None") return nullptr;
  try {
    return json::parse(text, "a parameter");
  } catch (const Error&) {
    return text;
  }
}

class Parameters final : public ArgumentReader {
 public:
  Parameters(std::string name, const json::Value& tools) : name_(std::move(name)), tools_(tools) {}

  size_t read(std::string_view text, std::string& json) override {
    const std::string_view all = text;
    while (!over_ && (within_ ? read_value(text, json) : read_tag(text, json))) {
    }
    return all.size() - text.size();
  }

 private:
  // A mark between values; false: it is not there as a whole.
  bool read_tag(std::string_view& text, std::string& json) {
    text.remove_prefix(std::min(text.find_first_not_of(kGaps), text.size()));
    if (text.starts_with(kEndFunction)) {
      text.remove_prefix(kEndFunction.size());
      json += keys_.empty() ? "{}" : "}";
      return over_ = true;
    }
    if (kEndFunction.starts_with(text) || kParameter.starts_with(text)) return false;
    if (!text.starts_with(kParameter)) return over_ = true;
    const size_t end = text.substr(0, kMostOfName).find('>');
    if (end == text.npos) return text.size() >= kMostOfName && (over_ = true);
    key_ = text.substr(kParameter.size(), end - kParameter.size());
    text.remove_prefix(end + 1);
    const Kinds kinds = kinds_of_parameter(tools_, name_, key_);
    is_text_ = kinds.text;
    may_be_null_ = kinds.text && kinds.null;
    within_ = at_front_ = true;
    is_new_ = keys_.insert(key_).second;
    if (!is_new_) return true;
    json += keys_.size() == 1 ? "{" : ", ";
    json::append_quoted(json, key_);
    json += is_text_ && !may_be_null_ ? ": \"" : ": ";
    return true;
  }

  // What there is of a value; false: more is needed. A parameter that comes again is not shown.
  bool read_value(std::string_view& text, std::string& json) {
    if (text.empty()) return false;
    if (may_be_null_ && !settle_null(text, json)) return false;
    if (at_front_ && is_text_ && text.starts_with('\n')) text.remove_prefix(1);
    if (is_text_) at_front_ = false;
    const size_t end = text.find(kEndParameter, looked_);
    looked_ = 0;
    if (end == text.npos && !is_text_) {
      looked_ = text.size() - beginning_of(kEndParameter, text);
      return false;
    }
    const size_t held = std::max(beginning_of(kEndParameter, text), beginning_of(kBeforeEnd, text));
    std::string_view value = text.substr(0, end == text.npos ? text.size() - held : end);
    text.remove_prefix(end == text.npos ? value.size() : end + kEndParameter.size());
    if (end != text.npos && value.ends_with('\n')) value.remove_suffix(1);
    if (!is_text_ && value.starts_with('\n')) value.remove_prefix(1);
    within_ = end == text.npos;
    if (!is_new_) return !within_;
    if (is_text_)
      append_escaped(value, json);
    else
      json::append(json, value_of(value));
    if (is_text_ && !within_) json += '"';
    return !within_;
  }

  // Whether a value that may be a text or null is known to be one of them.
  bool settle_null(std::string_view text, std::string& json) {
    constexpr std::string_view kNull = "null", kWhole = "\nnull\n</parameter>";
    const size_t begin = text.starts_with('\n') ? 0 : 1;
    const std::string_view front = kWhole.substr(begin, text.size());
    const bool goes_on = text.size() < kWhole.size() - begin && text == front;
    const size_t end = text.find(kEndParameter);
    const std::string_view value = text.substr(0, std::min(end, text.size()));
    const size_t at = value.find_first_not_of(kGaps);
    const bool is_null = end != text.npos && at != value.npos &&
                         value.substr(at, kNull.size()) == kNull &&
                         value.find_first_not_of(kGaps, at + kNull.size()) == value.npos;
    if (goes_on && !is_null) return false;
    may_be_null_ = false;
    is_text_ = !is_null;
    if (is_text_ && is_new_) json += '"';
    return true;
  }

  std::string name_, key_;
  const json::Value& tools_;
  std::set<std::string> keys_;
  size_t looked_ = 0;  // bytes of a value that comes as a whole in which its end does not begin
  bool within_ = false, at_front_ = false, is_text_ = false, is_new_ = false;
  bool may_be_null_ = false;  // or a text, which nobody knows yet
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

std::unique_ptr<ArgumentReader> read_parameters(std::string name, const json::Value& tools) {
  return std::make_unique<Parameters>(std::move(name), tools);
}

// Behind each bracket and before each comma the text can be closed.
bool may_be_text(const json::Value& schema, const json::Value& root) {
  return kinds_of(&schema, root).text;
}

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
