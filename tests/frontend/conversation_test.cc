// Conversations of every protocol, from the body of a request to the text of the prompt.
#include <gtest/gtest.h>

#include "frontend/openai.h"

namespace invar::openai {
namespace {

// A turn begins with its role between < and >.
const char* const kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
// Concatenates, as ChatML's published templates do.
const char* const kConcat =
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";
// Shows the first call alone, wherever the key is.
const char* const kOneCall =
    "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls is defined or 'tool_calls' in m %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one tool call at once') }}{% endif %}"
    "{{ m.tool_calls[0].function | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}";
const char* const kItems =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }}{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}"
    "{% endfor %}]{% endfor %}{% endfor %}";
const char* const kJson =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }} {% if c.function.arguments is string %}{{ c.function.arguments }}"
    "{% else %}{{ c.function.arguments | tojson }}{% endif %}]{% endfor %}{% endfor %}";
const char* const kText =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '[' + c.function.name + ' ' + c.function.arguments + ']' }}{% endfor %}{% endfor %}";
// DeepSeek V3's way: a message with calls is one whose content is none.
const char* const kNone =
    "{% for m in messages %}<{{ m.role }}>{% if m.content is none %}"
    "{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments }}]{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}";
const char* const kThreeRoles =
    "{% for m in messages %}{% if m.role == 'user' or m.role == 'system' or m.role == 'assistant' "
    "%}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
const char* const kSystemFirst =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}";
const char* const kAlternating =
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}";
// Mistral's: ids of nine characters, and no user behind a result.
const char* const kBriefIds =
    "{% set ns = namespace(i=0) %}{% for m in messages %}"
    "{% if not (m.role == 'tool' or m.tool_calls) %}{% if (m.role == 'user') != (ns.i % 2 == 0) %}"
    "{{ raise_exception('alternate') }}{% endif %}{% set ns.i = ns.i + 1 %}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('nine') }}{% endif %}[{{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}]{% endfor %}"
    "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}";
const char* const kDescribed =
    "{% if tools %}{% for t in tools %}{{ '// ' + t.function.description + '\n' }}"
    "{{ t.function.parameters.type + ' ' + t.function.name }}{% endfor %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
const char* const kAnnouncing =
    "{% if tools is not none %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

// The request that a body makes with a chat template.
Request request_of(const std::string& body, Endpoint endpoint, const char* source) {
  const ChatTemplate chat = ChatTemplate::from_texts({.chat_template_jinja = source}, "a model");
  Context context{.vocab = 100, .chat = &chat, .tool_format = chat.tool_format()};
  context.shows_conversation = true;
  return parse_request(json::parse(body, "a body"), endpoint, context);
}

std::string chat_prompt(const std::string& messages, const char* source,
                        const std::string& more = "") {
  const Request request =
      request_of(R"({"messages": )" + messages + more + "}", Endpoint::chat, source);
  return std::get<std::string>(request.prompts.at(0));
}
std::string message_prompt(const std::string& messages, const std::string& more = "") {
  const Request request = request_of(R"({"max_tokens": 4, "messages": )" + messages + more + "}",
                                     Endpoint::messages, kPlain);
  return std::get<std::string>(request.prompts.at(0));
}
std::string response_prompt(const std::string& members, const char* source) {
  return std::get<std::string>(
      request_of("{" + members + "}", Endpoint::responses, source).prompts.at(0));
}

// A second turn: a call with these arguments, and its result.
std::string called(const std::string& arguments, const std::string& id = "abcdefghi",
                   const std::string& content = R"("")") {
  return R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": )" + content +
         R"(, "tool_calls": [{"id": ")" + id +
         R"(", "type": "function", "function": {"name": "get_time", "arguments": )" + arguments +
         R"(}}]}, {"role": "tool", "tool_call_id": ")" + id + R"(", "content": "12:00"}])";
}

TEST(Conversation, AUsersMessageWithoutBlocksIsRefusedWhereverItStands) {
  EXPECT_THROW(message_prompt(R"([{"role": "user", "content": []}])"), UsageError);
  EXPECT_THROW(message_prompt(R"([{"role": "user", "content": "Tell a story"},
      {"role": "assistant", "content": "Once"}, {"role": "user", "content": []}])"),
               UsageError);
  EXPECT_EQ(message_prompt(R"([{"role": "user", "content": [{"type": "text", "text": "a"}]}])"),
            "<user>a<assistant>");
}

