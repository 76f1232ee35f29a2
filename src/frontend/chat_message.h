// Messages of a conversation and tools as clients write them, made uniform one by one: the first
// half of normal_form.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "frontend/template_traits.h"

namespace invar {

// The changes to a conversation: a sentence for each kind.
class Changes {
 public:
  void note(std::string_view change);
  std::vector<std::string> take() { return std::move(all_); }

 private:
  std::vector<std::string> all_;
};

bool is_role(const json::Value& message, std::string_view role);
// A member of an object that may be changed, or null.
json::Value* member_of(json::Value& object, std::string_view name);
void erase_member(json::Value& object, std::string_view name);

// The texts of a content's parts, joined by line breaks. Parts of other kinds are refused.
std::string joined_parts(const json::Array& parts);

// Messages with a role and a content, without members that are null; calls with a name and
// arguments, which are an object, or a text where the template takes one. Both throw UsageError.
json::Array read_messages(const json::Value& source, const TemplateTraits& traits,
                          Changes& changes);
// An array, or null where there is none.
json::Value read_tools(const json::Value& source, Changes& changes);

}  // namespace invar
