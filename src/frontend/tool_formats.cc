// The formats in which models write calls, one after another.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "frontend/argument_reader.h"
#include "frontend/call_heads.h"
#include "frontend/json_calls.h"
#include "frontend/marked_calls.h"
#include "frontend/pythonic_calls.h"
#include "frontend/style_names.h"
#include "frontend/tag_style.h"
#include "frontend/tool_calls.h"

namespace invar {

namespace {

constexpr std::string_view kToolOpen = "<tool_call>", kToolClose = "</tool_call>";
constexpr std::string_view kMistral = "[TOOL_CALLS]", kCallId = "[CALL_ID]", kArgs = "[ARGS]";
constexpr std::string_view kCommentary = "<|channel|>commentary to=", kMessage = "<|message|>",
                           kCallMark = "<|call|>", kFunctions = "functions.";
constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kAction = "<|START_ACTION|>", kActionEnd = "<|END_ACTION|>";
constexpr std::string_view kTools = "<|tools_prefix|>", kToolsEnd = "<|tools_suffix|>";
constexpr std::string_view kGemma = "<|tool_call>", kGemmaEnd = "<tool_call|>";

const ToolStyle kToolStyles[] = {
    {ToolFormat::tagged, "hermes", {kToolOpen, kToolClose}},
    {ToolFormat::bare, "llama3_json", {}},
    {ToolFormat::qwen3_coder, "qwen3_coder", {kToolOpen, kToolClose}},
    {ToolFormat::mistral, "mistral", {kMistral, kCallId, kArgs}},
    {ToolFormat::deepseek_v3,
     "deepseek_v3",
     {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
      "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"}},
    {ToolFormat::gpt_oss, "gpt_oss", {}},
    {ToolFormat::pythonic, "pythonic", {}},
    {ToolFormat::glm45,
     "glm45",
     {kToolOpen, kToolClose, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}},
    {ToolFormat::kimi_k2,
     "kimi_k2",
     {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
      "<|tool_call_argument_begin|>", "<|tool_call_end|>"}},
    {ToolFormat::minimax_m2, "minimax_m2", {"<minimax:tool_call>", "</minimax:tool_call>"}},
    {ToolFormat::minimax_m3, "minimax_m3", {"]<]minimax[>[", kToolOpen, kToolClose}},
    {ToolFormat::gemma4, "gemma4", {kGemma, kGemmaEnd, "<|\"|>"}},
    {ToolFormat::deepseek_v32, "deepseek_v32", {"｜DSML｜"}},
    {ToolFormat::deepseek_v4, "deepseek_v4", {"｜DSML｜"}},
    {ToolFormat::seed_oss, "seed_oss", {"<seed:tool_call>", "</seed:tool_call>"}},
    {ToolFormat::hy_v3,
     "hy_v3",
     {"<tool_calls:opensource>", "</tool_calls:opensource>", "<tool_call:opensource>",
      "</tool_call:opensource>", "<tool_sep:opensource>", "<arg_key:opensource>",
      "</arg_key:opensource>", "<arg_value:opensource>", "</arg_value:opensource>"}},
    {ToolFormat::lfm2, "lfm2", {"<|tool_call_start|>", "<|tool_call_end|>"}},
    {ToolFormat::olmo3, "olmo3", {"<function_calls>", "</function_calls>"}},
    {ToolFormat::hunyuan_a13b, "hunyuan_a13b", {"<tool_calls>", "</tool_calls>"}},
    {ToolFormat::nemotron_json, "nemotron_json", {"<TOOLCALL>", "</TOOLCALL>"}},
    {ToolFormat::granite, "granite", {"<|tool_call|>"}},
    {ToolFormat::functionary, "functionary", {}},
    {ToolFormat::cohere, "cohere", {kAction, kActionEnd}},
    {ToolFormat::apertus, "apertus", {kTools, kToolsEnd}},
};

// A word that a template has where its models write calls so. The first one that is found counts.
struct TemplateWord {
  std::string_view word;
  ToolFormat format;
};
constexpr TemplateWord kTemplateWords[] = {
    {"<｜hy_", ToolFormat::hy_v3},
    {"<seed:tool_call>", ToolFormat::seed_oss},
    {"<minimax:tool_call>", ToolFormat::minimax_m2},
    {"]<]minimax[>[", ToolFormat::minimax_m3},
    {"'function_calls>", ToolFormat::deepseek_v32},  // behind a variable that is ｜DSML｜
    {"｜DSML｜", ToolFormat::deepseek_v4},
    {"<|tool_calls_section_begin|>", ToolFormat::kimi_k2},
    {"<|tool_call>call:", ToolFormat::gemma4},
    {"<arg_key>", ToolFormat::glm45},
    {kAction, ToolFormat::cohere},
    {kTools, ToolFormat::apertus},
    {"<|tool_call_start|>", ToolFormat::lfm2},
    {"<|tool_list_start|>", ToolFormat::lfm2},
    {"List of tools: [", ToolFormat::lfm2},
    {kFunction, ToolFormat::qwen3_coder},
    {"<TOOLCALL>", ToolFormat::nemotron_json},
    {"<tool_calls>", ToolFormat::hunyuan_a13b},
    {"<function_calls>", ToolFormat::olmo3},
    {kToolOpen, ToolFormat::tagged},
    {kMistral, ToolFormat::mistral},
    {"<｜tool▁calls▁begin｜>", ToolFormat::deepseek_v3},
    {"<|channel|>commentary", ToolFormat::gpt_oss},
    {"[func_name1(", ToolFormat::pythonic},
    {"<|tool_call|>", ToolFormat::granite},
    {"\"parameters\"", ToolFormat::bare},
};

}  // namespace

std::span<const ToolStyle> tool_styles() {
  return kToolStyles;
}

ToolFormat tool_format_named(std::string_view name) {
  const auto* found = std::ranges::find(kToolStyles, name, &ToolStyle::name);
  if (found == std::end(kToolStyles))
    fail_usage("expected a tool-call-parser of auto, {}, found \"{}\"", names_of(tool_styles()),
               name);
  return found->format;
}

ToolFormat tool_format_of(std::string_view chat_template) {
  const auto has = [&](std::string_view word) { return chat_template.find(word) != kNotThere; };
  const auto* found = std::ranges::find_if(kTemplateWords, has, &TemplateWord::word);
  if (found == std::end(kTemplateWords)) return ToolFormat::none;
  // Functionary's functions have JSON where Qwen3-Coder's have parameters.
  const bool is_json =
      found->format == ToolFormat::qwen3_coder && !has("<parameter=") && !has(kToolOpen);
  return is_json ? ToolFormat::functionary : found->format;
}

std::string_view name_of(ToolFormat format) {
  const auto* found = std::ranges::find(kToolStyles, format, &ToolStyle::format);
  return found == std::end(kToolStyles) ? "none" : found->name;
}

std::span<const std::string_view> marks_of(ToolFormat format) {
  const auto* found = std::ranges::find(kToolStyles, format, &ToolStyle::format);
  if (found == std::end(kToolStyles)) return {};
  return found->marks;
}

std::string_view unwrapped_mark(ToolFormat format) {
  const TagStyle* style = tag_style_of(format);
  return style && style->is_bare ? style->call : std::string_view();
}

std::string_view opening_mark(ToolFormat format) {
  if (const TagStyle* style = tag_style_of(format)) return style->open;
  if (const MarkedCalls* style = marked_calls_of(format)) return style->open;
  switch (format) {
    case ToolFormat::gpt_oss:
      return kCommentary;
    case ToolFormat::functionary:
      return kFunction;
    case ToolFormat::tagged:
    case ToolFormat::mistral:
    case ToolFormat::gemma4:
    case ToolFormat::lfm2:
    case ToolFormat::olmo3:
    case ToolFormat::hunyuan_a13b:
    case ToolFormat::nemotron_json:
    case ToolFormat::granite:
    case ToolFormat::cohere:
    case ToolFormat::apertus:
      return marks_of(format)[0];
    default:
      return "";
  }
}

std::string_view closing_mark(ToolFormat format) {
  if (const TagStyle* style = tag_style_of(format)) return style->close;
  if (const MarkedCalls* style = marked_calls_of(format)) return style->close;
  switch (format) {
    case ToolFormat::tagged:
    case ToolFormat::gemma4:
    case ToolFormat::lfm2:
    case ToolFormat::olmo3:
    case ToolFormat::hunyuan_a13b:
    case ToolFormat::nemotron_json:
    case ToolFormat::cohere:
    case ToolFormat::apertus:
      return marks_of(format)[1];
    case ToolFormat::functionary:
      return kFunctionEnd;
    default:
      return "";
  }
}

CallHead read_call_head(ToolFormat format, std::string_view text, const json::Value& tools,
                        bool first, FrontSearch& search) {
  if (search.is_none) return {};
  if (const TagStyle* style = tag_style_of(format)) return tag_head(*style, text, search);
  if (const MarkedCalls* style = marked_calls_of(format)) return marked_head(*style, text, search);
  switch (format) {
    case ToolFormat::tagged:
      return tagged_head(text, search);
    case ToolFormat::mistral:
    case ToolFormat::hunyuan_a13b:
    case ToolFormat::nemotron_json:
    case ToolFormat::granite:
    case ToolFormat::cohere:
    case ToolFormat::apertus:
      return listed_head(text, closing_mark(format), listed_call_of(format), search);
    case ToolFormat::gemma4:
      return gemma_head(text);
    case ToolFormat::functionary:
      return function_head(text);
    case ToolFormat::gpt_oss:
      return channel_head(text, search);
    case ToolFormat::pythonic:
      return pythonic_head(text, tools, first, search);
    case ToolFormat::lfm2:
    case ToolFormat::olmo3:
      return python_list_head(text, closing_mark(format), search);
    default:
      return bare_head(format, text, tools, first, search);
  }
}

std::unique_ptr<ArgumentReader> arguments_of(ToolFormat format, const std::string& name,
                                             const json::Value& tools) {
  if (const TagStyle* style = tag_style_of(format)) return read_parameters(*style, name, tools);
  switch (format) {
    case ToolFormat::pythonic:
    case ToolFormat::lfm2:
    case ToolFormat::olmo3:
      return read_keywords();
    case ToolFormat::gemma4:
      return read_marked_object();
    default:
      return read_json_object();
  }
}

CallTail tail_of(ToolFormat format) {
  if (tag_style_of(format)) return {};
  if (const MarkedCalls* style = marked_calls_of(format)) return {.mark = style->call_end};
  switch (format) {
    case ToolFormat::tagged:
      return {.mark = kToolClose, .ends = true};
    case ToolFormat::gemma4:
      return {.mark = kGemmaEnd, .ends = true};
    case ToolFormat::functionary:
      return {.mark = kFunctionEnd, .ends = true};
    case ToolFormat::gpt_oss:
      return {.mark = kCallMark, .ends = true};
    case ToolFormat::pythonic:
    case ToolFormat::lfm2:
    case ToolFormat::olmo3:
      return {};
    default:
      return {.closes = true};
  }
}

void read_last_calls(ToolFormat format, std::string_view text, std::vector<ToolCall>& calls) {
  if (format == ToolFormat::pythonic) return read_pythonic_calls(text, false, calls);
  const bool is_json =
      format == ToolFormat::tagged || format == ToolFormat::bare || format == ToolFormat::object;
  const bool has_tag = format == ToolFormat::tagged;  // then a call may lack its arguments
  if (const auto call =
          is_json && !text.empty() ? read_json_call(without_tag(text), has_tag) : std::nullopt)
    calls.push_back(*call);
}

void read_cut_call(ToolFormat format, std::string_view text, const json::Value& tools,
                   std::vector<ToolCall>& calls) {
  std::optional<ToolCall> call;
  skip_spaces(text);
  if (const TagStyle* style = tag_style_of(format)) {
    if (const std::string name = cut_tag_name(*style, text); !name.empty())
      calls.push_back({name, ""});
    return;
  }
  if (const MarkedCalls* style = marked_calls_of(format)) {
    call = cut_marked_call(*style, text);
    if (call) calls.push_back(*call);
    return;
  }
  switch (format) {
    case ToolFormat::gemma4:
    case ToolFormat::functionary:
    case ToolFormat::lfm2:
    case ToolFormat::olmo3:
      return;  // a name is whole where the arguments begin
    case ToolFormat::mistral:
    case ToolFormat::hunyuan_a13b:
    case ToolFormat::nemotron_json:
    case ToolFormat::granite:
    case ToolFormat::cohere:
    case ToolFormat::apertus:
      call = cut_listed_call(text, listed_call_of(format));
      break;
    case ToolFormat::gpt_oss:
      if (const size_t message = text.find(kMessage); message != kNotThere) {
        std::string_view name = text.substr(0, message);
        if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
        call = ToolCall{std::string(name), ""};
      }
      break;
    case ToolFormat::pythonic:
      return read_pythonic_calls(text, true, calls);
    default:
      call = read_cut_json(without_tag(text));
      if (format == ToolFormat::bare && call && !is_tool(tools, call->name)) return;
  }
  if (call) calls.push_back(*call);
}

}  // namespace invar