TEST(Conversation, NoContentIsAnEmptyText) {
  for (const char* source : {kPlain, kConcat})
    for (const char* assistant :
         {R"({"role": "assistant", "content": null})", R"({"role": "assistant"})",
          R"({"role": "assistant", "content": []})", R"({"role": "assistant", "content": ""})"})
      EXPECT_EQ(chat_prompt(std::string(R"([{"role": "user", "content": "Hi"}, )") + assistant +
                                R"(, {"role": "user", "content": "Hi"}])",
                            source),
                "<user>Hi<assistant><user>Hi<assistant>")
          << assistant;
}

TEST(Conversation, WhatIsNullOrEmptyWasNotSaid) {
  for (const char* more :
       {R"("tool_calls": [])", R"("tool_calls": null, "refusal": null, "annotations": null)"})
    EXPECT_EQ(chat_prompt(std::string(R"([{"role": "user", "content": "Hi", "name": null},
        {"role": "assistant", "content": "Hello!", )") +
                              more + "}]",
                          kOneCall),
              "<user>Hi<assistant>Hello!");
  EXPECT_EQ(chat_prompt(R"([{"role": "user", "content": "Hi"}])", kAnnouncing, R"(, "tools": [])"),
            "<user>Hi");
}

TEST(Conversation, ArgumentsAreAnObjectOrAText) {
  for (const char* source : {kItems, kJson, kText})
    for (const char* arguments : {R"("")", R"("null")", "null", R"("{}")", "{}"})
      EXPECT_EQ(chat_prompt(called(arguments), source),
                source == kItems ? "<user>Hi<assistant>[get_time]<tool>12:00"
                                 : "<user>Hi<assistant>[get_time {}]<tool>12:00")
          << arguments;
  const char* const cut = R"("{\"zone\": \"Eur")";
  EXPECT_EQ(chat_prompt(called(cut), kItems), "<user>Hi<assistant>[get_time]<tool>12:00");
  EXPECT_EQ(chat_prompt(called(cut), kJson), "<user>Hi<assistant>[get_time {}]<tool>12:00");
  EXPECT_EQ(chat_prompt(called(cut), kText),
            "<user>Hi<assistant>[get_time {\"zone\": \"Eur]<tool>12:00");
  const char* const whole = R"("{\"zone\":\"UTC\"}")";
  EXPECT_EQ(chat_prompt(called(whole), kItems),
            "<user>Hi<assistant>[get_time zone=UTC]<tool>12:00");
  EXPECT_EQ(chat_prompt(called(whole), kText),
            "<user>Hi<assistant>[get_time {\"zone\":\"UTC\"}]<tool>12:00");
  EXPECT_EQ(chat_prompt(called(R"({"zone": "UTC"})"), kText),
            "<user>Hi<assistant>[get_time {\"zone\": \"UTC\"}]<tool>12:00");
}

TEST(Conversation, AMessageWithCallsHasTheContentThatTheTemplateLooksFor) {
  EXPECT_EQ(chat_prompt(called(R"("{\"a\":1}")", "x", "null"), kNone),
            "<user>Hi<assistant>[get_time {\"a\":1}]<tool>12:00");
  EXPECT_EQ(chat_prompt(called(R"("{\"a\":1}")", "x", R"("First")"), kNone),
            "<user>Hi<assistant>First<assistant>[get_time {\"a\":1}]<tool>12:00");
}

const std::string kNoResult = R"([{"role": "user", "content": "Hi"}, {"role": "assistant",
    "content": "", "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "f",
    "arguments": "{}"}}]}, {"role": "user", "content": "Go on"}])";
