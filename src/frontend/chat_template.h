// A conversation as the text that a model was trained to answer: its chat template with the
// variables that Hugging Face's apply_chat_template gives it.
//
// The text is to be encoded with EncodeOptions{.add_special_tokens = false}: the template writes
// the special tokens itself. As in Hugging Face's library they are recognised wherever they are
// spelled, in what a user wrote too.
#pragma once

#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "frontend/jinja/template.h"
#include "frontend/normal_conversation.h"
#include "frontend/tool_calls.h"

namespace invar {

struct Conversation {
  json::Value messages;  // an array of objects with "role", as OpenAI's clients send them
  json::Value tools;     // an array, or null
  bool add_generation_prompt = true;
  // The text ends where the last message's content does, so that the answer goes on with it.
  bool continue_final_message = false;
  json::Object variables;  // more for the template, such as enable_thinking
};

// The contents of a model's files. Empty: the file is absent.
struct ChatTemplateTexts {
  std::string chat_template_jinja, tokenizer_config_json, special_tokens_map_json;
  std::string jinja_name;  // of the first in errors, where it is not the model's
};

class ChatTemplate {
 public:
  // Reads chat_template.jinja or, without one, chat_template of tokenizer_config.json: a template,
  // or several with names, of which "tool_use" is for conversations with tools and "default" for
  // the rest. Throws Error naming the file when there is none or it is broken.
  static ChatTemplate load(const std::string& directory);
  static ChatTemplate from_texts(const ChatTemplateTexts& texts, const std::string& name);

  // The text of the template for conversations with tools.
  const std::string& source() const { return choose(true).source; }
  // Traits of the same template.
  const TemplateTraits& traits() const { return choose(true).traits; }
  // Whether it is a template of pairs: it shows what the roles "query" and "document" say, and no
  // user's words, as vLLM's templates of scores do.
  bool is_of_pairs() const { return is_of_pairs_; }
  // The text that such a template makes of a pair; `instruction`, where there is one, is the system
  // message's. Throws UsageError for what the template refuses.
  std::string render_pair(const std::string& query, const std::string& document,
                          const std::string& instruction,
                          const std::function<std::tm()>& clock) const;
  // How answers write calls: as the template asks, or as the generic form of tools does.
  ToolFormat tool_format() const;
  // The form of the conversation that the template is given. Throws UsageError for what is no
  // conversation.
  NormalConversation normal(const Conversation& conversation) const;
  // `clock` is what the template's strftime_now shows. Throws UsageError for what is no
  // conversation and for what the template refuses. `normal`: of this conversation.
  std::string render(const Conversation& conversation, const std::function<std::tm()>& clock) const;
  std::string render(const Conversation& conversation, NormalConversation normal,
                     const std::function<std::tm()>& clock) const;

 private:
  struct Named {
    std::string name;
    std::string source;
    jinja::Template program;
    TemplateTraits traits;
  };
  ChatTemplate() = default;
  const Named& choose(bool has_tools) const;
  // These messages as they are.
  std::string render_plain(json::Array messages, const std::function<std::tm()>& clock) const;
  const Named& chosen_for(const Conversation& conversation) const;

  std::string where_;
  bool shows_pairs() const;

  std::vector<Named> templates_;
  bool is_of_pairs_ = false;
  jinja::Variables special_tokens_;  // bos_token and its like
};

// The time of the machine, here.
std::tm local_time();
// The time so many seconds after 1970, in UTC.
std::tm utc_time(int64_t seconds);

}  // namespace invar
