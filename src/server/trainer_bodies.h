// Fields that the bodies of trainers' requests share.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "base/json.h"
#include "http.h"

namespace invar::server {

// The text of the first of these members that is there, or nothing.
std::optional<std::string> text_of(const json::Value& body,
                                   std::initializer_list<const char*> names);
// A version is a text or a whole number, and a header of answers. Throws ApiError.
std::string version_of(const json::Value& body, const std::string& otherwise);

}  // namespace invar::server