const std::string kTwoCalls = R"([{"role": "user", "content": "Hi"}, {"role": "assistant",
  "content": null, "tool_calls": [
    {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
    {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
  {"role": "tool", "tool_call_id": "call_2", "content": "two"},
  {"role": "tool", "tool_call_id": "call_1", "content": "one"}])";

TEST(Conversation, CallsStandOneByOneWhereTheTemplateWantsThemSo) {
  EXPECT_EQ(chat_prompt(kTwoCalls, kOneCall),
            "<user>Hi<assistant>{\"name\": \"f\", \"arguments\": {\"a\": 1}}<tool>one"
            "<assistant>{\"name\": \"g\", \"arguments\": {}}<tool>two");
  EXPECT_EQ(chat_prompt(kTwoCalls, kJson),
            "<user>Hi<assistant>[f {\"a\": 1}][g {}]<tool>two<tool>one");
}

TEST(Conversation, IdsHaveTheFormThatTheTemplateReads) {
  const std::string text = chat_prompt(kTwoCalls, kBriefIds);
  const std::string one = text.substr(text.find('[') + 1, 9);
  const std::string two = text.substr(text.rfind('[') + 1, 9);
  EXPECT_NE(one, two);
  EXPECT_EQ(text, "<user>Hi<assistant>[" + one + " f {\"a\": 1}][" + two + " g {}]<tool>two(" +
                      two + ")<tool>one(" + one + ")");
  EXPECT_EQ(chat_prompt(called("{}"), kBriefIds),
            "<user>Hi<assistant>[abcdefghi get_time {}]<tool>12:00(abcdefghi)");
}

TEST(Conversation, WhatAUserSaysBehindAResultStandsInItWhereTheTemplateRefusesIt) {
  std::string messages = called("{}");
  messages.back() = ',';
  messages += R"({"role": "user", "content": "Go on"}])";
  EXPECT_EQ(chat_prompt(messages, kBriefIds),
            "<user>Hi<assistant>[abcdefghi get_time {}]<tool>12:00\n\nGo on(abcdefghi)");
  EXPECT_EQ(chat_prompt(messages, kJson), "<user>Hi<assistant>[get_time {}]<tool>12:00<user>Go on");
}

TEST(Conversation, AnEmptyAnswerStandsBehindACallWithoutAResultWhereTheTemplateWantsOne) {
  EXPECT_EQ(chat_prompt(kNoResult, kBriefIds),
            "<user>Hi<assistant>[abcdefghi f {}]<assistant><user>Go on");
  // Where an answer must say something, it is a space.
  const std::string wordy = std::string(
                                "{% for m in messages %}{% if m.role == 'assistant' and "
                                "not m.content and not m.tool_calls %}"
                                "{{ raise_exception('words') }}{% endif %}{% endfor %}") +
                            kBriefIds;
  EXPECT_EQ(chat_prompt(kNoResult, wordy.c_str()),
            "<user>Hi<assistant>[abcdefghi f {}]<assistant> <user>Go on");
  // The control: a template that takes the user there.
  EXPECT_EQ(chat_prompt(kNoResult, kJson), "<user>Hi<assistant>[f {}]<user>Go on");
}

TEST(Conversation, SystemAndDeveloperMessagesAreOneInFront) {
  const std::string developer =
      R"([{"role": "developer", "content": "words"}, {"role": "user", "content": "Hi"}])";
  EXPECT_EQ(chat_prompt(developer, kThreeRoles), "<system>words<user>Hi");
  const std::string response = R"("instructions": "You are an agent.", "input": [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "words"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}])";
  for (const char* source : {kSystemFirst, kThreeRoles})
    EXPECT_EQ(response_prompt(response, source), "<system>You are an agent.\n\nwords<user>Hi");
  const std::string middle = R"([{"role": "system", "content": "a"},
    {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"},
    {"role": "system", "content": "b"}, {"role": "user", "content": "Go on"}])";
  EXPECT_EQ(chat_prompt(middle, kSystemFirst), "<system>a\n\nb<user>Hi<assistant>Yes<user>Go on");
  EXPECT_EQ(chat_prompt(middle, kThreeRoles),
            "<system>a<user>Hi<assistant>Yes<system>b<user>Go on");
  EXPECT_EQ(chat_prompt(developer, kAlternating), "<user>words\n\nHi");
}

TEST(Conversation, TurnsOfOneRoleAreJoinedWhereTheTemplateRefusesThem) {
  const std::string messages = R"([{"role": "user", "content": "a"},
    {"role": "user", "content": [{"type": "text", "text": "b"}]},
    {"role": "assistant", "content": "c"}])";
  EXPECT_EQ(chat_prompt(messages, kAlternating), "<user>a\n\nb<assistant>c");
  EXPECT_EQ(chat_prompt(messages, kThreeRoles), "<user>a<user>b<assistant>c");
}

