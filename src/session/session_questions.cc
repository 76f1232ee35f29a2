// Questions of the public API whose answers are numbers.
#include <ctime>

#include "base/error.h"
#include "frontend/body_fields.h"
#include "session/open.h"
#include "session/questions.h"
#include "session/session_impl.h"

namespace invar {

// A chat template that is not there, or broken, is missed by those questions alone that need one,
// which then say why.
const ChatTemplate* Session::Impl::found_chat() {
  try {
    if (!chat) chat = open_chat_template(options.model);
  } catch (const Error& error) {
    no_chat = error.what();
    return nullptr;
  }
  return &*chat;
}

std::string Session::ask(std::string_view endpoint, std::string_view body, const OnStep& on_step) {
  const json::Value asked_body = json::parse(body, "a question");
  const Impl::Awake at = impl_->awake();
  NumbersReceipt receipt{.id = "session",
                         .created = std::time(nullptr),
                         .name = at->model().options().model,
                         .context = impl_->context,
                         .endpoint = std::string(endpoint),
                         .body = json::dump(asked_body)};
  NumbersAsked asked;
  {
    const std::lock_guard lock(impl_->compiling);
    const ChatTemplate* chat = impl_->found_chat();
    asked = numbers_asked(endpoint, asked_body,
                          question_texts(at->model(), impl_->tokenizer, chat, impl_->context,
                                         receipt.created, impl_->no_chat));
  }
  const bool shows = BodyFields(asked_body).read_flag("receipt", false);
  if (shows) impl_->expect_receipts();
  // Digests of all weights are for receipts alone.
  if (shows) receipt.model = impl_->answering_model(at.running);
  const auto told = [&](size_t answered) {
    if (on_step) on_step(answered, 0);
  };
  const Numbers numbers = numbers_of(at->loop.last_events(std::move(asked.requests), told));
  NumbersHead head = head_of(receipt);
  if (shows) head.receipt = signed_receipt(std::move(receipt), numbers, impl_->receipt_key);
  if (!shows) head.fingerprint = impl_->identity;
  return asked.body(numbers, head);
}

}  // namespace invar
