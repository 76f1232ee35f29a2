// Texts of strict tools between the tags of a call: nothing in them ends them before their end.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/input_file.h"
#include "frontend/call_reader.h"
#include "frontend/constraint_compiler.h"
#include "frontend/custom_tools.h"
#include "tokenizer/make_tokenizer.h"

namespace invar {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer kTokenizer = Tokenizer::from_texts(make_tokenizer(400, 1).texts, "made");
  return kTokenizer;
}

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
  ConstraintCompiler compiler(tokenizer());
  return compiler.compile(grammar_of_calls(tools, format, false));
}

bool matches(Constraint& held, std::string_view text) {
  Constraint::State state = held.start();
  for (const char c : text) {
    int32_t token = 0;
    while (tokenizer().is_special(token) || tokenizer().token_bytes(token) != std::string(1, c))
      ++token;
    state = held.next(state, token);
    if (state.is_dead()) return false;
  }
  return state.accepts;
}

// What a call is written with around its only text.
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

// The text that a call's reader finds, in any cut.
std::string text_in(const Format& format, const json::Value& tools, const std::string& text) {
  const std::string call = format.open + text + format.close;
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
    EXPECT_EQ(words, "") << call;
    EXPECT_EQ(calls.size(), 1U) << call;
    const std::string one = calls.empty() ? "" : calls[0].arguments;
    EXPECT_TRUE(found.empty() || one == found) << call;
    found = one;
  }
  return openai::custom_input(found);
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

// What Codex sends is held to in each of the formats.
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

}  // namespace
}  // namespace invar