const std::string kTools =
    R"(, "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function",
      "function": {"name": "g", "parameters": {}, "description": "d"}}])";

TEST(Conversation, AToolHasADescriptionAndParameters) {
  EXPECT_EQ(chat_prompt(R"([{"role": "user", "content": "Hi"}])", kDescribed, kTools),
            "// \nobject f// d\nobject g<user>Hi");
}

TEST(Conversation, ATemplateWithoutToolsHasThemInWords) {
  const std::string text = chat_prompt(kTwoCalls, kAlternating, kTools);
  EXPECT_EQ(text.find("<user># Tools\n\nYou may call"), 0u);
  EXPECT_NE(text.find(R"("name": "f", "description": "")"), text.npos);
  EXPECT_NE(text.find("\n</tool_call>\n\nHi<assistant><tool_call>\n"
                      "{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n"
                      "{\"name\": \"g\", \"arguments\": {}}\n</tool_call><user><tool_response>\n"
                      "two\n</tool_response>\n<tool_response>\none\n</tool_response>"),
            text.npos)
      << text;
  EXPECT_EQ(request_of(R"({"messages": [{"role": "user", "content": "Hi"}])" + kTools + "}",
                       Endpoint::chat, kAlternating)
                .tools,
            ToolFormat::tagged);
}

TEST(Conversation, NormalizingAgainChangesNothing) {
  for (const char* source : {kPlain, kOneCall, kItems, kJson, kText, kNone, kThreeRoles,
                             kSystemFirst, kAlternating, kBriefIds, kDescribed, kAnnouncing}) {
    const ChatTemplate chat = ChatTemplate::from_texts({.chat_template_jinja = source}, "a model");
    for (const std::string& messages :
         {kTwoCalls, kNoResult, called("null", "a long id of a call", R"("Words")"),
          std::string(R"([{"role": "developer"}, {"role": "user", "content": [
            {"type": "text", "text": "b"}]}, {"role": "user", "content": null}])")}) {
      const NormalConversation once = chat.normal(
          {.messages = json::parse(messages, "messages"),
           .tools = json::parse("{" + kTools.substr(2) + "}", "x").as_object()[0].second});
      const NormalConversation twice =
          chat.normal({.messages = once.messages, .tools = once.tools});
      EXPECT_EQ(json::dump(once.messages), json::dump(twice.messages)) << source;
      EXPECT_EQ(once.tools, twice.tools);
    }
  }
}

TEST(Conversation, WhatWasDoneIsShown) {
  const Request request = request_of(
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null}]})",
      Endpoint::chat, kPlain);
  const json::Value& shown = request.conversation;
  EXPECT_EQ(*shown.find("prompt"), json::Value("<user>Hi<assistant><assistant>"));
  EXPECT_EQ(json::dump(*shown.find("messages")),
            R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}])");
  EXPECT_EQ(json::dump(*shown.find("changes")),
            R"(["a message without content has an empty one"])");
  // A conversation that is normal already is given to the template as it is.
  const Request same =
      request_of(R"({"messages": [{"role": "user", "content": "Hi"}]})", Endpoint::chat, kPlain);
  EXPECT_EQ(json::dump(*same.conversation.find("changes")), "[]");
}

