// An answer as a client got it, held against the receipts in it and against what the client asked.
#pragma once

#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "frontend/openai.h"
#include "frontend/receipt.h"

namespace invar {

// Where two values differ first, below `path`: "choices[0].text: expected ..., found ..."; or
// empty.
std::string first_difference(const json::Value& expected, const json::Value& found,
                             const std::string& path);

struct ServedAnswer {
  json::Value body;               // null: there are receipts alone
  std::vector<Receipt> receipts;  // of every choice
};

// The receipts of what GET /v1/receipts/ID answers; null where a value is something else, or has
// more members, which nobody would check.
const json::Array* receipts_alone(const json::Value& value);

// Reads an answer whose every choice has its receipt, a list of receipts, or one. Throws Error for
// anything else.
ServedAnswer read_served_answer(const json::Value& value);

// Checks that receipts of one answer agree and follow each other; empty, or one sentence.
std::string fault_between(std::span<const Receipt> receipts);

// The tools that make an answer's text.
struct AnswerTexts {
  const Tokenizer& tokenizer;
  const ChatTemplate* chat = nullptr;  // null: the model has none
  std::vector<int32_t> end_tokens;     // the model's
  int32_t vocab = 0;
  SamplingParams model_defaults;  // what requests leave open
};

struct Asked {
  openai::Request request;
  std::vector<std::vector<int32_t>> prompts;  // its tokens
};

// The request that `body` is, read as the server of this receipt reads it. Throws Error.
Asked read_asked(const json::Value& body, const Receipt& receipt, const AnswerTexts& texts);
// Where the receipts say something else than what was asked; empty, or one sentence.
std::string request_difference(const Asked& asked, std::span<const Receipt> receipts);

// Which log-probabilities the answer shows: as its computation is to be asked for them.
void ask_for_shown(const ServedAnswer& answer, SamplingParams& params);

// Where the body differs from what `answers`, computed again, are shown as: for `asked`, or without
// it for the likeliest request that could have had these receipts. Empty, or one sentence.
std::string body_difference(const ServedAnswer& served, std::span<const TextAnswer> answers,
                            const openai::Request* asked, const AnswerTexts& texts);

}  // namespace invar
