// The parameters of a call that stand one after another between tags.
#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "frontend/argument_reader.h"
#include "frontend/front_reader.h"
#include "frontend/nested_tags.h"
#include "frontend/tag_style.h"

namespace invar {

namespace {

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

// Whether the grammar closes every value of the function's parameters.
bool is_strict(const json::Value& tools, std::string_view function) {
  if (!tools.is_array()) return false;
  for (const json::Value& tool : tools.as_array()) {
    const json::Value* made = tool.find("function");
    const json::Value* name = made ? made->find("name") : nullptr;
    const json::Value* strict = made ? made->find("strict") : nullptr;
    if (name && *name == json::Value(function)) return strict && *strict == json::Value(true);
  }
  return false;
}

// The kinds that a value may be of.
struct Kinds {
  bool text = false, null = false;
};

// Schemas that one leads to are looked at once each, and so many of them: references may go round,
// and a request may have thousands.
Kinds kinds_of(const json::Value& schema, const json::Value& root) {
  constexpr size_t kMostSchemas = 256;
  Kinds kinds;
  std::vector<const json::Value*> all{&schema};
  const auto meet = [&](const json::Value* one) {
    if (one && all.size() < kMostSchemas && std::ranges::find(all, one) == all.end())
      all.push_back(one);
  };
  const auto name_type = [&](const json::Value& type) {
    kinds.text |= type == json::Value("string");
    kinds.null |= type == json::Value("null");
  };
  const auto name_value = [&](const json::Value& value) {
    kinds.text |= value.is_string();
    kinds.null |= value.is_null();
  };
  for (size_t i = 0; i < all.size(); ++i) {
    const json::Value& one = *all[i];
    const auto each = [&](const char* name, auto take) {
      const json::Value* list = one.find(name);
      if (!list || !list->is_array()) return;
      for (const json::Value& value : list->as_array()) take(value);
    };
    if (const json::Value* type = one.find("type")) {
      name_type(*type);
      each("type", name_type);
      continue;
    }
    if (const json::Value* value = one.find("const")) name_value(*value);
    each("enum", name_value);
    for (const char* name : {"anyOf", "oneOf", "allOf"})
      each(name, [&](const json::Value& option) { meet(&option); });
    if (const json::Value* ref = one.find("$ref"); ref && ref->is_string())
      meet(referred(root, ref->as_string()));
  }
  return kinds;
}

Kinds kinds_of_parameter(const json::Value& tools, std::string_view function,
                         std::string_view parameter) {
  const json::Value* parameters = parameters_of(tools, function);
  const json::Value* properties = parameters ? parameters->find("properties") : nullptr;
  const json::Value* schema = properties ? properties->find(parameter) : nullptr;
  return schema ? kinds_of(*schema, *parameters) : Kinds{.text = true};
}

// The end of a value in the text so far.
struct ValueEnd {
  bool is_there = false;
  size_t at = 0;     // is_there false: the value has at least these bytes
  size_t bytes = 0;  // of its mark
};

class Parameters final : public ArgumentReader {
 public:
  Parameters(const TagStyle& style, std::string name, const json::Value& tools)
      : style_(style), name_(std::move(name)), tools_(tools), is_strict_(is_strict(tools, name_)) {}

  size_t read(std::string_view text, std::string& json) override {
    const std::string_view all = text;
    while (!over_ && (within_ ? read_value(text, json) : read_tag(text, json))) {
    }
    return all.size() - text.size();
  }

  void close(std::string_view rest, std::string& json) override {
    if (within_) {
      const size_t function = rest.rfind(style_.call_end);
      const size_t behind = function + style_.call_end.size();
      const bool ends = function != rest.npos && rest.find_first_not_of(kGaps, behind) == rest.npos;
      std::string value(rest.substr(0, ends ? function : rest.size()));
      value += value_end_;
      std::string_view text = value;
      looked_ = counted_ = nested_ = 0;
      within_text_ = false;
      is_closing_ = true;
      read_value(text, json);
    }
    json += keys_.empty() ? "{}" : "}";
  }

 private:
  // A mark between values; false: it is not there as a whole.
  bool read_tag(std::string_view& text, std::string& json) {
    text.remove_prefix(std::min(text.find_first_not_of(kGaps), text.size()));
    if (text.starts_with(style_.call_end)) {
      text.remove_prefix(style_.call_end.size());
      json += keys_.empty() ? "{}" : "}";
      return over_ = true;
    }
    if (style_.call_end.starts_with(text) || style_.key.starts_with(text)) return false;
    if (!text.starts_with(style_.key)) return end_in_midst(json);
    const std::string_view front = text.substr(0, kMostOfName);
    const auto missing = [&] { return front.size() == kMostOfName && end_in_midst(json); };
    const size_t end = front.find(style_.key_end, style_.key.size());
    if (end == front.npos) return missing();
    const std::string_view inner = front.substr(style_.key.size(), end - style_.key.size());
    // Where tags have the parameters' names a closing one begins as they do.
    if (style_.names_end && inner.starts_with('/')) return end_in_midst(json);
    const size_t behind = front.find_first_not_of(kGaps, end + style_.key_end.size());
    const std::string_view rest = front.substr(std::min(behind, front.size()));
    if (!rest.starts_with(style_.value))
      return style_.value.starts_with(rest) ? missing() : end_in_midst(json);
    text.remove_prefix(style_.value.empty() ? end + style_.key_end.size()
                                            : behind + style_.value.size());
    begin_value(inner, json);
    return true;
  }

