// Answers put together of what calls are written with, in every format, as the input's bytes
// choose: the parts of a text are the same however it is cut, every call that begins ends, and
// nothing of a call stands outside it.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "frontend/call_reader.h"
#include "frontend/custom_tools.h"

using namespace invar;

namespace {

// Words of calls; behind them the marks of the format.
constexpr std::string_view kWords[] = {"f",
                                       "\n",
                                       " ",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       "(",
                                       ")",
                                       ",",
                                       ":",
                                       "=",
                                       "\"",
                                       "'",
                                       "\\",
                                       "a",
                                       "1",
                                       "null",
                                       "True",
                                       "<",
                                       ">",
                                       "{\"name\": \"f\", \"arguments\": {",
                                       "\"parameters\": ",
                                       "{\"input\": \"",
                                       "\\u12",
                                       "\\ud83d",
                                       "<function=f>",
                                       "</function>",
                                       "<parameter=a>",
                                       "</parameter>",
                                       "<invoke name=\"f\">",
                                       "</invoke>",
                                       "<parameter name=\"a\">",
                                       "<｜DSML｜invoke name=\"f\">",
                                       "</｜DSML｜invoke>",
                                       "<｜DSML｜parameter name=\"a\" string=\"true\">",
                                       "</｜DSML｜parameter>",
                                       "<arg_key>a</arg_key>",
                                       "<arg_value>",
                                       "call:f{",
                                       "<|\"|>",
                                       "a=",
                                       "f(",
                                       "functions.f:0",
                                       "[ARGS]",
                                       "<|message|>",
                                       "<|call|>",
                                       "function",
                                       "```json\n",
                                       "words"};

const json::Value& tools() {
  static const json::Value kTools = json::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
      {"a": {"type": "string"}, "b": {"type": "integer"}, "1": {"type": ["string", "null"]}}}}},
    {"type": "function", "function": {"name": "a", "strict": true, "parameters": {"type": "object",
      "properties": {"a": {"type": "string"}}}}}])",
                                                "tools");
  return kTools;
}

// The parts of a text whose pieces end where `ends` says.
std::vector<AnswerPiece> parts_of(ToolFormat format, std::string_view text,
                                  const std::vector<size_t>& ends, bool is_cut) {
  ToolCallReader reader(format, "f", &tools());
  std::vector<AnswerPiece> pieces;
  size_t begin = 0;
  for (const size_t end : ends) {
    reader.push(text.substr(begin, end - begin), pieces);
    begin = end;
  }
  reader.push(text.substr(begin), pieces);
  reader.finish(pieces, is_cut);
  std::vector<AnswerPiece> joined;
  for (const AnswerPiece& piece : pieces) {
    const bool goes_on =
        !joined.empty() && joined.back().kind == piece.kind &&
        (piece.kind == AnswerPiece::Kind::text || piece.kind == AnswerPiece::Kind::arguments);
    if (goes_on)
      joined.back().text += piece.text;
    else
      joined.push_back(piece);
  }
  return joined;
}

void check_order(const std::vector<AnswerPiece>& pieces) {
  using Kind = AnswerPiece::Kind;
  bool within = false;
  for (const AnswerPiece& piece : pieces) {
    CHECK(within == (piece.kind == Kind::arguments || piece.kind == Kind::end),
          "arguments and ends stand in calls, texts and calls outside");
    if (piece.kind == Kind::call) within = true;
    if (piece.kind == Kind::end) within = false;
  }
  CHECK(!within, "every call ends");
}

std::string input_of(std::string_view text, const std::vector<size_t>& ends) {
  openai::CustomInput input;
  std::string all;
  size_t begin = 0;
  for (const size_t end : ends) {
    all += input.push(text.substr(begin, end - begin));
    begin = end;
  }
  all += input.push(text.substr(begin));
  return all + input.finish();
}

bool same(const std::vector<AnswerPiece>& a, const std::vector<AnswerPiece>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].kind != b[i].kind || a[i].text != b[i].text) return false;
  return true;
}

}  // namespace

// The first bytes choose the format and whether the answer was cut; each that follows a word, or
// with its highest bit a word behind which the text is cut.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto styles = tool_styles();
  const size_t number = data[0] % (styles.size() + 1);
  const ToolFormat format = number < styles.size() ? styles[number].format : ToolFormat::object;
  std::vector<std::string_view> words(std::begin(kWords), std::end(kWords));
  for (const std::string_view mark : {opening_mark(format), closing_mark(format)})
    if (!mark.empty()) words.push_back(mark);
  for (const std::string_view mark : marks_of(format)) words.push_back(mark);
  std::string text;
  std::vector<size_t> cuts, bytes;
  for (size_t i = 2; i < size && text.size() < 4000; ++i) {
    text += words[(data[i] & 0x7f) % words.size()];
    if (data[i] & 0x80) cuts.push_back(text.size());
  }
  for (size_t i = 1; i < text.size(); ++i) bytes.push_back(i);
  const bool is_cut = data[1] & 1;
  const auto whole = parts_of(format, text, {}, is_cut);
  check_order(whole);
  CHECK(same(whole, parts_of(format, text, cuts, is_cut)), "a cut makes no difference");
  CHECK(same(whole, parts_of(format, text, bytes, is_cut)), "a byte at a time makes none");
  const std::string input = input_of(text, {});
  CHECK(input == input_of(text, cuts), "a cut of a custom tool's text makes no difference");
  CHECK(input == input_of(text, bytes), "a byte at a time makes none");
  return 0;
}
