#include <fmt/format.h>

#include "frontend/tool_calls.h"

#include <gtest/gtest.h>

#include <ctime>

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
Parted part(ToolFormat format, const std::string& text, size_t size, const std::string& name = {},
            const json::Value* tools = nullptr) {
  ToolCallReader reader(format, name, tools);
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
  expect(ToolFormat::tagged, R"(<tool_call>{"name": "f"}</tool_call>)", {"", {"f {}"}});
  expect(ToolFormat::tagged, R"(<tool_call>{"name": "f"})", {"", {"f {}"}});
}

TEST(ToolCalls, ACallThatIsNotClosedSwallowsNothing) {
  const std::string open = R"(<tool_call>{"name": "f", "arguments": {}})";
  expect(ToolFormat::tagged, open + " and so on", {"and so on", {"f {}"}});
  expect(ToolFormat::tagged, open + "\n" + open + "\n</tool_call>\n", {"", {"f {}", "f {}"}});
  expect(ToolFormat::tagged, open + "}\n</tool_call>\n" + open + "</tool_call>\nDone.\n",
         {"\nDone.\n", {"f {}", "f {}"}});
  const std::string coder = "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>";
  expect(ToolFormat::qwen3_coder, "<tool_call>\n" + coder + "\nwords <tool_call>" + coder,
         {"\nwords", {R"(f {"a": "x"})", R"(f {"a": "x"})"}});
  // Nor does one without its wrapper.
  expect(ToolFormat::qwen3_coder, "So: " + coder + "\n</tool_call>", {"So: ", {R"(f {"a": "x"})"}});
  expect(ToolFormat::qwen3_coder, "So <function=", {"So <function=", {}});
}

// A model may leave out the end of a value, a function or a call of qwen3_coder's.
TEST(ToolCalls, AValueThatIsNotClosedEndsWithItsCall) {
  const json::Value tools = json::parse(R"([{"type": "function", "function": {"name": "f",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"},
      "b": {"type": "integer"}, "c": {"type": ["string", "null"]}}}}}])",
                                        "tools");
  const auto expect_calls = [&](const std::string& text, const Parted& parted) {
    for (const size_t size : {size_t{1}, size_t{2}, size_t{7}, text.size()})
      EXPECT_EQ(part(ToolFormat::qwen3_coder, text, size, {}, &tools), parted)
          << text << ", in pieces of " << size;
  };
  const std::string open = "<tool_call>\n<function=f>\n", x = "<parameter=a>\nx\n",
                    end = "</parameter>\n", over = "</function>\n</tool_call>";
  const std::string is_x = R"(f {"a": "x"})";
  expect_calls(open + x + end + over, {"", {is_x}});
  expect_calls(open + x + end + "</tool_call>\nwords", {"\nwords", {is_x}});
  expect_calls(open + x + over, {"", {is_x}});
  expect_calls(open + x + "</tool_call>", {"", {is_x}});
  expect_calls(open + x + "</function>", {"", {is_x}});
  expect_calls(open + x, {"", {is_x}});
  expect_calls(open + x + over + "\n" + open + x + end + over, {"", {is_x, is_x}});
  expect_calls(open, {"", {"f {}"}});
  expect_calls(open + "<parameter=c>\nnull\n" + over, {"", {R"(f {"c": null})"}});
  expect_calls(open + "<parameter=b>\n7\n", {"", {R"(f {"b": 7})"}});
  expect_calls(open + "<parameter=b>\n7\n<parameter=c>\ny\n" + x + over,
               {"", {R"(f {"b": 7, "c": "y", "a": "x"})"}});
  // The controls: such words within a value that is closed.
  for (const char* word : {"</function>", "<parameter=z>", "x <parameter=b>", "<parameter=", "</",
                           "x </tool_call>", "x </function></tool_call>"})
    expect_calls(open + "<parameter=a>\n\n" + word + " y\n" + end + over,
                 {"", {std::string(R"(f {"a": "\n)") + word + R"( y"})"}});
}