  // `inner`: a parameter's name, and what else its tag says.
  void begin_value(std::string_view inner, std::string& json) {
    const size_t quote = style_.has_quotes() ? inner.find('"') : inner.npos;
    key_ = inner.substr(0, quote);
    value_end_ = style_.value_end_of(key_);
    Kinds kinds = kinds_of_parameter(tools_, name_, key_);
    if (style_.says_kind && quote != inner.npos) {
      const std::string_view said = inner.substr(quote);
      const bool is_text = said.find("string=\"true\"") != said.npos;
      if (is_text || said.find("string=\"false\"") != said.npos) kinds = {.text = is_text};
    }
    is_text_ = kinds.text;
    may_be_null_ = kinds.text && kinds.null;
    is_null_ = false;
    within_ = at_front_ = true;
    counted_ = read_ = nested_ = 0;
    ends_line_ = within_text_ = false;
    is_new_ = keys_.insert(key_).second;
    if (!is_new_) return;
    json += keys_.size() == 1 ? "{" : ", ";
    json::append_quoted(json, key_);
    json += is_text_ && !may_be_null_ ? ": \"" : ": ";
  }

  // The text here is no parameter.
  bool end_in_midst(std::string& json) {
    json += keys_.empty() ? "{}" : "}";
    return over_ = true;
  }

  // Reads as much of a value as is there; false: more is needed. A parameter that comes again is
  // not shown.
  bool read_value(std::string_view& text, std::string& json) {
    if (text.empty()) return false;
    const ValueEnd end = end_of(text);
    if (may_be_null_ && !settle_null(text, end, json)) return false;
    if (!end.is_there && !is_text_) return false;
    looked_ = 0;
    std::string_view value = text.substr(0, end.at);
    text.remove_prefix(end.at + end.bytes);
    if (style_.has_lines && at_front_ && value.starts_with('\n')) value.remove_prefix(1);
    at_front_ &= end.at == 0;
    read_ += end.at;
    if (!value.empty()) ends_line_ = value.ends_with('\n');
    if (style_.has_lines && end.is_there && value.ends_with('\n')) value.remove_suffix(1);
    within_ = !end.is_there;
    if (!is_new_) return !within_;
    if (is_text_)
      append_escaped(value, json);
    else
      json::append(json, json_of(value));
    if (is_text_ && !within_) json += '"';
    return !within_;
  }

  // Whether tags may stand in the value, among them some of its own name.
  bool has_tree() const { return style_.names_end && !is_strict_ && !is_text_; }

  json::Value json_of(std::string_view value) const {
    if (is_null_) return nullptr;
    if (!style_.names_end) return value_of(value);
    const json::Value* parameters = parameters_of(tools_, name_);
    const json::Value* properties = parameters ? parameters->find("properties") : nullptr;
    return nested_value(style_, value, properties ? properties->find(key_) : nullptr,
                        parameters ? *parameters : json::Value());
  }

  // From `looked_` on, before which it does not end.
  ValueEnd end_of(std::string_view text) {
    const char first = style_.value_end[0];
    for (size_t at = text.find(first, looked_); at != text.npos; at = text.find(first, at + 1)) {
      const bool begins_line = at > 0 ? text[at - 1] == '\n' : at_front_ || ends_line_;
      const auto [is_there, goes_on, bytes] = mark_at(text.substr(at), begins_line, read_ + at);
      const bool is_quoted = is_there && is_strict_ && !is_text_ && is_in_text(text, at);
      const bool is_inner = is_there && nested_ > 0;
      if (is_there && !is_quoted && !is_inner) return {.is_there = true, .at = at, .bytes = bytes};
      looked_ = at;
      if (goes_on) return {.at = at - (style_.has_lines && at > 0 && text[at - 1] == '\n')};
      looked_ = at + 1;
      nested_ += has_tree() && text.substr(at).starts_with(style_.key_tag(key_));
      nested_ -= is_inner;
    }
    looked_ = std::max(looked_, text.size());
    if (is_closing_)  // within what the answer left open
      return {.is_there = true, .at = text.size() - value_end_.size(), .bytes = value_end_.size()};
    return {.at = text.size() - (style_.has_lines && text.ends_with('\n'))};
  }

