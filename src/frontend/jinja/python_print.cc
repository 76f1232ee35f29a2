// str, repr, json.dumps and the two ways to format.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "frontend/jinja/python_text.h"
#include "tokenizer/utf8.h"

namespace invar::jinja {

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, end - buffer);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(std::string(scientific.substr(e + 1)));
  if (exponent < -4 || exponent >= 16)
    return fmt::format("{}e{}{:02}", scientific.substr(0, e), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  const auto fixed =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string out(buffer, fixed - buffer);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

namespace {

// Before it is whole: values share their parts, so that few steps make much to print.
void expect_room(const std::string& out, size_t more = 0) {
  if (out.size() + more > kMostPrinted)
    fault(fmt::format("a value prints more than {} bytes", kMostPrinted));
}

void append_string_repr(std::string& out, std::string_view s) {
  expect_room(out, s.size());
  const bool has_single = s.find('\'') != s.npos, has_double = s.find('"') != s.npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out += quote;
  for (size_t i = 0; i < s.size(); i += utf8::length(s[i])) {
    const char32_t c = utf8::decode(s, i);
    if (c == static_cast<char32_t>(quote) || c == '\\')
      out += '\\', out += static_cast<char>(c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (text::is_printable(c))
      utf8::append(out, c);
    else
      out += c < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
             : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                           : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  }
  out += quote;
}

void append_repr(std::string& out, const Value& value);

void append_sequence(std::string& out, const Sequence& sequence) {
  static constexpr const char* kOpen[] = {"[",           "(", "", "dict_keys([", "dict_values([",
                                          "dict_items(["};
  if (sequence.kind == SequenceKind::iterator) fault("a generator cannot be printed; add | list");
  if (sequence.kind == SequenceKind::range) {
    const Items& items = sequence.items;
    const int64_t first = items.empty() ? 0 : *items[0].as_integer();
    const int64_t step =
        items.size() > 1 ? *items[1].as_integer() - *items[0].as_integer() : int64_t{1};
    const int64_t end = first + static_cast<int64_t>(items.size()) * step;
    out += step == 1 ? fmt::format("range({}, {})", first, end)
                     : fmt::format("range({}, {}, {})", first, end, step);
    return;
  }
  out += kOpen[static_cast<int>(sequence.kind)];
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i) out += ", ";
    append_repr(out, sequence.items[i]);
  }
  if (sequence.kind == SequenceKind::tuple && sequence.items.size() == 1) out += ',';
  out += sequence.kind == SequenceKind::list    ? "]"
         : sequence.kind == SequenceKind::tuple ? ")"
                                                : "])";
}

void append_repr(std::string& out, const Value& value) {
  expect_room(out);
  if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_bool()) {
    out += value.truth() ? "True" : "False";
  } else if (const auto integer = value.as_integer()) {
    out += std::to_string(*integer);
  } else if (const auto number = value.as_float()) {
    out += float_repr(*number);
  } else if (const std::string* s = value.as_string()) {
    append_string_repr(out, *s);
  } else if (const Sequence* sequence = value.as_sequence()) {
    append_sequence(out, *sequence);
  } else if (const Dict* dict = value.as_dict()) {
    out += '{';
    for (size_t i = 0; i < dict->pairs.size(); ++i) {
      if (i) out += ", ";
      append_repr(out, dict->pairs[i].first);
      out += ": ";
      append_repr(out, dict->pairs[i].second);
    }
    out += '}';
  } else {
    fault(fmt::format("a {} cannot be printed", value.type_name()));
  }
}

}  // namespace

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  return value.is_string() ? *value.as_string() : to_repr(value);
}

std::string to_repr(const Value& value) {
  std::string out;
  append_repr(out, value);
  return out;
}

namespace {

class JsonWriter {
 public:
  JsonWriter(std::string& out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Value& value, int level = 0) {
    expect_room(out_, style_.item_separator.size() + style_.key_separator.size());
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.truth() ? "true" : "false";
    } else if (value.as_number()) {
      write_number(value);
    } else if (const std::string* s = value.as_string()) {
      write_string(*s);
    } else if (const Dict* dict = value.as_dict()) {
      write_dict(*dict, level);
    } else if (const Sequence* s = value.as_sequence(); s && s->kind <= SequenceKind::tuple) {
      write_block('[', ']', s->items.size(), level,
                  [&](size_t i) { write(s->items[i], level + 1); });
    } else {
      fault(fmt::format("a {} has no JSON", value.type_name()));
    }
  }