// The grammar closes the values of a strict tool, so that such words on a line are within one.
TEST(ToolCalls, AValueOfAStrictToolEndsWhereItIsClosed) {
  const auto tools = [](const char* strict) {
    return json::parse(
        fmt::format(R"([{{"type": "function", "function": {{"name": "f", "strict": {},
      "parameters": {{"type": "object", "properties": {{"a": {{"type": "string"}},
      "b": {{"type": "string"}}}}}}}}}}])",
                    strict),
        "tools");
  };
  const json::Value strict = tools("true"), free = tools("false");
  for (const std::string word : {"</tool_call>", "</function>\n</tool_call>", "<parameter=b>"}) {
    const std::string call = "<tool_call>\n<function=f>\n<parameter=a>\nx\n" + word +
                             "\ny\n</parameter>\n</function>\n</tool_call>";
    std::string quoted;
    json::append_quoted(quoted, "x\n" + word + "\ny");
    const Parted whole = {"", {"f {\"a\": " + quoted + "}"}};
    for (const size_t size : {size_t{1}, size_t{3}, call.size()}) {
      EXPECT_EQ(part(ToolFormat::qwen3_coder, call, size, {}, &strict), whole) << word;
      EXPECT_NE(part(ToolFormat::qwen3_coder, call, size, {}, &free), whole) << word;
    }
  }
}

// JSON of a strict tool is whole where it is closed outside its texts.
TEST(ToolCalls, ATagWithinATextOfAStrictToolsJsonEndsNothing) {
  const auto tools = [](const char* strict) {
    return json::parse(
        fmt::format(R"([{{"type": "function", "function": {{"name": "f", "strict": {},
      "parameters": {{"type": "object", "properties": {{"a": {{"type": "array"}}}}}}}}}}])",
                    strict),
        "tools");
  };
  const json::Value strict = tools("true"), free = tools("false");
  const std::string call =
      "<tool_call>f<arg_key>a</arg_key><arg_value>[\"</arg_value>\", \"\\\"\"]</arg_value>"
      "</tool_call>";
  const Parted whole = {"", {R"(f {"a": ["</arg_value>", "\""]})"}};
  for (const size_t size : {size_t{1}, size_t{3}, call.size()}) {
    EXPECT_EQ(part(ToolFormat::glm45, call, size, {}, &strict), whole);
    EXPECT_NE(part(ToolFormat::glm45, call, size, {}, &free), whole);
  }
}

// A call as another format writes it is text, and so is nothing at all behind a mark.
TEST(ToolCalls, ACallOfAnotherFormatIsText) {
  const std::string call = R"({"name": "f", "arguments": {}})";
  for (const auto& [format, mark] : {std::pair(ToolFormat::gpt_oss, "<|channel|>commentary to="),
                                     std::pair(ToolFormat::tagged, "<tool_call>")}) {
    const bool is_json = format == ToolFormat::tagged;
    expect(format, mark + call, is_json ? Parted{"", {"f {}"}} : Parted{mark + call, {}});
    expect(format, mark, {mark, {}});
  }
}

// A parameter of qwen3_coder's whose schema allows a text is one.
TEST(ToolCalls, ATextStaysOneWhateverElseItMayBe) {
  const json::Value tools = json::parse(R"([{"type": "function", "function": {"name": "f",
    "parameters": {"type": "object", "$defs": {"word": {"type": "string"}}, "properties": {
      "any": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "list": {"type": ["string", "null"]}, "ref": {"$ref": "#/$defs/word"},
      "all": {"allOf": [{"$ref": "#/$defs/word"}]}, "enum": {"enum": ["1", "2"]},
      "const": {"const": "1"}, "number": {"type": ["integer", "null"]}}}}}])",
                                        "tools");
  const auto value = [&](const std::string& name, const std::string& text) {
    const std::string call = "<tool_call>\n<function=f>\n<parameter=" + name + ">\n" + text +
                             "\n</parameter>\n</function>\n</tool_call>";
    std::string found;
    for (const size_t size : {size_t{1}, size_t{3}, call.size()}) {
      const Parted parted = part(ToolFormat::qwen3_coder, call, size, {}, &tools);
      const std::string one = parted.calls.size() == 1 ? parted.calls[0] : "no call";
      if (!found.empty()) {
        EXPECT_EQ(one, found);
      }
      found = one;
    }
    return found;
  };
  for (const char* name : {"any", "list", "ref", "all", "enum", "const"}) {
    const std::string front = std::string("f {\"") + name + "\": ";
    EXPECT_EQ(value(name, "12345"), front + "\"12345\"}");
    EXPECT_EQ(value(name, "{\"a\": 1}"), front + R"("{\"a\": 1}"})");
    EXPECT_EQ(value(name, "nullable"), front + "\"nullable\"}");
  }
  EXPECT_EQ(value("any", "null"), R"(f {"any": null})");
  EXPECT_EQ(value("list", "null"), R"(f {"list": null})");
  EXPECT_EQ(value("ref", "null"), R"(f {"ref": "null"})");
  EXPECT_EQ(value("number", "12345"), R"(f {"number": 12345})");
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
  expect(ToolFormat::pythonic, R"-([f(a=['x]\'', (1, "y)")], b={"c": 1, 'd': 2, "c": 3})])-",
         {"", {R"-(f {"a": ["x]'", [1, "y)"]], "b": {"c": 3, "d": 2}})-"}});
  expect(ToolFormat::pythonic, "[f (see above)] says", {"[f (see above)] says", {}});
}

