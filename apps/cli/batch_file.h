// Files of requests in OpenAI's batch format: one JSON object a line, answers likewise, in the
// order of the requests.
#pragma once

#include <string>

#include "frontend/chat_template.h"
#include "frontend/text_engine.h"

namespace invar::cli {

struct BatchFile {
  std::string input, output;
  SamplingParams defaults;             // of what a request does not say
  bool has_length = false;             // their max_tokens is what the user asked for
  const ChatTemplate* chat = nullptr;  // for lines with messages; null: the model has none, because
  std::string no_chat;                 // of this sentence
};

// A bad line becomes an error line in the output and loses nothing else. Returns the exit status.
int run_batch_file(const BatchFile& file, TextEngine& engine);

}  // namespace invar::cli
