// Conversations as templates of unusual kinds show them.
#include <gtest/gtest.h>

#include "frontend/openai.h"

namespace invar::openai {
namespace {

// Reads a content as a list of parts alone, as LLaVA's template does.
const char* const kParts =
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == 'text' %}"
    "{{ p.text }}{% endif %}{% endfor %}{% endfor %}";
const char* const kUserFirst =
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}"
    "{% set rest = messages %}{% endif %}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}";
// Shows arguments one by one and a schema's members, as Qwen3-Coder's and Nemotron's do.
const char* const kPrinted =
    "{% for t in tools or [] %}{% for name, p in t.function.parameters.properties | items %}"
    "({{ t.function.name }} {{ name }}{% for k, v in p | items %} {{ k }}={{ v }}{% endfor %})"
    "{% endfor %}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }}{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}"
    "{% endfor %}]{% endfor %}{% endfor %}";
// Writes calls in Python.
const char* const kPython =
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}="
    "{% if v is string %}'{{ v }}'{% else %}{{ v }}{% endif %}{% if not loop.last %}, {% endif %}"
    "{% endfor %})]{% endfor %}{% endfor %}";
// Writes values in a language of its own, in which null alone is Python's, as Gemma 4's does.
const char* const kMarked =
    "{% macro show(v) %}{% if v is string %}<|\"|>{{ v }}<|\"|>{% elif v is boolean %}"
    "{{ 'true' if v else 'false' }}{% elif v is mapping %}{% for k, x in v | items %}"
    "{{ k }}:{{ show(x) }};{% endfor %}{% elif v is sequence %}{% for x in v %}{{ show(x) }},"
    "{% endfor %}{% else %}{{ v }}{% endif %}{% endmacro %}"
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "call:{{ c.function.name }} {{ show(c.function.arguments) }}{% endfor %}{% endfor %}";
// Shows tools and no calls, and says how they are written: as LFM2's and Granite 3's do.
const std::string kUnshown =
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

// Reads the type of a call, and no system message between a result and its answer.
const char* const kResults =
    "{% for m in messages %}{% if m.role == 'system' and loop.index0 > 0 and "
    "messages[loop.index0 - 1].role == 'tool' %}{{ raise_exception('an answer') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c['type'] + ' ' + "
    "c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}";

// Users and the assistant take turns, whatever system messages stand between them.
const char* const kTurns =
    "{% set ns = namespace(user=true) %}{% for m in messages %}{% if m.role != 'system' %}"
    "{% if (m.role == 'user') != ns.user %}{{ raise_exception('turns') }}{% endif %}"
    "{% set ns.user = not ns.user %}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";

std::string prompt_of(const std::string& members, const std::string& source) {
  const ChatTemplate chat = ChatTemplate::from_texts({.chat_template_jinja = source}, "a model");
  const Context context{.vocab = 100, .chat = &chat, .tool_format = chat.tool_format()};
  const Request request =
      parse_request(json::parse("{" + members + "}", "a body"), Endpoint::chat, context);
  return std::get<std::string>(request.prompts.at(0));
}

std::string called(const std::string& arguments, const std::string& source) {
  return prompt_of(R"("messages": [{"role": "user", "content": "Hi"}, {"role": "assistant",
    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": )" +
                       arguments +
                       R"(}}]}, {"role": "tool", "tool_call_id": "c", "content": "ok"}])",
                   source);
}

TEST(TemplateTraits, TextsArePartsWhereTheTemplateReadsNothingElse) {
  EXPECT_EQ(prompt_of(R"("messages": [{"role": "system", "content": "a"}, {"role": "user",
    "content": "b"}, {"role": "assistant", "content": null}, {"role": "user",
    "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]}])",
                      kParts),
            "<system>a<user>b<assistant><user>cd");
}

TEST(TemplateTraits, AnEmptyTurnStandsBeforeAnAnswerWhereTheTemplateWantsTheUserFirst) {
  const std::string greeting = R"({"role": "assistant", "content": "a"},
    {"role": "user", "content": "b"}])";
  EXPECT_EQ(prompt_of(R"("messages": [)" + greeting, kUserFirst), "<user><assistant>a<user>b");
  EXPECT_EQ(
      prompt_of(R"("messages": [{"role": "system", "content": "s"}, )" + greeting, kUserFirst),
      "<user><assistant>a<user>s\n\nb");
  EXPECT_EQ(prompt_of(R"("messages": [)" + greeting, kPrinted), "<assistant>a<user>b");
}

