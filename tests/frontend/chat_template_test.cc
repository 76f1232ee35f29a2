#include "frontend/chat_template.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tokenizer/make_tokenizer.h"

namespace invar {
namespace {

std::tm some_day() {
  return {.tm_mday = 26, .tm_mon = 6, .tm_year = 124};
}

ChatTemplate from_config(const std::string& config) {
  return ChatTemplate::from_texts({.tokenizer_config_json = config}, "model");
}

std::string render(const ChatTemplate& chat, const std::string& messages,
                   const std::string& tools = "null") {
  return chat.render(
      {.messages = json::parse(messages, "test"), .tools = json::parse(tools, "test")}, some_day);
}

// The sentence of the exception that it throws.
template <typename F>
std::string failure(F call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ChatTemplate, TheMadeTokenizerChats) {
  const MadeTokenizer made = make_tokenizer(512, 1);
  const ChatTemplate chat =
      ChatTemplate::from_texts({.tokenizer_config_json = made.texts.tokenizer_config_json}, "made");
  const std::string text = render(chat, R"([{"role": "user", "content": "Hi <|im_end|>"}])");
  EXPECT_EQ(text, "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n");
  // Special tokens become ids, those that the user spelled too.
  const Tokenizer tokenizer = Tokenizer::from_texts(made.texts, "made");
  const auto ids = tokenizer.encode(text, {.add_special_tokens = false});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), made.eos_id), 2);
}

TEST(ChatTemplate, TheFileStandsBeforeTheConfiguration) {
  const ChatTemplate chat = ChatTemplate::from_texts(
      {.chat_template_jinja = "{{ bos_token }}file {{ eos_token }} {{ unk_token }}",
       .tokenizer_config_json =
           R"({"chat_template": "config", "bos_token": {"content": "<s>"}, "eos_token": "</s>"})",
       .special_tokens_map_json = R"({"unk_token": "<unk>", "eos_token": "no"})"},
      "model");
  EXPECT_EQ(render(chat, R"([{"role": "user"}])"), "<s>file </s> <unk>");
}

TEST(ChatTemplate, NamedTemplates) {
  const ChatTemplate chat = from_config(
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(render(chat, R"([{"role": "user"}])"), "d");
  EXPECT_EQ(render(chat, R"([{"role": "user"}])", "[{}]"), "t");
  const ChatTemplate plain = from_config(R"({"chat_template": "{{ tools }}"})");
  EXPECT_EQ(render(plain, R"([{"role": "user"}])"), "None");
  EXPECT_EQ(render(plain, R"([{"role": "user"}])", "[1]"), "[1]");
}

TEST(ChatTemplate, PartsAreJoinedWhereTheTemplateWantsText) {
  const std::string parts =
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])";
  EXPECT_EQ(render(from_config(R"({"chat_template": "{{ messages[0].content + '!' }}"})"), parts),
            "a\nb!");
  EXPECT_EQ(render(from_config(R"({"chat_template": "{{ messages[0].content }}"})"), parts),
            "a\nb");
  EXPECT_EQ(
      render(
          from_config(
              R"({"chat_template": "{% for p in messages[0].content %}<{{ p.text }}>{% endfor %}"})"),
          parts),
      "<a><b>");
  const auto image = [] {
    render(from_config(R"({"chat_template": "{{ messages[0].content }}"})"),
           R"([{"role": "user", "content": [{"type": "image_url"}]}])");
  };
  EXPECT_TRUE(has(failure(image), "expected parts of type \"text\""));
}

TEST(ChatTemplate, ArgumentsOfCallsAreObjects) {
  const ChatTemplate chat = from_config(
      R"({"chat_template": "{{ messages[0].tool_calls[0].function.arguments | tojson }}"})");
  const auto message = [](const std::string& arguments) {
    return R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": )" +
           arguments + "}}]}]";
  };
  EXPECT_EQ(render(chat, message(R"("{\"x\": 1}")")), R"({"x": 1})");
  EXPECT_EQ(render(chat, message(R"({"x": 1})")), R"({"x": 1})");
  EXPECT_EQ(render(chat, message(R"("{broken")")), "{}");
}

TEST(ChatTemplate, VariablesAndTheClock) {
  const ChatTemplate chat = from_config(
      R"({"chat_template": "{{ enable_thinking }} {{ strftime_now('%d %b %Y') }} {{ add_generation_prompt }}"})");
  Conversation conversation{.messages = json::parse(R"([{"role": "user"}])", "test"),
                            .add_generation_prompt = false,
                            .variables = {{"enable_thinking", false}}};
  EXPECT_EQ(chat.render(conversation, some_day), "False 26 Jul 2024 False");
}

TEST(ChatTemplate, WhatIsWrongIsNamed) {
  EXPECT_TRUE(has(failure([] { from_config("{}"); }), "model: the model has no chat template"));
  EXPECT_TRUE(has(failure([] { from_config(R"({"chat_template": "{% if %}"})"); }),
                  "model/tokenizer_config.json: chat_template, line 1: expected"));
  EXPECT_TRUE(
      has(failure([] { from_config(R"({"chat_template": [{"name": "x"}]})"); }), "\"template\""));
  EXPECT_TRUE(
      has(failure([] { from_config(R"({"chat_template": [{"name": "x", "template": ""}]})"); }),
          "\"default\""));
  EXPECT_TRUE(has(failure([] { from_config("{"); }), "not valid JSON"));
  EXPECT_TRUE(has(failure([] { ChatTemplate::load("/nowhere"); }),
                  "/nowhere: the model has no chat template"));
  const ChatTemplate chat =
      from_config(R"({"chat_template": "{{ raise_exception('no ' + messages[0].role) }}"})");
  EXPECT_TRUE(has(failure([&] { render(chat, R"([{"role": "user"}])"); }),
                  "refuses the conversation on line 1: no user"));
  EXPECT_TRUE(has(failure([&] { render(chat, "[]"); }), "at least one message"));
  EXPECT_TRUE(has(failure([&] { render(chat, R"("hi")"); }), "\"messages\" as an array"));
  EXPECT_TRUE(
      has(failure([&] { render(chat, R"([{"content": "hi"}])"); }), "\"role\" as message 0"));
  EXPECT_TRUE(
      has(failure([&] { render(chat, R"([{"role": "user"}])", "{}"); }), "\"tools\" as an array"));
}

}  // namespace
}  // namespace invar