TEST(ToolCalls, AFunctionsParameterThatComesAgainIsNotShown) {
  expect(ToolFormat::qwen3_coder,
         "<tool_call><function=f><parameter=a>\n</parameter><parameter=a>x</parameter>"
         "<parameter=b>\n\n1\n\n</parameter></function></tool_call>",
         {"", {R"(f {"a": "", "b": "\n1\n"})"}});
  expect(ToolFormat::qwen3_coder, "<tool_call></tool_call>", {"<tool_call></tool_call>", {}});
}

// Seconds of this thread that reading takes: what never closes, in pieces of 8 bytes; the least of
// a few.
double seconds_of(ToolFormat format, const std::string& begin, const std::string& piece,
                  size_t bytes) {
  static const json::Value tools = json::parse(
      R"([{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "array"}}}}}])",
      "tools");
  std::string text = begin;
  while (text.size() < bytes) text += piece;
  double least = 1e9;
  for (int round = 0; round < 3; ++round) {
    const std::clock_t start = std::clock();
    ToolCallReader reader(format, "f", &tools);
    std::vector<AnswerPiece> pieces;
    for (size_t at = 0; at < text.size(); at += 8) {
      reader.push(std::string_view(text).substr(at, 8), pieces);
      pieces.clear();
    }
    least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

// A token costs what it adds, however long ago a call began: four times the text takes about four
// times as long; it was sixteen.
TEST(ToolCalls, WhatNeverClosesCostsItsBytes) {
  struct Endless {
    ToolFormat format;
    std::string begin, piece;
  };
  const std::string deepseek = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";
  for (const auto& [format, begin, piece] : {
           Endless{ToolFormat::tagged, "<tool_call>{\"arguments\": {\"a\": \"", "x"},
           Endless{ToolFormat::tagged, "<tool_call>{\"name\": \"", "x"},
           Endless{ToolFormat::tagged, "<tool_call>", " "},
           Endless{ToolFormat::qwen3_coder, "<tool_call>", " "},
           Endless{ToolFormat::qwen3_coder, "<tool_call><function=", "x"},
           Endless{ToolFormat::qwen3_coder, "<tool_call><function=f><parameter=", "x"},
           Endless{ToolFormat::qwen3_coder, "<tool_call><function=f><parameter=a>[", "1, "},
           Endless{ToolFormat::mistral, "[TOOL_CALLS]{\"arguments\": {\"a\": \"", "x"},
           Endless{ToolFormat::mistral, "[TOOL_CALLS]", ","},
           Endless{ToolFormat::deepseek_v3, deepseek, "x"},
           Endless{ToolFormat::gpt_oss, "<|channel|>commentary to=", "x"},
           Endless{ToolFormat::bare, "{\"name\": \"g\", \"parameters\": {\"a\": \"", "x"},
           Endless{ToolFormat::bare, "", " "},
           Endless{ToolFormat::pythonic, "[f(a=", "x"},
           Endless{ToolFormat::pythonic, "[f(a=[", "1, "},
           Endless{ToolFormat::pythonic, "[f(a={", "\"k\": ['x'], "},
           Endless{ToolFormat::pythonic, "[f(", "x"},
           Endless{ToolFormat::pythonic, "[g(", "x"},
           Endless{ToolFormat::glm45, "<tool_call>", "x"},
           Endless{ToolFormat::glm45, "<tool_call>f", " "},
           Endless{ToolFormat::glm45, "<tool_call>f<arg_key>", "x"},
           Endless{ToolFormat::glm45, "<tool_call>f<arg_key>a</arg_key>", " "},
           Endless{ToolFormat::glm45, "<tool_call>f<arg_key>a</arg_key><arg_value>[", "1, "},
           Endless{ToolFormat::minimax_m2, "<minimax:tool_call>", "\n"},
           Endless{ToolFormat::minimax_m2, "<minimax:tool_call><invoke name=\"", "x"},
           Endless{ToolFormat::kimi_k2, "<|tool_calls_section_begin|><|tool_call_begin|>", "x"},
           Endless{ToolFormat::gemma4, "<|tool_call>call:", "x"},
           Endless{ToolFormat::gemma4, "<|tool_call>call:f{a:", "x"},
           Endless{ToolFormat::gemma4, "<|tool_call>call:f{", "x"},
           Endless{ToolFormat::gemma4, "<|tool_call>call:f{a:<|\"|>", "<|"},
           Endless{ToolFormat::functionary, "<function=", "x"},
           Endless{ToolFormat::functionary, "<function=f>", " "},
           Endless{ToolFormat::lfm2, "<|tool_call_start|>", "["},
           Endless{ToolFormat::lfm2, "<|tool_call_start|>[f(a=[", "1, "},
           Endless{ToolFormat::minimax_m3,
                   "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<a>",
                   "]<"},
           Endless{ToolFormat::cohere, "<|START_ACTION|>[{\"parameters\": {\"a\": \"", "x"},
           Endless{ToolFormat::apertus, "<|tools_prefix|>[{\"f\": [\"", "x"},
           Endless{ToolFormat::nemotron_json, "<TOOLCALL>[{\"arguments\": {\"a\": \"", "x"},
       }) {
    const double once = seconds_of(format, begin, piece, 40 << 10);
    EXPECT_LT(seconds_of(format, begin, piece, 160 << 10), 9 * once + 0.02) << begin << piece;
  }
}

TEST(ToolCalls, ManyThatAreNoneCostTheirBytes) {
  std::string text;
  while (text.size() < (2 << 20)) text += "<tool_call></tool_call>";
  std::vector<AnswerPiece> pieces;
  const std::clock_t start = std::clock();
  ToolCallReader reader(ToolFormat::tagged);
  reader.push(text, pieces);
  reader.finish(pieces);
  EXPECT_LT(std::clock() - start, 4 * CLOCKS_PER_SEC);  // it was 100 times as much
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].text, text);
}