TEST(TemplateTraits, NoArgumentIsSpelledAsPythonDoes) {
  const std::string odd = R"({"a": "x", "b": null, "c": true, "d": {"e": [null, "y"]}, "f": 2})";
  EXPECT_EQ(called(odd, kPrinted),
            "<user>Hi<assistant>[f a=x b=null c=true d={\"e\": [null, \"y\"]} f=2]<tool>ok");
  // Where calls are Python, values are, too.
  EXPECT_EQ(called(R"({"a": "x", "b": null, "c": true})", kPython),
            "<user>Hi<assistant>[f(a='x', b=None, c=True)]<tool>ok");
  EXPECT_EQ(called(R"({"a": "x", "b": null})", kResults),
            "<user>Hi<assistant>[function f {\"a\": \"x\", \"b\": null}]<tool>ok");
}

TEST(TemplateTraits, NullAloneIsLeftOutWhereItAloneWouldBePythons) {
  EXPECT_EQ(called(R"({"a": "x", "b": null, "c": true, "d": {"e": ["y"], "f": null}})", kMarked),
            "<user>Hi<assistant>call:f a:<|\"|>x<|\"|>;c:true;d:e:<|\"|>y<|\"|>,;;<tool>ok");
}

TEST(TemplateTraits, CallsStandInTheTextAsTheTemplateSaysThatTheyAreWritten) {
  const std::string arguments = R"({"a": "x", "b": 1})";
  const auto shown = [&](const std::string& words) {
    return called(arguments, kUnshown + "{# " + words + " #}");
  };
  EXPECT_EQ(shown("List of tools: ["),
            "<user>Hi<assistant><|tool_call_start|>[f(a=\"x\", b=1)]<|tool_call_end|><tool>ok");
  EXPECT_EQ(shown("<|tool_call|>"),
            "<user>Hi<assistant><|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"x\", "
            "\"b\": 1}}]<tool>ok");
  EXPECT_EQ(shown("<|tool_calls_section_begin|>"),
            "<user>Hi<assistant><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
            "<|tool_call_argument_begin|>{\"a\": \"x\", \"b\": 1}<|tool_call_end|>"
            "<|tool_calls_section_end|><tool>ok");
  EXPECT_EQ(shown("<function_calls>"),
            "<user>Hi<assistant><function_calls>\nf(a=\"x\", b=1)\n</function_calls><tool>ok");
  EXPECT_EQ(shown("nothing"),
            "<user>Hi<assistant><tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\", "
            "\"b\": 1}}\n</tool_call><tool>ok");
}

TEST(TemplateTraits, NoNullOfASchemaIsShownAsNone) {
  const std::string body = R"("messages": [{"role": "user", "content": "Hi"}], "tools": [{"type":
    "function", "function": {"name": "f", "description": "", "parameters": {"type": "object",
    "properties": {"a": {"type": "string", "default": null, "title": "A"}}}}}])";
  EXPECT_EQ(prompt_of(body, kPrinted), "(f a type=string title=A)<user>Hi");
}

TEST(TemplateTraits, SystemMessagesStandInFrontWhereNoneMayFollowAResult) {
  const std::string text = prompt_of(R"("messages": [{"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "f",
    "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "ok"},
    {"role": "system", "content": "s"}, {"role": "user", "content": "Go on"}])",
                                     kResults);
  EXPECT_EQ(text, "<system>s<user>Hi<assistant>[function f {}]<tool>ok<user>Go on");
}

TEST(TemplateTraits, SystemMessagesStandInFrontWhereTurnsAreJoined) {
  EXPECT_EQ(prompt_of(R"("messages": [{"role": "user", "content": "a"}, {"role": "system",
    "content": "s"}, {"role": "user", "content": "b"}])",
                      kTurns),
            "<system>s<user>a\n\nb");
}

}  // namespace
}  // namespace invar::openai
