// Calls that answers are held to, in each format as its models write them.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "frontend/call_reader.h"
#include "frontend/constraint_compiler.h"
#include "held_calls.h"

namespace invar {
namespace {

using namespace testing_frontend;

json::Value tools(bool are_strict) {
  json::Value all = json::parse(R"([{"type": "function", "function": {"name": "plan",
    "parameters": {"type": "object", "properties": {"mode": {"enum": ["a", "b"]},
      "days": {"enum": [3, 14]}, "deep": {"$ref": "#/$defs/D"}, "note": {"type": "string"}},
      "required": ["mode", "days"], "additionalProperties": false,
      "$defs": {"D": {"type": "object", "properties": {"x": {"type": "boolean"}},
        "required": ["x"], "additionalProperties": false}}}}}])",
                                "tools");
  return are_strict ? strict_tools(all, "") : all;
}

std::shared_ptr<Constraint> constraint(const json::Value& form) {
  ConstraintCompiler compiler(made_tokenizer());
  return compiler.compile(form);
}

// The parameters of a call as a format writes them: names, and values as JSON.
using Parameters = std::vector<std::pair<std::string, std::string>>;

// A text that a value of JSON is; others as they are.
std::string plain(const std::string& value) {
  return value[0] == '"' ? value.substr(1, value.size() - 2) : value;
}

struct Format {
  ToolFormat format;
  std::string open, close;  // around a call
  std::string name_end, call_end;
  std::string key, key_end, value_end, between;
  bool are_texts_plain = true;
  bool says_kind = false;
  bool names_end = false;  // its name stands behind value_end

  std::string call(const std::string& name, const Parameters& all) const {
    std::string text = open + name + name_end;
    bool is_first = true;
    for (const auto& [one, value] : all) {
      if (!std::exchange(is_first, false)) text += between;
      text += key + one;
      if (says_kind) text += value[0] == '"' ? "\" string=\"true" : "\" string=\"false";
      text += key_end;
      text += format == ToolFormat::gemma4 && value[0] == '"' ? "<|\"|>" + plain(value) + "<|\"|>"
              : are_texts_plain                               ? plain(value)
                                                              : value;
      text += value_end + (names_end ? one + ">" : "");
    }
    return text + call_end + close;
  }
};

