// The public API over an instance: text, tokens and conversations.
#include "base/error.h"
#include "session/open.h"
#include "session/session_impl.h"

namespace invar {

namespace {

// A conversation as the server's requests have it.
Conversation conversation_of(const json::Value& body) {
  if (!body.is_object())
    fail_usage("expected a conversation as an object, found {}", body.type_name());
  Conversation conversation;
  for (const auto& [name, value] : body.as_object())
    if (name == "messages")
      conversation.messages = value;
    else if (name == "tools")
      conversation.tools = value;
    else if (name == "add_generation_prompt")
      conversation.add_generation_prompt = value.as_bool();
    else if (name == "continue_final_message")
      conversation.continue_final_message = value.as_bool();
    else if (name == "chat_template_kwargs")
      conversation.variables = value.as_object();
    else
      fail_usage("a conversation has no member {}", json::quoted(name));
  return conversation;
}

}  // namespace

std::string Session::Impl::rendered(const Conversation& conversation) {
  const std::lock_guard lock(compiling);
  if (!chat) chat = open_chat_template(options.model);
  return chat->render(conversation, local_time);
}

std::vector<int32_t> Session::Impl::tokens_of(std::span<const Message> messages) {
  json::Array list;
  for (const Message& message : messages)
    list.push_back(json::Object{{"role", message.role}, {"content", message.content}});
  return tokenizer.encode(rendered({.messages = std::move(list)}), {.add_special_tokens = false});
}

std::vector<int32_t> Session::tokenize(std::string_view text, bool add_special_tokens) const {
  return impl_->tokenizer.encode(text, {.add_special_tokens = add_special_tokens});
}
std::vector<int32_t> Session::tokenize(std::span<const Message> messages) const {
  return impl_->tokens_of(messages);
}
std::string Session::detokenize(std::span<const int32_t> tokens, bool skip_special_tokens) const {
  return impl_->tokenizer.decode(tokens, {.skip_special = skip_special_tokens});
}
std::string Session::render_chat(std::string_view conversation) const {
  return impl_->rendered(conversation_of(json::parse(conversation, "a conversation")));
}
std::string Session::token_text(int32_t token) const {
  return std::string(impl_->tokenizer.token_text(token));
}
std::optional<int32_t> Session::token_id(std::string_view text) const {
  return impl_->tokenizer.id_of(text);
}
std::optional<int32_t> Session::bos_token() const {
  return impl_->tokenizer.bos_id();
}
std::optional<int32_t> Session::eos_token() const {
  return impl_->tokenizer.eos_id();
}

}  // namespace invar