  // Whether byte `end` of a value of JSON stands within a text.
  bool is_in_text(std::string_view json, size_t end) {
    for (; counted_ < end; ++counted_) {
      if (within_text_ && json[counted_] == '\\')
        ++counted_;
      else if (json[counted_] == '"')
        within_text_ = !within_text_;
    }
    return within_text_;
  }

  struct Mark {
    bool is_there = false, goes_on = false;  // it may be one when more has come
    size_t bytes = 0;
  };
  // A value's end, or, where a model may have left that out, the call's end or the next parameter
  // on a line of its own. A strict tool's value that has lines of its own is closed on one that is
  // not the first, `read` bytes behind its tag.
  Mark mark_at(std::string_view text, bool begins_line, size_t read) const {
    const bool has_line = is_strict_ && style_.has_lines && !is_closing_;
    if (has_line && !(begins_line && read > 1)) return {};
    if (text.starts_with(value_end_)) return {.is_there = true, .bytes = value_end_.size()};
    if (value_end_.starts_with(text)) return {.goes_on = true};
    if (has_tree() && style_.key_tag(key_).starts_with(text)) return {.goes_on = true};
    if (is_strict_ || !begins_line || style_.names_end) return {};
    if (text.starts_with(style_.close)) return {.is_there = true};
    for (const std::string_view mark : {style_.close, style_.call_end})
      if (mark.starts_with(text)) return {.goes_on = true};
    return text.starts_with(style_.call_end) ? end_at(text) : next_at(text);
  }

  // A call's end, behind which the place of calls ends, or another call begins.
  Mark end_at(std::string_view text) const {
    constexpr size_t kMostGaps = 64;
    text.remove_prefix(style_.call_end.size());
    const size_t gaps = std::min(text.find_first_not_of(kGaps), text.size());
    text.remove_prefix(gaps);
    Mark mark;
    for (const std::string_view next :
         {style_.close, style_.has_several ? style_.call : style_.close}) {
      mark.is_there |= text.starts_with(next);
      mark.goes_on |= gaps < kMostGaps && next.starts_with(text);
    }
    return mark;
  }

  Mark next_at(std::string_view text) const {
    const json::Value* parameters = parameters_of(tools_, name_);
    const json::Value* properties = parameters ? parameters->find("properties") : nullptr;
    if (!properties || !properties->is_object()) return {};
    Mark mark;
    for (const auto& [key, schema] : properties->as_object()) {
      if (keys_.contains(key)) continue;
      const std::string next = style_.key_tag(key);
      mark.is_there |= text.starts_with(next);
      mark.goes_on |= next.starts_with(text);
    }
    return mark;
  }

  // Whether a value that may be a text or null is known to be one of them.
  bool settle_null(std::string_view text, const ValueEnd& end, std::string& json) {
    constexpr std::string_view kNull = "null", kWhole = "\nnull\n";
    const std::string_view front = kWhole.substr(text.starts_with('\n') ? 0 : 1);
    const std::string_view value = text.substr(0, end.at);
    const size_t at = value.find_first_not_of(kGaps);
    const bool is_null = end.is_there && at != value.npos &&
                         value.substr(at, kNull.size()) == kNull &&
                         value.find_first_not_of(kGaps, at + kNull.size()) == value.npos;
    if (!end.is_there && front.starts_with(value)) return false;
    may_be_null_ = false;
    is_null_ = is_null;
    is_text_ = !is_null;
    if (is_text_ && is_new_) json += '"';
    return true;
  }

  const TagStyle& style_;
  std::string name_, key_, value_end_;
  const json::Value& tools_;
  bool is_strict_;
  std::set<std::string> keys_;
  size_t read_ = 0;           // bytes of a value that were taken
  int nested_ = 0;            // tags of a value's own name that are open in it
  bool is_closing_ = false;   // the answer has ended
  size_t counted_ = 0;        // bytes of a value of JSON whose quotes were counted
  bool within_text_ = false;  // behind them
  bool ends_line_ = false;    // what was taken of a value
  size_t looked_ = 0;         // bytes of a value that waits in which its end does not begin
  bool within_ = false, at_front_ = false, is_text_ = false, is_new_ = false;
  bool may_be_null_ = false;  // or a text, which nobody knows yet
  bool is_null_ = false;
};

}  // namespace

std::unique_ptr<ArgumentReader> read_parameters(const TagStyle& style, std::string name,
                                                const json::Value& tools) {
  return std::make_unique<Parameters>(style, std::move(name), tools);
}

bool may_be_text(const json::Value& schema, const json::Value& root) {
  return kinds_of(schema, root).text;
}

}  // namespace invar
