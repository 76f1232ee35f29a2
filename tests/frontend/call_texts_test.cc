// Texts of strict tools between the tags of a call: nothing in them ends them before their end.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>

#include "base/error.h"
#include "base/input_file.h"
#include "frontend/call_reader.h"
#include "frontend/constraint_compiler.h"
#include "frontend/custom_tools.h"
#include "held_calls.h"

namespace invar {
namespace {

using namespace testing_frontend;

json::Value tools_of(const json::Value& text) {
  const json::Value function =
      json::Object{{"name", "f"},
                   {"strict", true},
                   {"parameters", json::Object{{"type", "object"},
                                               {"properties", json::Object{{"input", text}}},
                                               {"required", json::Array{"input"}}}}};
  return json::Array{json::Object{{"type", "function"}, {"function", function}}};
}

// A custom tool whose text follows a grammar of Lark's.
json::Value tools_of_lark(const std::string& grammar) {
  const json::Value format =
      json::Object{{"type", "grammar"}, {"syntax", "lark"}, {"definition", grammar}};
  const json::Value function =
      openai::function_of_custom(json::Object{{"name", "f"}, {"format", format}});
  return json::Array{json::Object{{"type", "function"}, {"function", function}}};
}

std::shared_ptr<Constraint> held_to(const json::Value& tools, ToolFormat format) {
  ConstraintCompiler compiler(made_tokenizer());
  return compiler.compile(grammar_of_calls(tools, format, false));
}

// The marks of a call around its only text.
struct Format {
  ToolFormat format;
  std::string open, close;
  std::string mark;  // ends a text
};

const Format kCoder = {ToolFormat::qwen3_coder, "<tool_call>\n<function=f>\n<parameter=input>\n",
                       "\n</parameter>\n</function>\n</tool_call>", "\n</parameter>"};
const Format kGlm = {ToolFormat::glm45, "<tool_call>f\n<arg_key>input</arg_key>\n<arg_value>",
                     "</arg_value>\n</tool_call>", "</arg_value>"};
const Format kDeepSeek = {
    ToolFormat::deepseek_v32,
    "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter "
    "name=\"input\" string=\"true\">",
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>", "</｜DSML｜parameter>"};
const Format kMiniMax = {
    ToolFormat::minimax_m3,
    "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<input>",
    "]<]minimax[>[</input>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    "]<]minimax[>[</input>"};
const Format kGemma = {ToolFormat::gemma4, "<|tool_call>call:f{input:<|\"|>", "<|\"|>}<tool_call|>",
                       "<|\"|>"};

// The arguments that a call's reader finds in what a model writes, in any cut.
std::string arguments_of(const Format& format, const json::Value& tools, const std::string& call,
                         const std::string& behind = "") {
  std::string found;
  for (const size_t size : {size_t{1}, size_t{3}, call.size()}) {
    ToolCallReader reader(format.format, "", &tools);
    std::vector<AnswerPiece> pieces;
    for (size_t at = 0; at < call.size(); at += size)
      reader.push(std::string_view(call).substr(at, size), pieces);
    reader.finish(pieces);
    std::string words;
    std::vector<ToolCall> calls;
    add_pieces(pieces, words, calls);
    EXPECT_EQ(words, behind) << call;
    EXPECT_EQ(calls.size(), 1U) << call;
    const std::string one = calls.empty() ? "" : calls[0].arguments;
    EXPECT_TRUE(found.empty() || one == found) << call;
    found = one;
  }
  return found;
}
std::string arguments_in(const Format& format, const json::Value& tools, const std::string& text) {
  return arguments_of(format, tools, format.open + text + format.close);
}
// The same of a call that ends in its midst.
std::string cut_arguments(const Format& format, const json::Value& tools, const std::string& text,
                          const std::string& behind = "") {
  return arguments_of(format, tools, format.open + text + behind, behind);
}
std::string text_in(const Format& format, const json::Value& tools, const std::string& text) {
  return openai::custom_input(arguments_in(format, tools, text));
}

// Two texts side by side that are the mark's halves, and, as the control, the same two the other
// way round.
TEST(CallTexts, AGrammarWhoseTerminalsSpellTheClosingTagIsRefused) {
  for (const Format& format : {kCoder, kGlm, kDeepSeek, kMiniMax, kGemma}) {
    const size_t half = format.mark.find_first_of("parg|", 2);
    const auto quoted = [](const std::string& text) { return json::dump(json::Value(text)); };
    const std::string first = format.mark.substr(0, half), second = format.mark.substr(half);
    const std::string halves = quoted(first) + " " + quoted(second);
    const std::string turned = quoted(second) + " " + quoted(first);
    const std::string all_spelled[] = {
        "start: " + halves, "start: \"a\"* x\nx: \"b\" | " + halves + " x",
        "start: (" + quoted(first) + " | " + quoted(second) + ")~2..300", "start: C+\nC: /(.|\\n)/",
        "start: " + quoted(first) + "\n%ignore " + quoted(second)};
    for (const std::string& spelled : all_spelled) {
      try {
        held_to(tools_of_lark(spelled), format.format);
        ADD_FAILURE() << name_of(format.format) << " takes " << spelled;
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(json::quoted(format.mark)), std::string::npos)
            << error.what();
      }
      EXPECT_NO_THROW(held_to(tools_of_lark(spelled), ToolFormat::tagged)) << spelled;
    }
    const json::Value tools = tools_of_lark("start: " + turned);
    const auto held = held_to(tools, format.format);
    EXPECT_TRUE(matches(*held, format.open + second + first + format.close));
    EXPECT_FALSE(matches(*held, format.open + first + second + format.close));
    EXPECT_EQ(text_in(format, tools, second + first), second + first);
    const std::string never = "start: x\nx: x " + quoted(second) + " | \"b\" " + quoted(first);
    EXPECT_THROW(held_to(tools_of_lark(never), format.format), UsageError);
    EXPECT_NO_THROW(held_to(tools_of_lark(never + " \"c\""), format.format));
  }
}

// Codex's grammar is held to in each of the formats.
TEST(CallTexts, ThePatchOfCodexIsHeldTo) {
  const std::string patch =
      "*** Begin Patch\n*** Update File: a.py\n@@ def f():\n-x = \"</\"\n+x = 2\n*** End Patch";
  const json::Value tools =
      tools_of_lark(read_whole_file(INVAR_SOURCE_DIR "/tests/data/apply_patch.lark"));
  for (const Format& format : {kCoder, kGlm, kDeepSeek, kMiniMax, kGemma}) {
    const auto held = held_to(tools, format.format);
    EXPECT_TRUE(matches(*held, format.open + patch + format.close)) << name_of(format.format);
    EXPECT_FALSE(matches(*held, format.open + patch + "x" + format.close));
    EXPECT_EQ(text_in(format, tools, patch), patch);
  }
}

// A tag within a line ends no value that stands on lines of its own, and neither does the first
// line; the control is a tool that is not strict, where a model may leave line breaks out.
TEST(CallTexts, ATagWithinALineEndsNoValueOfAStrictTool) {
  const json::Value strict = tools_of(json::Object{{"type", "string"}});
  const std::string texts[] = {"x</parameter>y",
                               "</parameter>",
                               "</parameter>\n",
                               "\nx\n",
                               "",
                               "x </parameter>\n</function>\n</tool_call>"};
  const auto held = held_to(strict, ToolFormat::qwen3_coder);
  for (const std::string& text : texts) {
    EXPECT_TRUE(matches(*held, kCoder.open + text + kCoder.close)) << text;
    EXPECT_EQ(text_in(kCoder, strict, text), text);
  }
  const json::Value free = json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"input": {"type": "string"}}}}}])",
      "tools");
  ToolCallReader reader(ToolFormat::qwen3_coder, "", &free);
  std::vector<AnswerPiece> pieces;
  reader.push(kCoder.open + texts[0] + kCoder.close, pieces);
  reader.finish(pieces);
  std::string words;
  std::vector<ToolCall> calls;
  add_pieces(pieces, words, calls);
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].arguments, R"({"input": "x"})");
}

