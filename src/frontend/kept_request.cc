#include "frontend/kept_request.h"

#include <algorithm>

#include "frontend/body_fields.h"
#include "frontend/responses.h"

namespace invar::openai {

namespace {

constexpr std::string_view kDescribing[] = {"user",        "metadata",          "instructions",
                                            "system",      "safety_identifier", "prompt_cache_key",
                                            "service_tier"};
// Fields that make a prompt beside "prompt".
constexpr std::string_view kOfPrompt[] = {"suffix", "input_prefix", "input_suffix"};
constexpr std::string_view kOfItems[] = {
    "type",   "role", "content", "call_id",           "name",   "arguments", "output", "id",
    "status", "text", "summary", "encrypted_content", "refusal"};
// Fields of a call of another tool than a function.
constexpr std::string_view kOfCalls[] = {"input", "action", "operation"};

// An item of an input, or a part of its content.
json::Value kept_item(const json::Value& item) {
  if (item.is_array()) {
    json::Array parts;
    for (const json::Value& part : item.as_array()) parts.push_back(kept_item(part));
    return parts;
  }
  if (!item.is_object()) return item;
  json::Value kept = json::Object();
  for (const auto& [key, value] : item.as_object()) {
    if (among(key, kOfItems)) kept.set(key, kept_item(value));
    if (among(key, kOfCalls)) kept.set(key, value);
  }
  return kept;
}

}  // namespace

json::Value kept_body(const json::Value& body, const Request& request) {
  json::Value kept = json::Object();
  for (const auto& [key, value] : body.as_object()) {
    if (among(key, kDescribing) || std::ranges::find(request.ignored, key) != request.ignored.end())
      continue;
    if (key == "input_extra") continue;
    // Readers want one: its tokens stand elsewhere.
    if (key == "messages")
      kept.set(key, json::Array{json::Object{{"role", "user"}, {"content", ""}}});
    else if (key == "input" || (key == "prompt" && !request.echo))
      kept.set(key, "");
    else if (among(key, kOfPrompt))  // whether there is one says how the body is read
      kept.set(key, value == json::Value("") ? "" : ".");
    else
      kept.set(key, value);
  }
  if (request.goes_on) kept.set("continue_final_message", true);  // messages said so
  return kept;
}

json::Array kept_items(const json::Value& body) {
  json::Array kept;
  for (const json::Value& item : input_items(body)) kept.push_back(kept_item(item));
  return kept;
}

}  // namespace invar::openai