TEST(Requests, OtherServersWords) {
  const std::string hi = R"({"messages": [{"role": "user", "content": "Hi"}], )";
  const auto read = [&](const std::string& more) {
    return request_of(hi + more + "}", Endpoint::chat, kPlain);
  };
  // A seed that is drawn, and one that is negative.
  EXPECT_FALSE(read(R"("seed": -1)").has_seed);
  EXPECT_EQ(read(R"("seed": -2)").base.params.seed, UINT64_MAX - 1);
  EXPECT_TRUE(read(R"("seed": 0)").has_seed);
  EXPECT_FALSE(read(R"("top_logprobs": 0)").base.params.logprobs.has_value());
  const json::Value schema = json::parse(R"({"type": "object", "required": ["a"]})", "a schema");
  EXPECT_EQ(
      read(R"("response_format": {"type": "json_object", "schema": )" + json::dump(schema) + "}")
          .grammar,
      json::Value(json::Object{{"json", schema}}));
  // Arguments are an object, whatever the tool says of its parameters.
  for (const char* parameters : {"", R"(, "parameters": {})", R"(, "parameters": null)"}) {
    const json::Value grammar = read(std::string(R"("tool_choice": {"type": "function",
        "function": {"name": "f"}}, "tools": [{"type": "function", "function": {"name": "f")") +
                                     parameters + "}}]")
                                    .grammar;
    EXPECT_EQ(*grammar.find("json")->find("type"), json::Value("object"));
  }
}

TEST(Requests, AChoiceOfToolsHasManyForms) {
  const std::string tools = R"("messages": [{"role": "user", "content": "Hi"}], "tools": [{"type":
    "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}],
    "tool_choice": )";
  const auto read = [&](const std::string& choice) {
    return request_of("{" + tools + choice + "}", Endpoint::chat, kAnnouncing);
  };
  for (const char* choice :
       {R"("required")", R"("any")", R"({"type": "any"})", R"({"type": "required"})"})
    EXPECT_EQ(read(choice).tools, ToolFormat::object) << choice;
  for (const char* choice : {R"("auto")", R"({"type": "auto"})", R"({"type": "none"})", "null"})
    EXPECT_EQ(read(choice).tools, ToolFormat::none) << choice;  // the template names no format
  EXPECT_EQ(std::get<std::string>(read(R"({"type": "none"})").prompts.at(0)), "<user>Hi");
  for (const char* choice :
       {R"({"type": "function", "function": {"name": "f"}})", R"({"type": "tool", "name": "f"})"})
    EXPECT_EQ(read(choice).tool, "f") << choice;
  for (const char* choice :
       {R"({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
              {"type": "function", "function": {"name": "g"}}]}})",
        R"({"type": "allowed_tools", "mode": "required", "tools": [
              {"type": "function", "name": "g"}]})"}) {
    const Request request = read(choice);
    EXPECT_EQ(request.tools, ToolFormat::object);
    EXPECT_EQ(request.tool_list.as_array().size(), 1U) << choice;
  }
  for (
      const char* choice :
      {R"("some")", R"({"type": "some"})", R"({"type": "allowed_tools"})", "5", "[1]", "true",
       R"({"type": "tool", "name": "h"})",
       R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "h"}]})",
       R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]})"}) {
    try {
      read(choice);
      ADD_FAILURE() << choice;
    } catch (const FieldError& error) {
      EXPECT_EQ(error.field(), "tool_choice") << choice;
    }
  }
}

TEST(Conversation, AnAnswerMayBeBegunByTheMessageItself) {
  const auto prompt = [&](const std::string& more) {
    return chat_prompt(R"([{"role": "user", "content": "Hi"}, {"role": "assistant",
      "content": "So")" + more +
                           "}]",
                       kConcat);
  };
  const std::string begun = "<user>Hi<assistant>So";
  EXPECT_EQ(prompt(R"(, "prefix": true)"), begun);
  EXPECT_EQ(prompt(R"(, "partial": true)"), begun);
  // One without words begins nothing.
  EXPECT_EQ(chat_prompt(R"([{"role": "user", "content": "Hi"}, {"role": "assistant",
      "content": "", "prefix": true}])",
                        kConcat),
            "<user>Hi<assistant><assistant>");
  // The control: it is a turn of its own.
  EXPECT_EQ(prompt(""), begun + "<assistant>");
  EXPECT_EQ(prompt(R"(, "prefix": false)"), begun + "<assistant>");
}

// A user's words are not gone on with where the answer behind them was left out.
TEST(Conversation, AnAnswerThatIsLeftOutDoesNotGoOn) {
  const std::string words = std::string(
                                "{% for m in messages %}{% if m.role == 'assistant' and "
                                "not m.content %}{{ raise_exception('words') }}"
                                "{% endif %}{% endfor %}") +
                            kConcat;
  const auto go_on = [](const std::string& messages, const char* source) {
    return chat_prompt("[" + messages + "]", source, R"(, "continue_final_message": true)");
  };
  const std::string hi = R"({"role": "user", "content": "Hi"})",
                    none = R"({"role": "assistant", "content": ""})";
  for (const std::string& messages : {none, hi + ", " + none})
    EXPECT_THROW(go_on(messages, words.c_str()), UsageError) << messages;
  // The controls: a template that takes it, an answer with words, and a user who goes on.
  EXPECT_EQ(go_on(hi + ", " + none, kConcat), "<user>Hi<assistant>");
  EXPECT_EQ(go_on(hi + R"(, {"role": "assistant", "content": "So"})", words.c_str()),
            "<user>Hi<assistant>So");
  EXPECT_EQ(go_on(hi, words.c_str()), "<user>Hi");
}