// A pattern holds the same texts.
TEST(CallTexts, APatternsTextsHaveNoClosingTag) {
  for (const Format& format : {kCoder, kGlm, kDeepSeek, kMiniMax, kGemma}) {
    const json::Value tools = tools_of(json::Object{{"type", "string"}, {"pattern", "^[^b]*$"}});
    const auto held = held_to(tools, format.format);
    EXPECT_TRUE(matches(*held, format.open + "a\nc" + format.close));
    EXPECT_FALSE(matches(*held, format.open + "ab" + format.close));
    EXPECT_FALSE(matches(*held, format.open + "a" + format.mark + "a" + format.close));
    const std::string near = "a" + format.mark.substr(0, format.mark.size() - 1);
    EXPECT_TRUE(matches(*held, format.open + near + format.close));
    EXPECT_EQ(text_in(format, tools, near), near);
  }
}

// A mark with a parameter's name in it may be too long to be looked for, and is refused by a
// sentence.
TEST(CallTexts, MarksThatAreTooLongAreRefused) {
  const auto refusal = [](size_t size, const char* schema) {
    const std::string name(size, 'n');
    const json::Value tools = json::parse(
        R"([{"type": "function", "function": {"name": "f", "strict": true, "parameters": )"
        R"({"type": "object", "properties": {")" +
            name + "\": " + schema + R"(}, "required": [")" + name + R"("]}}}])",
        "test");
    try {
      held_to(tools, ToolFormat::minimax_m3);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const char* lark = R"({"type": "string", "x-lark": "start: \"a\""})";
  EXPECT_EQ(refusal(46, lark), "");
  EXPECT_NE(refusal(47, lark).find("of at most 62 bytes"), std::string::npos) << refusal(47, lark);
  EXPECT_EQ(refusal(200, R"({"type": "string"})"), "");
  EXPECT_NE(refusal(300, R"({"type": "string"})").find("of at most 256 bytes"), std::string::npos);
}

