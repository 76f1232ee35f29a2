// Thoughts and calls as the models of each format write them: recorded_outputs.json has what
// published models' templates show, with the parts that it is made of.
#include "frontend/thoughts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "frontend/anthropic.h"
#include "frontend/call_reader.h"
#include "frontend/responses.h"
#include "tokenizer/make_tokenizer.h"

namespace invar {
namespace {

// A vocabulary in which the marks are tokens: special ones, but for those that published models
// have as text.
Tokenizer make_marked() {
  TokenizerTexts texts = make_tokenizer(700, 1).texts;
  json::Value file = json::parse(texts.tokenizer_json, "made");
  json::Array added = file.find("added_tokens")->as_array();
  int64_t id = 0;
  for (const json::Value& token : added) id = std::max(id, token.find("id")->as_integer() + 1);
  for (const auto& [token, number] : file.find("model")->find("vocab")->as_object())
    id = std::max(id, number.as_integer() + 1);
  std::vector<std::string_view> marks;
  for (const ThoughtStyle& style : thought_styles())
    marks.insert(marks.end(), style.marks.begin(), style.marks.end());
  for (const ToolStyle& style : tool_styles())
    marks.insert(marks.end(), style.marks.begin(), style.marks.end());
  std::ranges::sort(marks);
  const auto twice = std::ranges::unique(marks);
  marks.erase(twice.begin(), twice.end());
  for (const std::string_view mark : marks) {
    const bool is_text = mark.find("think>") != mark.npos || mark.find("tool_call>") != mark.npos;
    added.push_back(json::Object{{"id", id++},
                                 {"content", mark},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", !is_text}});
  }
  file.set("added_tokens", std::move(added));
  texts.tokenizer_json = json::dump(file);
  return Tokenizer::from_texts(texts, "made");
}

const Tokenizer& tokenizer() {
  static const Tokenizer made = make_marked();
  return made;
}

const json::Value& recorded() {
  static const json::Value file = json::parse_file(RECORDED_OUTPUTS);
  return file;
}

const ThoughtSeal& seal() {
  static const ThoughtSeal one("a secret");
  return one;
}

std::string text_in(const json::Value& value, const char* name) {
  const json::Value* found = value.find(name);
  return found && found->is_string() ? found->as_string() : "";
}

openai::Request request_of(const json::Value& output, openai::Endpoint endpoint) {
  openai::Request request{.endpoint = endpoint};
  request.prompts.emplace_back(std::vector<int32_t>{1});
  request.stream = true;
  request.usage_at_end = endpoint == openai::Endpoint::chat;
  request.tools = tool_format_named(text_in(output, "tools"));
  request.tool_list = *recorded().find("tools");
  request.thought_format = thought_format_named(text_in(output, "reasoning"));
  request.seal = &seal();
  settle_thoughts(request, {1}, tokenizer());
  if (request.base.thoughts.format != ThoughtFormat::none)
    request.base.thoughts.begun = output.find("begun")->as_bool();
  return request;
}

const openai::Head kHead{.id = "chatcmpl-1", .created = 1, .model = "m", .system_fingerprint = "f"};

std::vector<TokenOutput> outputs_of(const std::vector<int32_t>& tokens, size_t count) {
  std::vector<TokenOutput> all;
  for (size_t i = 0; i < count; ++i)
    all.push_back({.token = tokens[i], .index = static_cast<int32_t>(i)});
  all.back().finish = count < tokens.size() ? FinishReason::length : FinishReason::stop;
  return all;
}

TextAnswer whole_of(const openai::Request& request, const std::vector<TokenOutput>& outputs) {
  AnswerBuilder builder(tokenizer(), request.base);
  builder.answer.prompt_tokens = {1};
  for (const TokenOutput& output : outputs) {
    builder.push(output);
    if (builder.answer.finish != FinishReason::none) break;
  }
  return builder.answer;
}

// The data of the events of a stream.
std::vector<json::Value> events_of(openai::StreamWriter& writer,
                                   const std::vector<TokenOutput>& outputs) {
  std::string all;
  for (const TokenOutput& output : outputs) writer.push(0, output, all);
  EXPECT_TRUE(writer.ended());
  std::vector<json::Value> events;
  for (size_t at = 0; (at = all.find("data: ", at)) != all.npos;) {
    const size_t end = all.find('\n', at);
    const std::string data = all.substr(at + 6, end - at - 6);
    if (data != "[DONE]") events.push_back(json::parse(data, "an event"));
    at = end;
  }
  return events;
}

// ---- One form for all protocols: "thought", "text", "calls"

json::Value parts(const std::string& thought, const std::string& text, json::Array calls) {
  return json::Object{{"thought", thought}, {"text", text}, {"calls", std::move(calls)}};
}

json::Value call_in_chat(const json::Value& call) {
  const json::Value& function = *call.find("function");
  return json::Array{*function.find("name"), *function.find("arguments")};
}

json::Value parts_of_chat(const json::Value& body) {
  const json::Value& message = *body.find("choices")->as_array()[0].find("message");
  json::Array calls;
  if (const json::Value* found = message.find("tool_calls"))
    for (const json::Value& call : found->as_array()) calls.push_back(call_in_chat(call));
  EXPECT_EQ(text_in(message, "reasoning"), text_in(message, "reasoning_content"));
  return parts(text_in(message, "reasoning"), text_in(message, "content"), std::move(calls));
}

// A part of a call behind those before it.
void add_part(const json::Value& part, json::Array& calls) {
  const auto index = static_cast<size_t>(part.find("index")->as_integer());
  if (index == calls.size())
    calls.push_back(call_in_chat(part));
  else
    calls[index].as_array()[1] = calls[index].as_array()[1].as_string() +
                                 part.find("function")->find("arguments")->as_string();
}

json::Value parts_of_chat(const std::vector<json::Value>& events) {
  std::string thought, text;
  json::Array calls;
  for (const json::Value& event : events)
    for (const json::Value& choice : event.find("choices")->as_array()) {
      const json::Value& delta = *choice.find("delta");
      thought += text_in(delta, "reasoning_content");
      text += text_in(delta, "content");
      if (const json::Value* found = delta.find("tool_calls"))
        for (const json::Value& call : found->as_array()) add_part(call, calls);
    }
  return parts(thought, text, std::move(calls));
}

// The blocks of a message from its events.
json::Value blocks_of(const std::vector<json::Value>& events) {
  json::Array blocks;
  std::string said, arguments;
  for (const json::Value& event : events) {
    const std::string type = text_in(event, "type");
    if (type == "content_block_start") {
      blocks.push_back(*event.find("content_block"));
      said.clear(), arguments.clear();
    } else if (type == "content_block_delta") {
      const json::Value& delta = *event.find("delta");
      said += text_in(delta, "text") + text_in(delta, "thinking");
      arguments += text_in(delta, "partial_json");
      if (const json::Value* signature = delta.find("signature"))
        blocks.back().set("signature", *signature);
    } else if (type == "content_block_stop") {
      const std::string kind = text_in(blocks.back(), "type");
      if (kind == "tool_use")
        blocks.back().set("input", whole_part(arguments));
      else
        blocks.back().set(kind, said);
    }
  }
  return blocks;
}

std::vector<int32_t> tokens_of(const std::string& text) {
  return tokenizer().encode(text, {.add_special_tokens = false});
}

TEST(Recorded, TheirPartsAreThoseOfTheWholeAnswer) {
  size_t count = 0;
  for (const json::Value& output : recorded().find("outputs")->as_array()) {
    const openai::Request request = request_of(output, openai::Endpoint::chat);
    const std::vector<int32_t> tokens = tokens_of(text_in(output, "text"));
    const TextAnswer answer = whole_of(request, outputs_of(tokens, tokens.size()));
    const json::Value body = answer_body(request, {&answer, 1}, tokenizer(), &kHead);
    EXPECT_EQ(dump(parts_of_chat(body)),
              dump(parts(text_in(output, "thought"), text_in(output, "content"),
                         output.find("calls")->as_array())))
        << text_in(output, "name");
    ++count;
  }
  EXPECT_GE(count, 40U);
}

TEST(Recorded, CutAtEveryTokenTheStreamHasThePartsOfTheWhole) {
  for (const json::Value& output : recorded().find("outputs")->as_array()) {
    const std::vector<int32_t> tokens = tokens_of(text_in(output, "text"));
    const openai::Request chat = request_of(output, openai::Endpoint::chat);
    const openai::Request messages = request_of(output, openai::Endpoint::messages);
    const openai::Request responses = request_of(output, openai::Endpoint::responses);
    for (size_t count = 1; count <= tokens.size(); ++count) {
      const auto outputs = outputs_of(tokens, count);
      const std::string where = text_in(output, "name") + ", " + std::to_string(count);
      const TextAnswer answer = whole_of(chat, outputs);
      openai::EventWriter chat_writer(kHead, chat, {std::vector<int32_t>{1}}, tokenizer());
      const auto chat_events = events_of(chat_writer, outputs);
      const json::Value body = answer_body(chat, {&answer, 1}, tokenizer(), &kHead);
      ASSERT_EQ(dump(parts_of_chat(body)), dump(parts_of_chat(chat_events))) << where;
      ASSERT_EQ(dump(*body.find("usage")), dump(*chat_events.back().find("usage"))) << where;

      anthropic::MessageWriter message_writer(kHead, messages, 1, tokenizer());
      const auto message_events = events_of(message_writer, outputs);
      ASSERT_EQ(dump(*anthropic::message_body(messages, answer, kHead).find("content")),
                dump(blocks_of(message_events)))
          << where;

      openai::ResponseWriter response_writer(kHead, responses, 1, tokenizer());
      const auto response_events = events_of(response_writer, outputs);
      ASSERT_EQ(dump(response_body(responses, answer, kHead)),
                dump(*response_events.back().find("response")))
          << where;
    }
  }
}

// A cut shows a beginning of each part and nothing else.
TEST(Recorded, ACutShowsABeginningOfEveryPart) {
  for (const json::Value& output : recorded().find("outputs")->as_array()) {
    const openai::Request request = request_of(output, openai::Endpoint::chat);
    const std::vector<int32_t> tokens = tokens_of(text_in(output, "text"));
    const json::Array& calls = output.find("calls")->as_array();
    for (size_t count = 1; count < tokens.size() && !calls.empty(); ++count) {
      const TextAnswer answer = whole_of(request, outputs_of(tokens, count));
      const json::Value body = answer_body(request, {&answer, 1}, tokenizer(), &kHead);
      const json::Value found = parts_of_chat(body);
      const json::Array& cut = found.find("calls")->as_array();
      ASSERT_LE(cut.size(), calls.size());
      const std::string where = text_in(output, "name") + ", " + std::to_string(count);
      for (size_t i = 0; i < cut.size(); ++i) {
        ASSERT_EQ(dump(cut[i].as_array()[0]), dump(calls[i].as_array()[0])) << where;
        ASSERT_TRUE(
            calls[i].as_array()[1].as_string().starts_with(cut[i].as_array()[1].as_string()))
            << where;
        if (i + 1 < cut.size()) {
          ASSERT_EQ(dump(cut[i]), dump(calls[i])) << where;
        }
      }
    }
  }
}

// The arguments that a response's events add up to are those of its items.
void expect_arguments(const std::vector<json::Value>& events, const std::string& where) {
  std::string said;
  size_t calls = 0;
  for (const json::Value& event : events) {
    const std::string type = text_in(event, "type");
    if (type == "response.function_call_arguments.delta") said += text_in(event, "delta");
    if (type != "response.function_call_arguments.done") continue;
    EXPECT_EQ(std::exchange(said, {}), text_in(event, "arguments")) << where;
    ++calls;
  }
  for (const json::Value& item : events.back().find("response")->find("output")->as_array())
    calls -= text_in(item, "type") == "function_call";
  EXPECT_EQ(calls, 0U) << where;
}

// How many events of a stream show a part of arguments, by protocol.
size_t shown_parts(const std::vector<json::Value>& events) {
  size_t count = 0;
  for (const json::Value& event : events) {
    const json::Value* delta = event.find("delta");
    if (delta && delta->find("partial_json")) ++count;
    if (text_in(event, "type") == "response.function_call_arguments.delta") ++count;
    if (const json::Value* choices = event.find("choices"); choices && !choices->as_array().empty())
      if (const json::Value* calls = choices->as_array()[0].find("delta")->find("tool_calls"))
        for (const json::Value& call : calls->as_array())
          count += !text_in(*call.find("function"), "arguments").empty();
  }
  return count;
}

TEST(Recorded, ArgumentsComeAsTheyAreWritten) {
  for (const json::Value& output : recorded().find("outputs")->as_array()) {
    size_t least = 0;
    for (const json::Value& call : output.find("calls")->as_array())
      least += call.as_array()[1].as_string().size() > 2 ? 3 : 1;
    const std::vector<int32_t> tokens = tokens_of(text_in(output, "text"));
    const auto outputs = outputs_of(tokens, tokens.size());
    const std::string name = text_in(output, "name");
    const openai::Request chat = request_of(output, openai::Endpoint::chat);
    openai::EventWriter chat_writer(kHead, chat, {std::vector<int32_t>{1}}, tokenizer());
    EXPECT_GE(shown_parts(events_of(chat_writer, outputs)), least) << name;
    const openai::Request messages = request_of(output, openai::Endpoint::messages);
    anthropic::MessageWriter message_writer(kHead, messages, 1, tokenizer());
    EXPECT_GE(shown_parts(events_of(message_writer, outputs)), least) << name;
    const openai::Request responses = request_of(output, openai::Endpoint::responses);
    openai::ResponseWriter response_writer(kHead, responses, 1, tokenizer());
    const auto events = events_of(response_writer, outputs);
    EXPECT_GE(shown_parts(events), least) << name;
    expect_arguments(events, name);
  }
}

// Texts that are nearly calls: bytes of the recorded ones left out, doubled or swapped. However
// they are cut, the parts are the same, and arguments that were shown stay.
TEST(Recorded, SpoiltOnesHaveTheSamePartsHoweverTheyAreCut) {
  uint64_t random = 88172645463325252ULL;
  const auto next = [&](size_t n) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return static_cast<size_t>(random % n);
  };
  for (const json::Value& output : recorded().find("outputs")->as_array()) {
    const ToolFormat format = tool_format_named(text_in(output, "tools"));
    for (int round = 0; round < 60; ++round) {
      std::string text = text_in(output, "text");
      for (size_t change = next(3) + 1; change > 0; --change) {
        const size_t at = next(text.size()), size = next(12) + 1, kind = next(3);
        if (kind == 0) text.erase(at, size);
        if (kind == 1) text.insert(at, text.substr(next(text.size()), size));
        if (kind == 2) text[at] = "{}[]\"<>=,\\ \n"[next(12)];
        if (text.empty()) text = "x";
      }
      const bool is_cut = next(2);
      std::vector<std::string> seen;
      for (const size_t size : {text.size(), size_t{1}, next(9) + 2}) {
        ToolCallReader reader(format, "f", recorded().find("tools"));
        std::vector<AnswerPiece> pieces;
        for (size_t at = 0; at < text.size(); at += size)
          reader.push(std::string_view(text).substr(at, size), pieces);
        reader.finish(pieces, is_cut);
        std::vector<ToolCall> calls;
        std::string parts;
        add_pieces(pieces, parts, calls);
        for (const ToolCall& call : calls) parts += "\n[" + call.name + " " + call.arguments + "]";
        seen.push_back(parts);
      }
      ASSERT_EQ(seen[0], seen[1]) << text;
      ASSERT_EQ(seen[0], seen[2]) << text;
    }
  }
}

// The control of the comparisons above.
TEST(Recorded, AnotherFormatPartsThemOtherwise) {
  int differ = 0;
  for (const json::Value& output : recorded().find("outputs")->as_array()) {
    openai::Request request = request_of(output, openai::Endpoint::chat);
    request.tools = ToolFormat::none;
    request.base.thoughts = {};
    const std::vector<int32_t> tokens = tokens_of(text_in(output, "text"));
    const TextAnswer answer = whole_of(request, outputs_of(tokens, tokens.size()));
    const json::Value body = answer_body(request, {&answer, 1}, tokenizer(), &kHead);
    differ += dump(parts_of_chat(body)) !=
              dump(parts(text_in(output, "thought"), text_in(output, "content"),
                         output.find("calls")->as_array()));
  }
  EXPECT_GE(differ, 30);
}

TEST(Thoughts, TheTemplateSaysTheFormat) {
  EXPECT_EQ(thought_format_of("{{ content.split('</think>')[-1] }}"), ThoughtFormat::qwen3);
  EXPECT_EQ(thought_format_of("<｜Assistant｜>... </think>"), ThoughtFormat::deepseek_r1);
  EXPECT_EQ(thought_format_of("[THINK]"), ThoughtFormat::mistral);
  EXPECT_EQ(thought_format_of("<|start|>assistant<|channel|>final"), ThoughtFormat::gpt_oss);
  EXPECT_EQ(thought_format_of("'<|channel>thought\\n' + text"), ThoughtFormat::gemma4);
  EXPECT_EQ(thought_format_of("<seed:think> </seed:think>"), ThoughtFormat::seed_oss);
  EXPECT_EQ(thought_format_of("'<｜hy_Assistant{}｜>' '</think{}>'"), ThoughtFormat::hy_v3);
  EXPECT_EQ(thought_format_of("{{ messages }}"), ThoughtFormat::none);
  EXPECT_EQ(tool_format_of("<tool_call> <function="), ToolFormat::qwen3_coder);
  EXPECT_EQ(tool_format_of("[TOOL_CALLS]"), ToolFormat::mistral);
  EXPECT_EQ(tool_format_of("<｜tool▁calls▁begin｜>"), ToolFormat::deepseek_v3);
  EXPECT_EQ(tool_format_of("<|channel|>commentary to="), ToolFormat::gpt_oss);
  EXPECT_EQ(tool_format_of("[func_name1(params"), ToolFormat::pythonic);
}

TEST(Thoughts, ThePromptSaysWhetherOneHasBegun) {
  const auto behind = [](ThoughtFormat format, const std::string& prompt, bool goes_on = false) {
    return thoughts_behind(format, tokens_of(prompt), goes_on, tokenizer());
  };
  EXPECT_TRUE(behind(ThoughtFormat::qwen3, "assistant\n<think>\n").begun);
  EXPECT_FALSE(behind(ThoughtFormat::qwen3, "assistant\n").begun);
  EXPECT_EQ(behind(ThoughtFormat::qwen3, "<think>\n\n</think>\n\n").format, ThoughtFormat::none);
  EXPECT_TRUE(behind(ThoughtFormat::deepseek_r1, "assistant\n").begun);
  EXPECT_EQ(behind(ThoughtFormat::deepseek_r1, "</think>").format, ThoughtFormat::none);
  EXPECT_EQ(behind(ThoughtFormat::qwen3, "assistant\nHello", true).format, ThoughtFormat::none);
  EXPECT_TRUE(behind(ThoughtFormat::qwen3, "assistant\n<think>\nHm", true).begun);
}

// Seconds of this thread for a text in pieces of 8 bytes; the least of a few.
double seconds_of(const ThoughtView& view, const std::string& text) {
  double least = 1e9;
  for (int round = 0; round < 3; ++round) {
    const std::clock_t start = std::clock();
    const auto reader = make_thought_reader(view);
    std::string thought, said;
    for (size_t at = 0; at < text.size(); at += 8)
      reader->push(std::string_view(text).substr(at, 8), thought, said);
    least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

// A token costs what it adds: four times the text takes about four times as long; it was sixteen.
TEST(Thoughts, WhatNeverBeginsCostsItsBytes) {
  for (const auto& [view, begin, piece] :
       {std::tuple{ThoughtView{.format = ThoughtFormat::qwen3}, "", ' '},
        std::tuple{ThoughtView{.format = ThoughtFormat::qwen3, .begun = true}, "", '\n'},
        std::tuple{ThoughtView{.format = ThoughtFormat::gpt_oss}, "<|channel|>", 'x'}}) {
    const double once = seconds_of(view, begin + std::string(100 << 10, piece));
    EXPECT_LT(seconds_of(view, begin + std::string(400 << 10, piece)), 9 * once + 0.02) << piece;
  }
}

TEST(Thoughts, StopStringsDoNotLookIntoThemUnlessAsked) {
  const std::vector<int32_t> tokens = tokens_of("<think>\nstop here\n</think>\n\nand stop there");
  openai::Request request{.endpoint = openai::Endpoint::chat};
  request.thought_format = ThoughtFormat::qwen3;
  request.base.stop = {"stop"};
  settle_thoughts(request, {1}, tokenizer());
  const TextAnswer answer = whole_of(request, outputs_of(tokens, tokens.size()));
  EXPECT_EQ(answer.thought, "stop here");
  EXPECT_EQ(answer.text, "and ");
  request.thoughts.stops = true;
  settle_thoughts(request, {1}, tokenizer());
  const TextAnswer stopped = whole_of(request, outputs_of(tokens, tokens.size()));
  EXPECT_EQ(stopped.thought, "");
  EXPECT_EQ(stopped.text, "");
  EXPECT_EQ(stopped.stop, "stop");
}

TEST(Thoughts, ASealKnowsItsOwn) {
  const std::string closed = seal().close("a thought");
  EXPECT_EQ(seal().open(closed), "a thought");
  EXPECT_EQ(closed, seal().close("a thought"));
  EXPECT_EQ(closed.find("thought"), std::string::npos);
  EXPECT_TRUE(seal().signs("a thought", seal().sign("a thought")));
  EXPECT_FALSE(seal().signs("another", seal().sign("a thought")));
  EXPECT_FALSE(seal().signs("a thought", ""));
  for (const std::string& wrong : {closed.substr(2), closed.substr(0, 20), std::string(),
                                   std::string("zz"), ThoughtSeal("other").close("a thought")})
    EXPECT_EQ(seal().open(wrong), std::nullopt);
}

// ---- The engine's side

std::vector<int32_t> allowed_of(std::span<const uint64_t> mask) {
  std::vector<int32_t> all;
  for (size_t i = 0; i < 64 * mask.size(); ++i)
    if (mask[i / 64] >> (i % 64) & 1) all.push_back(static_cast<int32_t>(i));
  return all;
}

std::shared_ptr<const ThoughtRules> rules_of(const std::string& form) {
  static ConstraintCompiler compiler(tokenizer());
  return compiler.thought(json::parse(form, "a form"));
}

TEST(ThoughtBudget, EndsAThoughtByItsEndToken) {
  const auto rules = rules_of(R"({"thought": {"parser": "qwen3", "begun": true, "budget": 3}})");
  ThoughtCursor cursor(rules, false, tokenizer().vocab_size());
  const SamplingParams params;
  for (const int32_t token : {5, 6, 7}) {
    EXPECT_TRUE(cursor.allowed(params).empty());
    cursor.advance(token);
  }
  const std::vector<int32_t> close = tokens_of("</think>");
  ASSERT_EQ(close.size(), 1U);
  EXPECT_EQ(allowed_of(cursor.allowed(params)), close);
  cursor.advance(close[0]);
  EXPECT_TRUE(cursor.is_over());
}

TEST(ThoughtBudget, OfNothingEndsItAtOnceAndOfAnyDoesNot) {
  const SamplingParams params;
  ThoughtCursor none(rules_of(R"({"thought": {"parser": "qwen3", "begun": true, "budget": 0}})"),
                     false, tokenizer().vocab_size());
  EXPECT_EQ(allowed_of(none.allowed(params)), tokens_of("</think>"));
  // Without a form and a budget nothing is held.
  EXPECT_EQ(rules_of(R"({"thought": {"parser": "qwen3", "begun": true}})"), nullptr);
}

TEST(ThoughtBudget, AFormBeginsBehindTheThought) {
  const auto rules =
      rules_of(R"({"thought": {"parser": "gpt_oss", "begun": false}, "regex": "a"})");
  ThoughtCursor cursor(rules, true, tokenizer().vocab_size());
  SamplingParams params;
  params.stop_token_ids = {2};
  for (const int32_t token : tokens_of("<|channel|>analysis<|message|>")) {
    EXPECT_EQ(allowed_of(cursor.allowed(params)), std::vector<int32_t>{token});
    cursor.advance(token);
  }
  const std::vector<int32_t> within = allowed_of(cursor.allowed(params));
  EXPECT_FALSE(std::ranges::count(within, 2));  // it does not end there
  EXPECT_GT(within.size(), 100U);
  for (const int32_t token : tokens_of("Hm.<|end|>")) cursor.advance(token);
  for (const int32_t token : tokens_of("<|start|>assistant<|channel|>final<|message|>")) {
    EXPECT_EQ(allowed_of(cursor.allowed(params)), std::vector<int32_t>{token});
    cursor.advance(token);
  }
  EXPECT_TRUE(cursor.is_over());
}

// Calls of channels say the header of their message themselves; the control is the form above.
TEST(ThoughtBudget, ChannelsGoOnWithAHeader) {
  const auto rules = rules_of(
      R"({"thought": {"parser": "gpt_oss", "begun": false}, "calls": {"channels": true}})");
  ThoughtCursor cursor(rules, true, tokenizer().vocab_size());
  for (const int32_t token :
       tokens_of("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"))
    cursor.advance(token);
  EXPECT_TRUE(cursor.is_over());
}

// Marks that are several tokens, of which one could go on behind the mark.
TEST(ThoughtBudget, NoTokenCrossesIntoAForm) {
  auto marks = std::make_shared<ThoughtMarks>(
      "<t>", "</t>", std::vector<std::string>{"", "</", "t", ">", ">x", "a", "></t>"});
  marks->open_tokens = {1, 2, 3};
  marks->close_tokens = {1, 2, 3};
  const auto rules = std::make_shared<ThoughtRules>(ThoughtRules{.marks = marks, .begun = true});
  ThoughtCursor cursor(rules, true, 7);
  const SamplingParams params;
  const auto count = [&] {
    std::vector<int32_t> all = allowed_of(cursor.allowed(params));
    std::erase_if(all, [](int32_t token) { return token > 6; });
    return all;
  };
  EXPECT_EQ(count(), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}));
  cursor.advance(1);
  cursor.advance(2);
  EXPECT_EQ(count(), (std::vector<int32_t>{0, 1, 2, 3, 5}));  // not ">x" nor "></t>"
  cursor.advance(5);
  EXPECT_EQ(count(), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}));
  for (const int32_t token : {1, 2, 3}) cursor.advance(token);
  EXPECT_TRUE(cursor.is_over());
}

}  // namespace
}  // namespace invar
