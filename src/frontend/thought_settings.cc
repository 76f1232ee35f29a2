#include "frontend/thought_settings.h"

#include <algorithm>

#include "base/error.h"
#include "base/json_values.h"

namespace invar {

namespace {

struct Effort {
  std::string_view name;
  int32_t budget;                // where the template knows no efforts
  std::string_view of_template;  // where it does
};

constexpr Effort kEffortNames[] = {
    {"none", 0, "low"},   {"minimal", 256, "low"}, {"low", 1024, "low"}, {"medium", 4096, "medium"},
    {"high", -1, "high"}, {"xhigh", -1, "high"},   {"max", -1, "high"}};

void read_effort_name(const json::Value& value, const ChatTemplate* chat,
                      ThoughtSettings& settings) {
  const std::string name = value.is_string() ? value.as_string() : "";
  const auto* effort = std::ranges::find(kEffortNames, name, &Effort::name);
  if (effort == std::end(kEffortNames))
    fail_usage("expected reasoning_effort none, minimal, low, medium, high, xhigh or max, found {}",
               json::excerpt(value));
  const bool template_knows = chat && chat->source().find("reasoning_effort") != std::string::npos;
  settings.thinks = name != "none";
  settings.effort = effort->of_template;
  if (!template_knows || !*settings.thinks) settings.budget = effort->budget;
}

// {"type": "enabled", "budget_tokens": n}, {"type": "disabled"} or {"type": "adaptive"}
void read_thinking(const json::Value& value, ThoughtSettings& settings) {
  const BodyFields fields(value);
  const json::Value* type = value.is_object() ? fields.find("type") : nullptr;
  const std::string name = type && type->is_string() ? type->as_string() : "";
  if (name != "enabled" && name != "disabled" && name != "adaptive")
    fail_usage("expected thinking of type enabled, disabled or adaptive, found {}",
               json::excerpt(value));
  for (const auto& [key, member] : value.as_object())
    if (key != "type" && key != "display" && !(key == "budget_tokens" && name == "enabled"))
      fail_usage("expected no {} in thinking of type {}, found {}", json::quoted(key), name,
                 json::excerpt(member));
  if (name == "adaptive") return;
  settings.thinks = name == "enabled";
  settings.budget = name == "enabled" ? -1 : 0;
  fields.read_integer("budget_tokens", settings.budget, 1);
}

}  // namespace

ThoughtSettings read_thought_settings(const BodyFields& fields, ThoughtFormat format,
                                      const ChatTemplate* chat) {
  ThoughtSettings settings;
  if (const json::Value* v = fields.find("reasoning_effort")) read_effort_name(*v, chat, settings);
  if (const json::Value* v = fields.find("thinking")) read_thinking(*v, settings);
  if (fields.find("enable_thinking")) {
    settings.thinks = fields.read_flag("enable_thinking", true);
    if (!*settings.thinks) settings.budget = 0;
  }
  fields.read_integer("thinking_token_budget", settings.budget, 0);
  settings.stops = fields.read_flag("stop_in_reasoning", false);
  if (format != ThoughtFormat::none) return settings;
  if (settings.thinks.value_or(false) || settings.budget > 0 || settings.stops)
    refuse_thoughts(
        fields, "the model's chat template has none that the server knows (--reasoning-parser)");
  return {};
}

void refuse_thoughts(const BodyFields& fields, std::string_view why) {
  for (const char* name : {"reasoning_effort", "thinking", "enable_thinking",
                           "thinking_token_budget", "stop_in_reasoning"})
    if (const json::Value* found = fields.find(name))
      fail_usage("the field {} is not supported: expected none of thoughts, since {}, found {}",
                 json::quoted(name), why, json::excerpt(*found));
}

void set_variables(const ThoughtSettings& settings, json::Object& variables) {
  const auto set = [&](const char* name, json::Value value) {
    if (std::ranges::find(variables, name, &json::Member::first) == variables.end())
      variables.emplace_back(name, std::move(value));
  };
  if (settings.thinks) {
    set("enable_thinking", *settings.thinks);
    set("thinking", *settings.thinks);
  }
  if (!settings.effort.empty()) set("reasoning_effort", settings.effort);
}

}  // namespace invar
