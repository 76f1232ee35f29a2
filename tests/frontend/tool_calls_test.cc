#include "frontend/tool_calls.h"

#include <gtest/gtest.h>

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
  for (size_t at = 0; at < text.size(); at += size)
    reader.push(std::string_view(text).substr(at, size), parted.content, calls);
  reader.finish(parted.content, calls);
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

TEST(ToolCalls, SaysWhetherTextCameFirst) {
  for (const auto& [text, first] :
       {std::pair(R"(Hm. <tool_call>{"name": "f", "arguments": {}}</tool_call>)", true),
        {R"(<tool_call>{"name": "f", "arguments": {}}</tool_call> Hm.)", false}}) {
    ToolCallReader reader(ToolFormat::tagged);
    std::string content;
    std::vector<ToolCall> calls;
    for (const char c : std::string(text)) reader.push({&c, 1}, content, calls);
    EXPECT_EQ(reader.text_came_first(), first) << text;
  }
}

TEST(ToolCalls, TheTemplateSaysTheFormat) {
  EXPECT_EQ(tool_format_of("... <tool_call> ..."), ToolFormat::tagged);
  EXPECT_EQ(tool_format_of("{\"name\": x, \"parameters\": y}"), ToolFormat::bare);
  EXPECT_EQ(tool_format_of("{{ messages }}"), ToolFormat::none);
}

}  // namespace
}  // namespace invar