TEST(Conversation, PartsMayBeTextsAndMayBeNull) {
  for (const char* content : {R"(["a", "b"])", R"(["a", {"type": "text", "text": "b"}])"})
    EXPECT_EQ(
        chat_prompt(R"([{"role": "user", "content": )" + std::string(content) + "}]", kConcat),
        "<user>a\nb<assistant>");
  EXPECT_EQ(chat_prompt(R"([{"role": "user", "content": [{"type": "text", "text": null}, "b"]}])",
                        kConcat),
            "<user>\nb<assistant>");
  EXPECT_EQ(chat_prompt(R"([{"role": "user", "content": [{"type": "input_text", "text": "a"},
                {"type": "output_text", "text": "b"}]}])",
                        kConcat),
            "<user>a\nb<assistant>");
  EXPECT_EQ(response_prompt(R"("input": [{"role": "user", "content": ["a", "b"]}])", kPlain),
            "<user>a\nb<assistant>");
}

// A template that shows the system's words with the last user's, as Mistral's does.
const char* const kSystemWithUser =
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '|' %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif "
    "%}"
    "{% for m in rest %}<{{ m.role }}>{% if loop.last and m.role == 'user' %}{{ system }}{% endif "
    "%}"
    "{{ m.content }}{% endfor %}";

TEST(Conversation, ASystemMessageAloneIsShown) {
  const std::string alone = R"([{"role": "system", "content": "a"}])";
  EXPECT_EQ(chat_prompt(alone, kSystemWithUser), "<user>a");
  EXPECT_EQ(chat_prompt(alone, kThreeRoles), "<system>a");
  const std::string both =
      R"([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])";
  EXPECT_EQ(chat_prompt(both, kSystemWithUser), "<user>a|b");
}

TEST(Conversation, WhatAServiceRanOrACallThatWasCutEndsNoMessage) {
  const std::string begin =
      R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [)";
  const std::string end =
      R"(, {"type": "text", "text": "Yes"}]}, {"role": "user", "content": "Go on"}])";
  for (const char* block : {R"({"type": "mcp_tool_use", "id": "a", "name": "f", "input": {}})",
                            R"({"type": "compaction", "content": "Earlier."})"})
    EXPECT_EQ(message_prompt(begin + block + end), "<user>Hi<assistant>Yes<user>Go on<assistant>");
  const std::string cut = begin + R"({"type": "tool_use", "id": "a", "name": "f")";
  const std::string result =
      R"(}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}])";
  const std::string whole = message_prompt(cut + R"(, "input": {})" + result);
  for (const char* input : {"", R"(, "input": null)"})
    EXPECT_EQ(message_prompt(cut + input + result), whole);
}

TEST(Conversation, ResultsOfAClientsOwnToolsAreShown) {
  const std::string prompt = response_prompt(
      R"("input": [{"role": "user", "content": "Hi"}, {"type": "shell_call", "call_id": "c",
        "action": {"commands": ["ls"]}}, {"type": "shell_call_output", "call_id": "c",
        "output": [{"stdout": "a.txt", "stderr": ""}]}])",
      kJson);
  EXPECT_NE(prompt.find(R"([shell {"commands": ["ls"]}])"), prompt.npos) << prompt;
  EXPECT_NE(prompt.find("a.txt"), prompt.npos) << prompt;
}

TEST(Conversation, WhatIsNoConversationIsRefused) {
  for (const char* messages :
       {R"([])", R"([{"role": "user", "content": 1}])", R"([{"role": "tool", "content": "a",
          "tool_call_id": 5}])",
        R"([{"role": "assistant", "tool_calls": {}}])", R"([{"role": "assistant",
          "tool_calls": [{"function": {"arguments": "{}"}}]}])",
        R"([{"role": "assistant", "tool_calls": [null]}])", R"([{"role": "assistant",
          "tool_calls": [{"id": 1, "function": {"name": "f"}}]}])"})
    EXPECT_THROW(chat_prompt(messages, kPlain), UsageError) << messages;
}

}  // namespace
}  // namespace invar::openai
