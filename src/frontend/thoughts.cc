#include "frontend/thoughts.h"

#include <algorithm>

#include "base/error.h"
#include "frontend/style_names.h"

namespace invar {

namespace {

constexpr std::string_view kBlank = " \t\r\n";

const ThoughtStyle kThoughtStyles[] = {
    {.format = ThoughtFormat::qwen3,
     .name = "qwen3",
     .open = "<think>",
     .close = "</think>",
     .then = "",
     .then_message = "",
     .repeats = false,
     .is_assumed = false,
     .marks = {"<think>", "</think>"}},
    {.format = ThoughtFormat::deepseek_r1,
     .name = "deepseek_r1",
     .open = "<think>",
     .close = "</think>",
     .then = "",
     .then_message = "",
     .repeats = false,
     .is_assumed = true,
     .marks = {"<think>", "</think>"}},
    {.format = ThoughtFormat::mistral,
     .name = "mistral",
     .open = "[THINK]",
     .close = "[/THINK]",
     .then = "",
     .then_message = "",
     .repeats = false,
     .is_assumed = false,
     .marks = {"[THINK]", "[/THINK]"}},
    {.format = ThoughtFormat::gemma4,
     .name = "gemma4",
     .open = "<|channel>thought",
     .close = "<channel|>",
     .then = "",
     .then_message = "",
     .repeats = false,
     .is_assumed = false,
     .marks = {"<|channel>", "<channel|>"}},
    {.format = ThoughtFormat::seed_oss,
     .name = "seed_oss",
     .open = "<seed:think>",
     .close = "</seed:think>",
     .then = "",
     .then_message = "",
     .repeats = false,
     .is_assumed = false,
     .marks = {"<seed:think>", "</seed:think>"}},
    {.format = ThoughtFormat::hy_v3,
     .name = "hy_v3",
     .open = "<think:opensource>",
     .close = "</think:opensource>",
     .then = "",
     .then_message = "",
     .repeats = false,
     .is_assumed = false,
     .marks = {"<think:opensource>", "</think:opensource>"}},
    {.format = ThoughtFormat::cohere,
     .name = "cohere",
     .open = "<|START_THINKING|>",
     .close = "<|END_THINKING|>",
     .then = "",
     .then_message = "",
     .repeats = false,
     .is_assumed = false,
     .marks = {"<|START_THINKING|>", "<|END_THINKING|>"}},
    {.format = ThoughtFormat::apertus,
     .name = "apertus",
     .open = "<|inner_prefix|>",
     .close = "<|inner_suffix|>",
     .then = "",
     .then_message = "",
     .repeats = false,
     .is_assumed = false,
     .marks = {"<|inner_prefix|>", "<|inner_suffix|>"}},
    {.format = ThoughtFormat::minimax_m3,
     .name = "minimax_m3",
     .open = "<mm:think>",
     .close = "</mm:think>",
     .then = "",
     .then_message = "",
     .repeats = false,
     .is_assumed = false,
     .marks = {"<mm:think>", "</mm:think>"}},
    {.format = ThoughtFormat::gpt_oss,
     .name = "gpt_oss",
     .open = "<|channel|>analysis<|message|>",
     .close = "<|end|>",
     .then = "<|start|>assistant<|channel|>final<|message|>",
     .then_message = "<|start|>assistant",
     .repeats = true,
     .is_assumed = false,
     .marks = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"}},
};

bool names(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

}  // namespace

std::span<const ThoughtStyle> thought_styles() {
  return kThoughtStyles;
}

const ThoughtStyle& style_of(ThoughtFormat format) {
  return *std::ranges::find(kThoughtStyles, format, &ThoughtStyle::format);
}

ThoughtFormat thought_format_named(std::string_view name) {
  if (name == "none") return ThoughtFormat::none;
  const auto* found = std::ranges::find(kThoughtStyles, name, &ThoughtStyle::name);
  if (found == std::end(kThoughtStyles))
    fail_usage("expected a reasoning-parser of auto, none, {}, found \"{}\"",
               names_of(thought_styles()), name);
  return found->format;
}

ThoughtFormat thought_format_of(std::string_view chat_template) {
  if (names(chat_template, "<|channel|>")) return ThoughtFormat::gpt_oss;
  if (names(chat_template, "[THINK]")) return ThoughtFormat::mistral;
  if (names(chat_template, "<|channel>thought")) return ThoughtFormat::gemma4;
  if (names(chat_template, "</seed:think>")) return ThoughtFormat::seed_oss;
  if (names(chat_template, "</think{}>")) return ThoughtFormat::hy_v3;
  if (names(chat_template, "<|START_THINKING|>")) return ThoughtFormat::cohere;
  if (names(chat_template, "<|inner_prefix|>")) return ThoughtFormat::apertus;
  if (names(chat_template, "</mm:think>")) return ThoughtFormat::minimax_m3;
  if (!names(chat_template, "</think>")) return ThoughtFormat::none;
  return names(chat_template, "<｜Assistant｜>") ? ThoughtFormat::deepseek_r1
                                                 : ThoughtFormat::qwen3;
}

json::Value to_json(const ThoughtGrammar& grammar) {
  json::Value value = json::Object{{"parser", std::string(style_of(grammar.view.format).name)},
                                   {"begun", grammar.view.begun}};
  if (grammar.budget >= 0) value.set("budget", grammar.budget);
  if (grammar.view.stops) value.set("stops", true);
  return value;
}

ThoughtGrammar thought_grammar_of(const json::Value& value) {
  ThoughtGrammar grammar;
  if (!value.is_object())
    fail_usage("expected a thought as an object, found {}", value.type_name());
  for (const auto& [key, member] : value.as_object()) {
    const auto budget = member.to_integer();
    if (key == "parser" && member.is_string())
      grammar.view.format = thought_format_named(member.as_string());
    else if (key == "begun" && member.is_bool())
      grammar.view.begun = member.as_bool();
    else if (key == "stops" && member.is_bool())
      grammar.view.stops = member.as_bool();
    else if (key == "budget" && budget && *budget >= 0 && *budget <= INT32_MAX)
      grammar.budget = static_cast<int32_t>(*budget);
    else
      fail_usage("expected a thought with parser, begun, budget and stops, found {}",
                 json::excerpt(value));
  }
  if (grammar.view.format == ThoughtFormat::none)
    fail_usage("expected a thought with a parser, found {}", json::excerpt(value));
  return grammar;
}

ThoughtView thoughts_behind(ThoughtFormat format, std::span<const int32_t> prompt, bool goes_on,
                            const Tokenizer& tokenizer) {
  if (format == ThoughtFormat::none) return {};
  const ThoughtStyle& style = style_of(format);
  const size_t looked_at = goes_on ? 8192 : 64;  // tokens
  std::string end =
      tokenizer.decode(prompt.last(std::min(looked_at, prompt.size())), {.skip_special = false});
  end.erase(end.find_last_not_of(kBlank) + 1);
  ThoughtView view{.format = format};
  if (goes_on) {
    const size_t open = end.rfind(style.open), close = end.rfind(style.close);
    view.begun = open != std::string::npos && (close == std::string::npos || close < open);
    return view.begun ? view : ThoughtView{};
  }
  if (end.ends_with(style.close) && !style.repeats) return {};
  view.begun = end.ends_with(style.open) || style.is_assumed;
  return view;
}

void take_thoughts(std::string_view grammar, const Tokenizer& tokenizer, Request& request) {
  const json::Value what = json::parse(grammar, "the form of an answer");
  const json::Value* thought = what.find("thought");
  if (!thought) return;
  request.thoughts = thought_grammar_of(*thought).view;
  request.shown_special = special_marks(style_of(request.thoughts.format).marks, tokenizer);
}

std::vector<int32_t> special_marks(std::span<const std::string_view> marks,
                                   const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const std::string_view mark : marks)
    if (const auto id = tokenizer.id_of(mark); id && tokenizer.is_special(*id)) ids.push_back(*id);
  std::ranges::sort(ids);
  return ids;
}

}  // namespace invar