 private:
  void write_number(const Value& value) {
    const auto number = value.as_float();
    if (!number)
      out_ += std::to_string(*value.as_integer());
    else if (std::isnan(*number))
      out_ += "NaN";
    else if (std::isinf(*number))
      out_ += *number < 0 ? "-Infinity" : "Infinity";
    else
      out_ += float_repr(*number);
  }

  void write_dict(const Dict& dict, int level) {
    std::vector<const Pair*> pairs;
    for (const Pair& pair : dict.pairs) pairs.push_back(&pair);
    if (style_.sort_keys)
      std::stable_sort(pairs.begin(), pairs.end(),
                       [](const Pair* a, const Pair* b) { return a->first.compare(b->first) < 0; });
    write_block('{', '}', pairs.size(), level, [&](size_t i) {
      write_key(pairs[i]->first);
      out_ += style_.key_separator;
      write(pairs[i]->second, level + 1);
    });
  }

  void write_key(const Value& key) {
    if (const std::string* s = key.as_string()) return write_string(*s);
    if (!key.is_none() && !key.as_number())
      fault(fmt::format("a {} cannot be a key in JSON", key.type_name()));
    out_ += '"';
    write(key);
    out_ += '"';
  }

  template <typename F>
  void write_block(char open, char close, size_t count, int level, F write_item) {
    out_ += open;
    for (size_t i = 0; i < count; ++i) {
      if (i) out_ += style_.item_separator;
      write_break(level + 1);
      write_item(i);
    }
    if (count) write_break(level);
    out_ += close;
  }

  void write_break(int level) {
    if (!style_.indent) return;
    expect_room(out_, static_cast<size_t>(level) * style_.indent->size());
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *style_.indent;
  }

  void write_string(std::string_view s) {
    expect_room(out_, s.size());
    if (!style_.ensure_ascii) return json::append_quoted(out_, s);
    std::string quoted;
    json::append_quoted(quoted, s);
    for (size_t i = 0; i < quoted.size(); i += utf8::length(quoted[i])) {
      const char32_t c = utf8::decode(quoted, i);
      if (c < 0x7f)
        out_ += static_cast<char>(c);
      else if (c < 0x10000)
        out_ += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
      else
        out_ +=
            fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((static_cast<uint32_t>(c) - 0x10000) >> 10),
                        0xdc00 + (static_cast<uint32_t>(c) & 0x3ff));
    }
  }

  std::string& out_;
  const JsonStyle& style_;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(out, style).write(value);
  return out;
}

namespace {

// One conversion of a % format.
struct Conversion {
  std::string flags;
  int width = 0, precision = -1;
  char kind = 0;
};

constexpr int kMaxWidth = 1000;

int digits(std::string_view format, size_t& i) {
  int value = 0;
  while (i < format.size() && format[i] >= '0' && format[i] <= '9') {
    value = value * 10 + (format[i++] - '0');
    if (value > kMaxWidth) fault(fmt::format("a format is wider than {}", kMaxWidth));
  }
  return value;
}

std::string padded(std::string body, const Conversion& c) {
  const int64_t missing = c.width - text::length(body);
  if (missing <= 0) return body;
  const auto has = [&](char flag) { return c.flags.find(flag) != std::string::npos; };
  if (has('-')) return body + std::string(missing, ' ');
  if (!has('0') || c.kind == 's' || c.kind == 'r') return std::string(missing, ' ') + body;
  const size_t sign = !body.empty() && (body[0] == '-' || body[0] == '+') ? 1 : 0;
  return body.insert(sign, missing, '0');
}

int64_t whole(const Value& value, char kind) {
  if (const auto integer = value.as_integer()) return *integer;
  const auto number = value.as_float();
  if (!number || kind != 'd' || !(std::abs(*number) < 9e18))
    fault(fmt::format("%{} needs an integer, found a {}", kind, value.type_name()));
  return static_cast<int64_t>(*number);
}

std::string converted(const Conversion& c, const Value& value) {
  std::string body;
  if (c.kind == 's' || c.kind == 'r') {
    body = c.kind == 's' ? to_text(value) : to_repr(value);
    if (c.precision >= 0 && text::length(body) > c.precision)
      body.resize(text::starts(body)[c.precision]);
  } else if (c.kind == 'd' || c.kind == 'i' || c.kind == 'u') {
    body = std::to_string(whole(value, 'd'));
  } else if (c.kind == 'x' || c.kind == 'X' || c.kind == 'o') {
    const int64_t number = whole(value, c.kind);
    const uint64_t magnitude = number < 0 ? 0 - static_cast<uint64_t>(number) : number;
    body = c.kind == 'x'   ? fmt::format("{:x}", magnitude)
           : c.kind == 'X' ? fmt::format("{:X}", magnitude)
                           : fmt::format("{:o}", magnitude);
    if (number < 0) body.insert(0, "-");
  } else {
    const auto number = value.as_number();
    if (!number) fault(fmt::format("%{} needs a number, found a {}", c.kind, value.type_name()));
    const int precision = c.precision < 0 ? 6 : c.precision;
    body = c.kind == 'f' || c.kind == 'F' ? fmt::format("{:.{}f}", *number, precision)
           : c.kind == 'e'                ? fmt::format("{:.{}e}", *number, precision)
                                          : fmt::format("{:.{}g}", *number, precision);
  }
  if (c.kind != 's' && c.kind != 'r' && body[0] != '-') {
    if (c.flags.find('+') != std::string::npos)
      body.insert(0, "+");
    else if (c.flags.find(' ') != std::string::npos)
      body.insert(0, " ");
  }
  return padded(std::move(body), c);
}

}  // namespace

