// llama.cpp's server: /completion and /infill, whole or as events.
#pragma once

#include <string>
#include <vector>

#include "frontend/answer_builder.h"
#include "frontend/answer_times.h"
#include "frontend/openai.h"
#include "frontend/single_writer.h"

namespace invar::llama_server {

// The body of a completion that asks for the same as a body of /completion, or of /infill. Throws
// UsageError for what is not understood; what no answer depends on is a warning.
json::Value completion_body_of(const json::Value& body, const openai::Context& context,
                               openai::RequestWarnings& warnings);
json::Value infill_body_of(const json::Value& body, const openai::Context& context,
                           openai::RequestWarnings& warnings);

// How such a body wants its answer shown; of the body as it was sent.
struct Shown {
  bool computes_nothing = false;  // n_predict 0: the prompt alone, whose blocks are then known
  bool token_ids = false;
  std::vector<std::string> fields;  // that the answer has; empty: all
};
Shown shown_of(const json::Value& body);

// One object, or a list of one for each prompt.
json::Value answer_body(const openai::Request& request, const std::vector<TextAnswer>& answers,
                        const Tokenizer& tokenizer, const openai::Head& head,
                        const AnswerTimes& times);

// The answer to one prompt as events.
class EventWriter final : public openai::SingleWriter {
 public:
  using SingleWriter::SingleWriter;

 private:
  void show(const TokenOutput& output, const std::string& piece, std::string& out) override;
  void show_error(const Failure& failure, std::string& out) override;

  std::vector<int32_t> ids_;  // of the event to come
};

}  // namespace invar::llama_server
