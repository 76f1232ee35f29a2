#include "frontend/tool_calls.h"

#include <gtest/gtest.h>

#include "frontend/call_reader.h"

namespace invar {
namespace {

struct Parted {
  std::string content;
  std::vector<std::string> calls;  // "name arguments"
  bool operator==(const Parted&) const = default;
};

void PrintTo(const Parted& parted, std::ostream* out) {
  *out << parted.content;
  for (const std::string& call : parted.calls) *out << " [" << call << "]";
}

// The parts of a text that comes in pieces of `size`.
Parted part(ToolFormat format, const std::string& text, size_t size, const std::string& name = {}) {
  ToolCallReader reader(format, name);
  Parted parted;
  std::vector<ToolCall> calls;
  std::vector<AnswerPiece> pieces;
  for (size_t at = 0; at < text.size(); at += size)
    reader.push(std::string_view(text).substr(at, size), pieces);
  reader.finish(pieces);
  add_pieces(pieces, parted.content, calls);
  for (const ToolCall& call : calls) parted.calls.push_back(call.name + " " + call.arguments);
  return parted;
}

void expect(ToolFormat format, const std::string& text, const Parted& parted,
            const std::string& name = {}) {
  for (const size_t size : {size_t{1}, size_t{2}, size_t{5}, text.size()})
    EXPECT_EQ(part(format, text, size, name), parted) << text << ", in pieces of " << size;
}

TEST(ToolCalls, Tagged) {
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)";
  expect(ToolFormat::tagged, "no call <tool", {"no call <tool", {}});
  expect(ToolFormat::tagged, "Now: " + call + " and" + call,
         {"Now:  and", {R"(f {"a": 1})", R"(f {"a": 1})"}});
  // The closing tag may have been a stop; what is no call stays text.
  expect(ToolFormat::tagged, call.substr(0, call.find("</")), {"", {R"(f {"a": 1})"}});
  expect(ToolFormat::tagged, "<tool_call>{}</tool_call>", {"<tool_call>{}</tool_call>", {}});
}

TEST(ToolCalls, Bare) {
  const std::string call = R"({"name": "f", "parameters": {"a": 1}})";
  expect(ToolFormat::bare, call, {"", {R"(f {"a": 1})"}});
  expect(ToolFormat::bare, " <|python_tag|>" + call, {" <|python_tag|>" + call, {}});
  expect(ToolFormat::bare, "<|python_tag|>" + call, {"", {R"(f {"a": 1})"}});
  expect(ToolFormat::bare, "so " + call, {"so " + call, {}});
  expect(ToolFormat::bare, "{\"name\":", {"{\"name\":", {}});
}

TEST(ToolCalls, ArgumentsAreACallOfTheToolThatWasNamed) {
  expect(ToolFormat::arguments, R"({"a":)", {"", {R"(f {"a":)"}}, "f");
}

TEST(ToolCalls, NothingOfAnAnswerThatIsHeldToACallIsText) {
  const std::string call = R"({"name": "f\"g", "parameters": {"a": 1}})";
  const size_t name = call.find(','), arguments = call.find("{\"a");
  for (size_t size = 1; size < call.size(); ++size) {
    const std::string cut = call.substr(0, size);
    Parted expected;
    if (size >= name) expected.calls = {"f\"g " + (size <= arguments ? "" : cut.substr(arguments))};
    expect(ToolFormat::object, cut, expected);
  }
  expect(ToolFormat::object, call, {"", {R"(f"g {"a": 1})"}});
}

TEST(ToolCalls, TextAndCallsComeInTheirOrder) {
  ToolCallReader reader(ToolFormat::tagged);
  std::vector<AnswerPiece> pieces;
  reader.push(R"(Hm. <tool_call>{"name": "f", "arguments": {}}</tool_call> So.)", pieces);
  std::string kinds;
  for (const AnswerPiece& piece : pieces) kinds += "tcae"[static_cast<int>(piece.kind)];
  EXPECT_EQ(kinds, "tcaet");
}

TEST(ToolCalls, ArgumentsAreShownBeforeTheyEnd) {
  ToolCallReader reader(ToolFormat::tagged);
  std::vector<AnswerPiece> pieces;
  reader.push(R"(<tool_call>{"name": "f", "arguments": {"a": "lo)", pieces);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].text, "f");
  EXPECT_EQ(pieces[1].text, R"({"a": "lo)");
  // Where the arguments come first, nobody knows whose they are.
  ToolCallReader other(ToolFormat::tagged);
  pieces.clear();
  other.push(R"(<tool_call>{"arguments": {"a": 1}, "name": "f")", pieces);
  EXPECT_TRUE(pieces.empty());
  other.push("}</tool_call>", pieces);
  EXPECT_EQ(pieces.size(), 3U);
}

TEST(ToolCalls, SeveralWithoutMarks) {
  const std::string call = R"({"name": "f", "parameters": {"a": "}"}})";
  expect(ToolFormat::bare, call + "; " + call, {"", {R"(f {"a": "}"})", R"(f {"a": "}"})"}});
  expect(ToolFormat::bare, call + " so", {" so", {R"(f {"a": "}"})"}});
  expect(ToolFormat::pythonic, R"([f(a='it\'s "x\d"', b=[1]), g(), h(c=up)])",
         {"", {R"(f {"a": "it's \"x\\d\"", "b": [1]})", "g {}", R"(h {"c": "up"})"}});
  expect(ToolFormat::pythonic, "[f (see above)] says", {"[f (see above)] says", {}});
}

TEST(ToolCalls, AFunctionsParameterThatComesAgainIsNotShown) {
  expect(ToolFormat::qwen3_coder,
         "<tool_call><function=f><parameter=a>\n</parameter><parameter=a>x</parameter>"
         "<parameter=b>\n\n1\n\n</parameter></function></tool_call>",
         {"", {R"(f {"a": "", "b": "\n1\n"})"}});
  expect(ToolFormat::qwen3_coder, "<tool_call></tool_call>", {"<tool_call></tool_call>", {}});
}

TEST(ToolCalls, WhatIsWholeOfArguments) {
  const std::string all = R"({"a": "x,{", "b": [1, {"c": 22}, 3], "d": true})";
  EXPECT_EQ(json::dump(whole_part(all)), all);
  EXPECT_EQ(json::dump(whole_part("")), "{}");
  EXPECT_EQ(json::dump(whole_part(R"({"a": "x,)")), "{}");
  EXPECT_EQ(json::dump(whole_part(R"({"a": "x,{", "b": [1, {"c": 2)")),
            R"({"a": "x,{", "b": [1, {}]})");
  EXPECT_EQ(json::dump(whole_part(R"({"a": 1, "b": tr)")), R"({"a": 1})");
}

TEST(ToolCalls, TheTemplateSaysTheFormat) {
  EXPECT_EQ(tool_format_of("... <tool_call> ..."), ToolFormat::tagged);
  EXPECT_EQ(tool_format_of("{\"name\": x, \"parameters\": y}"), ToolFormat::bare);
  EXPECT_EQ(tool_format_of("{{ messages }}"), ToolFormat::none);
}

}  // namespace
}  // namespace invar
