// The two ways to format.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "frontend/jinja/operations.h"
#include "frontend/jinja/python_text.h"
#include "tokenizer/utf8.h"

namespace invar::jinja {

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

// The bytes of the first so many characters.
size_t bytes_of(const std::string& s, int characters) {
  size_t bytes = 0;
  for (int i = 0; i < characters && bytes < s.size(); ++i) bytes += utf8::length(s[bytes]);
  return std::min(bytes, s.size());
}

std::string converted(Budget& budget, const Conversion& c, const Value& value) {
  std::string body;
  if (c.kind == 's' || c.kind == 'r') {
    int64_t printed = 0;
    body = c.kind == 's' ? to_text(value, &printed) : to_repr(value, &printed);
    budget.step(printed);
    budget.touch(body.size());
    if (c.precision >= 0) body.resize(bytes_of(body, c.precision));
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

std::string percent_formatted(Budget& budget, std::string_view format, const Value& values) {
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
      if (const Dict* dict = values.as_dict()) budget.step(std::ssize(dict->pairs) / 8);
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
    budget.step();
    out += converted(budget, c, *value);
    expect_room(out);
  }
  if (!by_name && !values.as_dict() && used < (tuple ? tuple->items.size() : 1))
    fault("a format has more values than places");
  return out;
}

std::string brace_formatted(Budget& budget, std::string_view format, const Arguments& arguments) {
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
    budget.step(1 + std::ssize(arguments.named) / 8);
    const bool is_number = field.find_first_not_of("0123456789") == field.npos && field.size() < 4;
    if (is_number) {
      const size_t index = field.empty() ? next++ : std::stoul(field);
      if (index >= arguments.positional.size()) fault("a format has more places than values");
      out += budget.printed(arguments.positional[index]);
      continue;
    }
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& n) { return n.first == field; });
    if (named == arguments.named.end())
      fault("a format has the field {" + field + "}, which is no name of a value");
    out += budget.printed(named->second);
  }
  return out;
}

}  // namespace invar::jinja
