// str, repr and json.dumps.
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

void expect_room(const std::string& out, size_t more) {
  if (out.size() + more > kMostPrinted)
    fault(fmt::format("a value prints more than {} bytes", kMostPrinted));
}

namespace {

class ReprWriter {
 public:
  // Values written so far.
  int64_t values() const { return values_; }
  std::string& out() { return out_; }

  void write(const Value& value) {
    expect_room(out_);
    ++values_;
    if (value.is_undefined()) {
      out_ += "Undefined";
    } else if (value.is_none()) {
      out_ += "None";
    } else if (value.is_bool()) {
      out_ += value.truth() ? "True" : "False";
    } else if (const auto integer = value.as_integer()) {
      out_ += std::to_string(*integer);
    } else if (const auto number = value.as_float()) {
      out_ += float_repr(*number);
    } else if (const std::string* s = value.as_string()) {
      write_string(*s);
    } else if (const Sequence* sequence = value.as_sequence()) {
      write_sequence(*sequence);
    } else if (const Dict* dict = value.as_dict()) {
      write_dict(*dict);
    } else {
      fault(fmt::format("a {} cannot be printed", value.type_name()));
    }
  }

 private:
  void write_string(std::string_view s) {
    expect_room(out_, s.size());
    const bool has_single = s.find('\'') != s.npos, has_double = s.find('"') != s.npos;
    const char quote = has_single && !has_double ? '"' : '\'';
    out_ += quote;
    for (size_t i = 0; i < s.size(); i += utf8::length(s[i]))
      write_character(utf8::decode(s, i), quote);
    out_ += quote;
  }

  void write_character(char32_t c, char quote) {
    if (c == static_cast<char32_t>(quote) || c == '\\')
      out_ += '\\', out_ += static_cast<char>(c);
    else if (c == '\n')
      out_ += "\\n";
    else if (c == '\r')
      out_ += "\\r";
    else if (c == '\t')
      out_ += "\\t";
    else if (text::is_printable(c))
      utf8::append(out_, c);
    else
      out_ += c < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
              : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                            : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  }

  void write_range(const Items& items) {
    const int64_t first = items.empty() ? 0 : *items[0].as_integer();
    const int64_t step =
        items.size() > 1 ? *items[1].as_integer() - *items[0].as_integer() : int64_t{1};
    const int64_t end = first + static_cast<int64_t>(items.size()) * step;
    out_ += step == 1 ? fmt::format("range({}, {})", first, end)
                      : fmt::format("range({}, {}, {})", first, end, step);
  }

  void write_sequence(const Sequence& sequence) {
    static constexpr const char* kOpen[] = {"[",           "(", "", "dict_keys([", "dict_values([",
                                            "dict_items(["};
    if (sequence.kind == SequenceKind::iterator) fault("a generator cannot be printed; add | list");
    if (sequence.kind == SequenceKind::range) return write_range(sequence.items);
    out_ += kOpen[static_cast<int>(sequence.kind)];
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i) out_ += ", ";
      write(sequence.items[i]);
    }
    if (sequence.kind == SequenceKind::tuple && sequence.items.size() == 1) out_ += ',';
    out_ += sequence.kind == SequenceKind::list    ? "]"
            : sequence.kind == SequenceKind::tuple ? ")"
                                                   : "])";
  }

  void write_dict(const Dict& dict) {
    out_ += '{';
    for (size_t i = 0; i < dict.pairs.size(); ++i) {
      if (i) out_ += ", ";
      write(dict.pairs[i].first);
      out_ += ": ";
      write(dict.pairs[i].second);
    }
    out_ += '}';
  }

  std::string out_;
  int64_t values_ = 0;
};

}  // namespace

std::string to_text(const Value& value, int64_t* values) {
  if (value.is_undefined()) return "";
  return value.is_string() ? *value.as_string() : to_repr(value, values);
}

std::string to_repr(const Value& value, int64_t* values) {
  ReprWriter writer;
  writer.write(value);
  if (values) *values += writer.values();
  return std::move(writer.out());
}

namespace {

class JsonWriter {
 public:
  JsonWriter(std::string& out, const JsonStyle& style) : out_(out), style_(style) {}

  // Values written so far.
  int64_t values() const { return values_; }

  void write(const Value& value, int level = 0) {
    expect_room(out_, style_.item_separator.size() + style_.key_separator.size());
    ++values_;
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
  int64_t values_ = 0;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style, int64_t* values) {
  std::string out;
  JsonWriter writer(out, style);
  writer.write(value);
  if (values) *values += writer.values();
  return out;
}

}  // namespace invar::jinja