// It was quadratic, and nobody paid.
TEST(CallTexts, ALongChainOfRulesCostsItsLength) {
  std::string chain;
  constexpr int kRules = 4000;
  for (int i = 0; i < kRules; ++i)
    chain +=
        fmt::format("{}: {}\n", i ? fmt::format("r{}", i) : "start", fmt::format("r{}", i + 1));
  chain += fmt::format("r{}: \"a\"\n", kRules);
  const std::clock_t start = std::clock();
  try {
    held_to(tools_of_lark(chain), ToolFormat::glm45);
  } catch (const UsageError&) {  // its depth may be refused
  }
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC / 4);  // it was 1.6 s
}

// As far as it is followed, a chain of references costs no memory of the stack.
TEST(CallTexts, ALongChainOfReferencesIsFollowedSoFar) {
  std::string text = "{";
  for (int i = 0; i < 50'000; ++i)
    text += fmt::format("\"d{}\": {{\"$ref\": \"#/$defs/d{}\"}}, ", i, i + 1);
  text += R"("d50000": {"type": "string"}})";
  const json::Value tools = json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", )"
      R"("properties": {"input": {"$ref": "#/$defs/d0"}}, "$defs": )" +
          text + "}}}]",
      "test");
  EXPECT_EQ(arguments_in(kGlm, tools, "12"), R"({"input": 12})");  // that it is a text is not seen
}

// Schemas that lead to each other many times over are looked at once.
TEST(CallTexts, AReferenceToItselfIsFollowedOnce) {
  std::string options;
  for (int i = 0; i < 20; ++i) options += R"({"$ref": "#/$defs/a"},)";
  const json::Value tools = json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", )"
      R"("properties": {"input": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [)" +
          options + R"({"type": "string"}]}}}}}])",
      "test");
  const std::clock_t start = std::clock();
  EXPECT_EQ(arguments_in(kGlm, tools, "12"), R"({"input": "12"})");
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC);
}

// MiniMax M3's values: one that may be null, a choice of one thing, and one that is cut off.
TEST(CallTexts, NestedTagsAreWhatTheirSchemasSay) {
  const json::Value tools = json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
          "properties": {"input": {"type": ["string", "null"]}, "a": {"anyOf": [{"type": "null"},
          {"type": "object", "properties": {"zip": {"type": "string"}}}]}, "o": {"type": "object"}}}}}])",
      "test");
  EXPECT_EQ(arguments_in(kMiniMax, tools, "null"), R"({"input": null})");
  EXPECT_EQ(arguments_in(kMiniMax, tools, "nulls"), R"({"input": "nulls"})");
  const std::string ns = "]<]minimax[>[";
  const auto tagged = [&](const std::string& name, const std::string& text) {
    return ns + "<" + name + ">" + text + ns + "</" + name + ">";
  };
  EXPECT_EQ(arguments_in(kMiniMax, tools,
                         "x" + ns + "</input>" + tagged("a", tagged("zip", "12")) + ns + "<input>"),
            R"({"input": "x", "a": {"zip": "12"}})");
  // Without its end, and with a tag of its own name left open.
  EXPECT_TRUE(
      json::parse(cut_arguments(kMiniMax, tools, "x" + ns + "</input>" + ns + "<o>" + ns + "<o>1"),
                  "test")
          .find("o"));
  // A closing tag is no parameter.
  EXPECT_EQ(cut_arguments(kMiniMax, tools, "x" + ns + "</input>" + ns + "</tool_call>", "So."),
            R"({"input": "x"})");
}

}  // namespace
}  // namespace invar