std::vector<Format> formats() {
  const std::string d = "｜DSML｜", o = ":opensource", ns = "]<]minimax[>[";
  const auto json_of = [](ToolFormat format, const char* open, const char* name_end,
                          const char* close) {
    return Format{format, open, close, name_end, "}", "\"", "\": ", "", ", ", false};
  };
  const auto invokes = [&](ToolFormat format, const std::string& tag, const std::string& list) {
    return Format{.format = format,
                  .open = "<" + list + ">\n<" + tag + "invoke name=\"",
                  .close = "</" + list + ">",
                  .name_end = "\">\n",
                  .call_end = "</" + tag + "invoke>\n",
                  .key = "<" + tag + "parameter name=\"",
                  .key_end = "\">",
                  .value_end = "</" + tag + "parameter>\n",
                  .between = "",
                  .says_kind = !tag.empty()};
  };
  return {
      {ToolFormat::glm45, "<tool_call>", "</tool_call>", "\n", "", "<arg_key>",
       "</arg_key>\n<arg_value>", "</arg_value>\n", ""},
      {ToolFormat::glm45, "<tool_call>", "</tool_call>", "", "", "<arg_key>",
       "</arg_key><arg_value>", "</arg_value>", ""},
      {ToolFormat::hy_v3, "<tool_calls" + o + ">\n<tool_call" + o + ">", "</tool_calls" + o + ">",
       "<tool_sep" + o + ">\n", "</tool_call" + o + ">\n", "<arg_key" + o + ">",
       "</arg_key" + o + ">\n<arg_value" + o + ">", "</arg_value" + o + ">\n", ""},
      {ToolFormat::seed_oss, "<seed:tool_call>\n<function=", "</seed:tool_call>", ">\n",
       "</function>\n", "<parameter=", ">", "</parameter>\n", ""},
      {ToolFormat::qwen3_coder, "<tool_call>\n<function=", "</tool_call>", ">\n", "</function>\n",
       "<parameter=", ">\n", "\n</parameter>\n", ""},
      invokes(ToolFormat::minimax_m2, "", "minimax:tool_call"),
      {.format = ToolFormat::minimax_m3,
       .open = ns + "<tool_call>\n" + ns + "<invoke name=\"",
       .close = ns + "</tool_call>",
       .name_end = "\">",
       .call_end = ns + "</invoke>\n",
       .key = ns + "<",
       .key_end = ">",
       .value_end = ns + "</",
       .names_end = true},
      invokes(ToolFormat::deepseek_v32, d, d + "function_calls"),
      invokes(ToolFormat::deepseek_v4, d, d + "tool_calls"),
      {ToolFormat::gemma4, "<|tool_call>call:", "<tool_call|>", "{", "}", "", ":", "", ","},
      {ToolFormat::lfm2, "<|tool_call_start|>[", "]<|tool_call_end|>", "(", ")", "", "=", "", ", ",
       false},
      {ToolFormat::olmo3, "<function_calls>\n", "\n</function_calls>", "(", ")", "", "=", "", ", ",
       false},
      json_of(ToolFormat::kimi_k2, "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
              ":0<|tool_call_argument_begin|>{", "<|tool_call_end|><|tool_calls_section_end|>"),
      json_of(ToolFormat::deepseek_v3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
              "<｜tool▁sep｜>{", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      json_of(ToolFormat::tagged, "<tool_call>{\"name\": \"", "\", \"arguments\": {",
              "}</tool_call>"),
      json_of(ToolFormat::hunyuan_a13b, "<tool_calls>[{\"name\": \"", "\", \"arguments\": {",
              "}]</tool_calls>"),
      json_of(ToolFormat::nemotron_json, "<TOOLCALL>[{\"name\": \"", "\", \"arguments\": {",
              "}]</TOOLCALL>"),
      json_of(ToolFormat::cohere,
              "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"",
              "\", \"parameters\": {", "}\n]<|END_ACTION|>"),
      json_of(ToolFormat::apertus, "<|tools_prefix|>[{\"", "\": {", "}]<|tools_suffix|>"),
      json_of(ToolFormat::functionary, "<function=", ">{", "</function>"),
      json_of(ToolFormat::granite, "<|tool_call|>[{\"name\": \"", "\", \"arguments\": {", "}]"),
  };
}

const Parameters kGood = {{"mode", "\"b\""}, {"days", "14"}, {"deep", "{\"x\": true}"}};

std::string name_of_form(const Format& format) {
  return std::string(name_of(format.format)) + format.name_end;
}

// Compact JSON where a format has no spaces.
Parameters spelled(const Format& format, Parameters all) {
  for (auto& [name, value] : all)
    if (const bool is_python =
            format.format == ToolFormat::lfm2 || format.format == ToolFormat::olmo3;
        is_python || format.format == ToolFormat::gemma4) {
      std::erase(value, ' ');
      if (!is_python && name == "deep") std::erase(value, '"');
    }
  return all;
}

// The calls in a text that a strict tool is held to.
std::vector<ToolCall> calls_in(const Format& format, const std::string& text, std::string& words) {
  const json::Value called = tools(true);
  ToolCallReader reader(format.format, "", &called);
  std::vector<AnswerPiece> pieces;
  reader.push(text, pieces);
  reader.finish(pieces);
  std::vector<ToolCall> calls;
  add_pieces(pieces, words, calls);
  return calls;
}

TEST(CallGrammar, StrictCallsFollowTheirSchema) {
  for (const Format& format : formats()) {
    const auto held = constraint(grammar_of_calls(tools(true), format.format, false));
    const auto allows = [&](const std::string& name, const Parameters& all) {
      return matches(*held, "So: " + format.call(name, spelled(format, all)));
    };
    const std::string what = name_of_form(format);
    EXPECT_TRUE(matches(*held, "no call")) << what;
    EXPECT_TRUE(allows("plan", kGood)) << what << format.call("plan", spelled(format, kGood));
    EXPECT_TRUE(allows("plan", {{"mode", "\"a\""}, {"days", "3"}})) << what;
    EXPECT_TRUE(allows("plan", {kGood[0], kGood[1], {"note", "\"see </x>\""}})) << what;
    EXPECT_FALSE(allows("plan", {{"mode", "\"c\""}, kGood[1]})) << what;
    EXPECT_FALSE(allows("plan", {kGood[0], {"days", "4"}})) << what;
    EXPECT_FALSE(allows("plan", {kGood[0], kGood[1], {"deep", "{\"x\": 1}"}})) << what;
    EXPECT_FALSE(allows("plan", {kGood[0]})) << what;
    EXPECT_FALSE(allows("plan", {kGood[0], kGood[1], {"more", "1"}})) << what;
    EXPECT_FALSE(allows("other", kGood)) << what;
    std::string words;
    const auto calls =
        calls_in(format, "So: " + format.call("plan", spelled(format, kGood)), words);
    ASSERT_EQ(calls.size(), 1U) << what;
    EXPECT_EQ(words, "So: ") << what;
    EXPECT_EQ(json::dump(json::parse(calls[0].arguments, "arguments")),
              R"({"mode": "b", "days": 14, "deep": {"x": true}})")
        << what;
  }
}

// The grammar holds the name alone of a tool that is not strict.
TEST(CallGrammar, OthersAreAnyCallsOfTheTools) {
  for (const Format& format : formats()) {
    json::Value both = tools(true);
    both.as_array().push_back(json::parse(
        R"({"type": "function", "function": {"name": "free", "parameters": {"type": "object",
          "properties": {"mode": {"type": "string"}}}}})",
        "a tool"));
    const bool is_python = format.format == ToolFormat::lfm2 || format.format == ToolFormat::olmo3;
    const auto held = constraint(grammar_of_calls(both, format.format, false));
    const auto allows = [&](const std::string& name, const Parameters& all) {
      return matches(*held, format.call(name, spelled(format, all)));
    };
    const std::string what = name_of_form(format);
    EXPECT_TRUE(allows("free", {{"mode", "\"c\""}})) << what;
    EXPECT_EQ(allows("free", {{"mode", "\"c\""}, {"more", "1"}}), !is_python) << what;
    EXPECT_FALSE(allows("plan", {{"mode", "\"c\""}})) << what;
    EXPECT_FALSE(allows("freed", {{"mode", "\"c\""}})) << what;
  }
}