std::string percent_formatted(std::string_view format, const Value& values) {
  const Sequence* tuple = values.as_sequence();
  if (tuple && tuple->kind != SequenceKind::tuple) tuple = nullptr;
  size_t used = 0;
  bool by_name = false;
  std::string out;
  for (size_t i = 0; i < format.size();) {
    if (format[i] != '%') {
      out += format[i++];
      continue;
    }
    if (++i < format.size() && format[i] == '%') {
      out += format[i++];
      continue;
    }
    const Value* value = nullptr;
    if (i < format.size() && format[i] == '(') {
      const size_t close = format.find(')', i);
      if (close == format.npos) fault("a format's name is not closed");
      const std::string name(format.substr(i + 1, close - i - 1));
      value = values.find(name);
      if (!value) fault("a format names " + name + ", which its values have not");
      by_name = true;
      i = close + 1;
    }
    Conversion c;
    while (i < format.size() && std::string_view("-+ 0#").find(format[i]) != std::string_view::npos)
      c.flags += format[i++];
    c.width = digits(format, i);
    if (i < format.size() && format[i] == '.') c.precision = digits(format, ++i);
    if (i == format.size() ||
        std::string_view("srdiuxXofFeg").find(format[i]) == std::string_view::npos)
      fault("a format has a conversion that is not supported");
    c.kind = format[i++];
    if (!value) {
      if (used >= (tuple ? tuple->items.size() : 1)) fault("a format has more places than values");
      value = tuple ? &tuple->items[used] : &values;
      ++used;
    }
    out += converted(c, *value);
    expect_room(out);
  }
  if (!by_name && !values.as_dict() && used < (tuple ? tuple->items.size() : 1))
    fault("a format has more values than places");
  return out;
}

std::string brace_formatted(std::string_view format, const Arguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i, expect_room(out)) {
    const char c = format[i];
    if ((c == '{' || c == '}') && i + 1 < format.size() && format[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c == '}') fault("a format has a } without its {");
    if (c != '{') {
      out += c;
      continue;
    }
    const size_t close = format.find('}', i);
    if (close == format.npos) fault("a format has a { without its }");
    const std::string field(format.substr(i + 1, close - i - 1));
    i = close;
    const bool is_number = field.find_first_not_of("0123456789") == field.npos && field.size() < 4;
    if (is_number) {
      const size_t index = field.empty() ? next++ : std::stoul(field);
      if (index >= arguments.positional.size()) fault("a format has more places than values");
      out += to_text(arguments.positional[index]);
      continue;
    }
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& n) { return n.first == field; });
    if (named == arguments.named.end())
      fault("a format has the field {" + field + "}, which is no name of a value");
    out += to_text(named->second);
  }
  return out;
}

}  // namespace invar::jinja
