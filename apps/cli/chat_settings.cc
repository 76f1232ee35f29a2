#include "chat_settings.h"

#include <fmt/format.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "frontend/body_fields.h"

namespace invar::cli {

namespace {

constexpr int32_t kAnyVocabulary = INT32_MAX;

json::Value settings_of(const SamplingParams& params) {
  json::Value all = json::Object{};
  for_each_field<&FieldFacts::flag>(
      params, [&](const auto& field, const auto& value) { all.set(field.name, value); });
  return all;
}

}  // namespace

std::string shown_settings(const SamplingParams& params) {
  std::string text;
  const json::Value settings = settings_of(params);  // a loop keeps no temporary's members
  for (const auto& [name, value] : settings.as_object())
    text += fmt::format("  {:20} {}\n", name, json::dump(value));
  return text;
}

void change_setting(SamplingParams& params, const std::string& name, const std::string& value) {
  const json::Value known = settings_of(params);
  if (!known.find(name))
    fail_usage("expected a setting that /set shows, found {}", json::quoted(name));
  json::Value asked = json::Object();
  try {
    asked.set(name, json::parse(value, name));
  } catch (const Error&) {
    fail_usage("expected {} as a number, found {}", name, json::quoted(value));
  }
  const BodyFields fields(asked);
  SamplingParams changed = params;
  for_each_field<&FieldFacts::flag>(changed, [&]<typename T>(const auto& field, T& setting) {
    if constexpr (std::is_same_v<T, double>)
      fields.read_number(field.name, setting);
    else if constexpr (std::is_same_v<T, int32_t>)
      fields.read_integer(field.name, setting, static_cast<int64_t>(field.facts.low));
    else if (const json::Value* given = fields.find(field.name))
      setting = static_cast<T>(integer_of(*given, field.name, 0, INT64_MAX));
  });
  checked(changed, kAnyVocabulary);
  params = changed;
}

void save_conversation(const std::string& path, const json::Array& messages) {
  write_file_atomically(path, json::dump(json::Object{{"messages", messages}}, 2) + "\n");
}

json::Array load_conversation(const std::string& path) {
  const json::Value kept = json::parse_file(path);
  const json::Value* messages = kept.find("messages");
  if (!messages || !messages->is_array())
    fail("{}: expected \"messages\", as /save writes them, found {}", path, json::excerpt(kept));
  for (const json::Value& message : messages->as_array())
    for (const char* name : {"role", "content"})
      if (const json::Value* found = message.find(name); !found || !found->is_string())
        fail("{}: expected messages with a role and a content, found {}", path,
             json::excerpt(message));
  return messages->as_array();
}

}  // namespace invar::cli
