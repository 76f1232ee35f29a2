// How calls are written whose parameters stand one after another between tags.
#pragma once

#include <string>
#include <string_view>

#include "frontend/front_reader.h"
#include "frontend/tool_calls.h"

namespace invar {

struct TagStyle {
  ToolFormat format;
  std::string_view open, close;  // around one call, or around several
  // Before a call's name, behind the name, and behind the call. Empty: the name stands behind
  // `open` and ends where a line or a tag begins; the call ends with `close`.
  std::string_view call, name_end, call_end;
  std::string_view key, key_end;      // around a parameter's name
  std::string_view value, value_end;  // around its value; the first may be empty
  bool names_end = false;             // the name and > stand behind `value_end`
  bool has_lines = false;             // a value stands on lines of its own
  bool has_several = false;           // `open` and `close` stand around several calls
  bool says_kind = false;             // string="true" or "false" stands behind the name
  bool is_bare = false;               // a model may leave `open` out

  // A tag as the name `written` stands in it.
  std::string key_tag(std::string_view written) const;
  // The mark behind the value of a parameter.
  std::string value_end_of(std::string_view name) const;
  // Whether names stand in quotes, which `call` and `key` open.
  bool has_quotes() const { return key.ends_with('"'); }
};

// Null: the format is another one.
const TagStyle* tag_style_of(ToolFormat format);

// The front of a place where calls may be, behind `open`.
CallHead tag_head(const TagStyle& style, std::string_view text, FrontSearch& search);

// The call that `text` begins with, where it was cut behind its name; nothing where it was not.
std::string cut_tag_name(const TagStyle& style, std::string_view text);

}  // namespace invar