TEST(ToolCalls, ANameThatIsTooLongIsNone) {
  const std::string name(5000, 'n');
  const std::string call = "<tool_call>{\"name\": \"" + name + "\", \"arguments\": {}}</tool_call>";
  expect(ToolFormat::tagged, call, {"", {name + " {}"}});  // it is one when it is whole
  expect(ToolFormat::qwen3_coder, "<tool_call><function=" + name + "></function></tool_call>",
         {"<tool_call><function=" + name + "></function></tool_call>", {}});
  expect(ToolFormat::pythonic, "[" + name + "(a=1)]", {"[" + name + "(a=1)]", {}});
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
  for (const auto& [text, format] : {
           std::pair("<tool_call>NAME <arg_key>KEY</arg_key>", ToolFormat::glm45),
           std::pair("<|tool_calls_section_begin|>", ToolFormat::kimi_k2),
           std::pair("'<minimax:tool_call>' <invoke name=", ToolFormat::minimax_m2),
           std::pair("'<|tool_call>call:' + name", ToolFormat::gemma4),
           std::pair("'｜DSML｜' + 'function_calls>'", ToolFormat::deepseek_v32),
           std::pair("'｜DSML｜' + 'tool_calls>'", ToolFormat::deepseek_v4),
           std::pair("<seed:tool_call> <function=", ToolFormat::seed_oss),
           std::pair("<｜hy_Assistant{}｜>", ToolFormat::hy_v3),
           std::pair("List of tools: [", ToolFormat::lfm2),
           std::pair("<function_calls>", ToolFormat::olmo3),
           std::pair("<tool_calls>[", ToolFormat::hunyuan_a13b),
           std::pair("<TOOLCALL>[", ToolFormat::nemotron_json),
           std::pair("<|START_ACTION|>[ \"tool_name\", \"parameters\"", ToolFormat::cohere),
           std::pair("{% set t = '<|tools_prefix|>' %}", ToolFormat::apertus),
           std::pair("{% set ns = ']<]minimax[>[' %}{{ ns ~ '<tool_call>' }}",
                     ToolFormat::minimax_m3),
           std::pair("<|tool_call|>", ToolFormat::granite),
           std::pair("<tool_call> <function=", ToolFormat::qwen3_coder),
           std::pair("<function=NAME> <parameter=KEY>", ToolFormat::qwen3_coder),
           std::pair("<function=NAME>{\"KEY\": \"VALUE\"}</function>", ToolFormat::functionary),
       })
    EXPECT_EQ(tool_format_of(text), format) << text;
  EXPECT_EQ(tool_format_of("... <tool_call> ..."), ToolFormat::tagged);
  EXPECT_EQ(tool_format_of("{\"name\": x, \"parameters\": y}"), ToolFormat::bare);
  EXPECT_EQ(tool_format_of("{{ messages }}"), ToolFormat::none);
}

}  // namespace
}  // namespace invar
