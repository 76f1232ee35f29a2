// Questions whose answers are numbers are read with these, and have these entries in the journal.
#include <ctime>

#include "admission.h"
#include "base/ends.h"
#include "base/error.h"
#include "errors.h"
#include "frontend/request_limits.h"

namespace invar::server {

QuestionTexts Admission::question_texts(const std::string& owner, int64_t created) const {
  const BackendFacts facts = backend_.facts();
  const auto read_prompt = [this, created](const json::Value& body, openai::Endpoint endpoint,
                                           const std::string& field) {
    const bool is_chat = endpoint == openai::Endpoint::chat;
    if (is_chat) expect_head();
    try {
      return within(is_chat ? "" : field, [&] {
        return read(
            {.created = created, .endpoint = is_chat ? "/v1/chat/completions" : "/v1/completions"},
            body);
      });
    } catch (ApiError& error) {
      if (error.param.empty() || error.param == prompt_field(endpoint)) error.param = field;
      throw;
    }
  };
  return {.read = read_prompt,
          .check_model = [this](const std::string& name) { check_model(name); },
          .tokenizer = model_.tokenizer,
          .chat = model_.chat,
          .clock = [created] { return utc_time(created); },
          .end_tokens = facts.end_tokens,
          .form = model_.numbers,
          .context = facts.max_model_len,
          .vector_size = facts.vector_size,
          // No salt of a client's is that of another key: an owner is of one length.
          .salt = model_.shares_prefixes ? std::string() : owner};
}

JournalEntry Admission::question_entry(const HttpRequest& http, const std::string& owner) const {
  const ReceiptModel model = answering_model();
  const std::string prefix(id_prefix_of_question(http.path));
  JournalEntry entry{.id = random_id(prefix.c_str()),
                     .created = static_cast<int64_t>(std::time(nullptr)),
                     .owner = owner,
                     .idempotency_key = idempotency_key_of(http),
                     .endpoint = http.path,
                     .body = sha256(std::as_bytes(std::span(http.body))),
                     .arithmetic = model.arithmetic,
                     .model = model_digest(model)};
  return entry;
}

NumbersReceipt Admission::question_receipt(const JournalEntry& entry) const {
  return {.id = entry.id,
          .created = entry.created,
          .name = first_of(model_.names),
          .context = backend_.facts().max_model_len,
          .model = answering_model(),
          .endpoint = entry.endpoint,
          .body = entry.request};
}

}  // namespace invar::server
