// Questions whose answers are numbers (frontend/questions.h), beside a server: read with the files
// of a model, computed by its engine, and computed again from their receipts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model.h"
#include "frontend/chat_template.h"
#include "frontend/numbers_receipt.h"
#include "frontend/questions.h"
#include "session/engine_loop.h"

namespace invar {

// A model's questions are read with the result, which all arguments outlive; `chat`: null, there is
// none, as the sentence `no_chat` says. `created`: seconds since 1970, for templates that ask for
// the time.
QuestionTexts question_texts(const Model& model, const Tokenizer& tokenizer,
                             const ChatTemplate* chat, int32_t context, int64_t created,
                             const std::string& no_chat = "the model has no chat template");

// The last events of a question's requests give its numbers. Throws Error where one failed.
Numbers numbers_of(std::vector<AnswerEvent> events);

struct NumbersVerdict {
  bool is_confirmed = false;
  std::string sentence;  // what differs first; or what was confirmed
  size_t numbers = 0;    // that were computed again
  double seconds = 0;
  std::string body;  // the answer that they make, receipt included; empty: they differ
};

// Computes the numbers of a receipt again. `known`: of the model. Says nothing of the signature.
// Throws Error where the receipt asks for what the model cannot compute.
NumbersVerdict verify(const NumbersReceipt& receipt, const ReceiptModel& known,
                      const std::shared_ptr<Model>& model, const Tokenizer& tokenizer,
                      const ChatTemplate* chat);

}  // namespace invar