TEST(CallGrammar, BesideAFormAnAnswerIsCallsOrTheForm) {
  const json::Value form = json::parse(R"({"enum": ["yes", "no"]})", "a form");
  for (const Format& format : formats()) {
    const std::string call = format.call("plan", spelled(format, kGood));
    const auto held = constraint(grammar_of_calls(tools(true), format.format, false, form));
    EXPECT_TRUE(matches(*held, "\"yes\"")) << name_of_form(format);
    EXPECT_TRUE(matches(*held, call)) << name_of_form(format);
    EXPECT_TRUE(matches(*held, call + call)) << name_of_form(format);
    EXPECT_FALSE(matches(*held, "\"maybe\"")) << name_of_form(format);
    EXPECT_FALSE(matches(*held, "So: " + call)) << name_of_form(format);
    EXPECT_FALSE(matches(*held, call + "\"yes\"")) << name_of_form(format);
  }
}

TEST(CallGrammar, OneCallEndsTheAnswerWhereThereMayBeOne) {
  for (const Format& format : formats()) {
    const std::string call = format.call("plan", spelled(format, kGood));
    const auto once = constraint(grammar_of_calls(tools(true), format.format, true));
    const auto any = constraint(grammar_of_calls(tools(true), format.format, false));
    EXPECT_TRUE(matches(*once, call)) << name_of_form(format);
    EXPECT_FALSE(matches(*once, call + call)) << name_of_form(format);
    EXPECT_TRUE(matches(*any, call + call)) << name_of_form(format);
    EXPECT_EQ(matches(*any, call + " and"), true) << name_of_form(format);
  }
}

// An answer that must be a call is one, whatever is drawn; its reader finds what the schema allows.
TEST(CallGrammar, WhatIsDrawnFollowsTheSchema) {
  json::Value finite = tools(true);
  json::Value function = *finite.as_array()[0].find("function");
  json::Value parameters = *function.find("parameters"),
              properties = *parameters.find("properties");
  std::erase_if(properties.as_object(), [](const auto& one) { return one.first == "note"; });
  parameters.set("properties", properties);
  function.set("parameters", parameters);
  finite = json::Array{json::Object{{"type", "function"}, {"function", function}}};
  std::mt19937_64 random(7);
  for (const Format& format : formats()) {
    const auto held = constraint(grammar_of_calls(finite, format.format, true, false));
    EXPECT_FALSE(matches(*held, "no call")) << name_of_form(format);
    EXPECT_FALSE(matches(*held, "")) << name_of_form(format);
    for (int round = 0; round < 20; ++round) {
      std::string text, words;
      Constraint::State state = held->start();
      while (!state.accepts && text.size() < 4000) {
        std::vector<int32_t> may;
        const auto mask = held->allowed(state);
        for (int32_t token = 0; token < made_tokenizer().vocab_size(); ++token)
          if (mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) may.push_back(token);
        ASSERT_FALSE(may.empty()) << text;
        const int32_t token = may[random() % may.size()];
        text += made_tokenizer().token_bytes(token);
        state = held->next(state, token);
      }
      ASSERT_TRUE(state.accepts) << text;
      const auto calls = calls_in(format, text, words);
      ASSERT_EQ(calls.size(), 1U) << text;
      EXPECT_EQ(calls[0].name, "plan");
      EXPECT_EQ(words, "") << text;
      const json::Value arguments = json::parse(calls[0].arguments, text);
      const json::Value *mode = arguments.find("mode"), *days = arguments.find("days"),
                        *deep = arguments.find("deep");
      ASSERT_TRUE(mode && days) << text;
      EXPECT_TRUE(*mode == json::Value("a") || *mode == json::Value("b")) << text;
      EXPECT_TRUE(*days == json::Value(3) || *days == json::Value(14)) << text;
      EXPECT_TRUE(!deep || deep->find("x")->is_bool()) << text;
    }
  }
}

}  // namespace
}  // namespace invar
