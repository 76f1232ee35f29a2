// Questions about texts whose answers are numbers of a model: decisions, relevance, vectors. A body
// becomes requests of an engine and a function that makes the answer of what they come to. The
// answer depends on the body, these numbers and the head alone, so that whoever computes the
// numbers again makes the same bytes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "frontend/openai.h"

namespace invar {

// How the relevance of a text to another one is found: by the likelihood of the answer yes, the
// cosine of their vectors, or the score of a cross-encoder.
enum class Relevance : uint8_t { likelihood, cosine, cross };

// A model's directory says this of such questions.
struct NumberForm {
  Relevance relevance = Relevance::likelihood;
  bool has_head = true;     // else it makes no answers of tokens
  bool normalizes = false;  // vectors, cut or not
  // Whether vectors may be cut, and to which sizes; empty: to any.
  bool cuts = false;
  std::vector<int32_t> sizes = {};
};

// The vector of each request, or the log-probability of its one token.
using Numbers = std::vector<std::vector<float>>;

// An answer has these members beside what its numbers say.
struct NumbersHead {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model, fingerprint;
  json::Value receipt = {};  // null: none
};

struct NumbersAsked {
  // At least one; all pooled, or of one token with log-probabilities.
  std::vector<Request> requests;
  size_t bytes = 0;  // of memory that they and their answer hold
  std::function<std::string(const Numbers& numbers, const NumbersHead& head)> body;  // JSON
};

// Questions are read with these, by a server and by those who compute its answers again.
struct QuestionTexts {
  // Reads the body of a completion or a chat; what is wrong with its prompt is wrong with `field`.
  std::function<openai::Request(const json::Value& body, openai::Endpoint endpoint,
                                const std::string& field)>
      read;
  // Throws for a name that is not served.
  std::function<void(const std::string& model)> check_model;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat = nullptr;   // null: the model has none
  std::function<std::tm()> clock = {};  // for the template
  std::vector<int32_t> end_tokens;
  NumberForm form;
  int32_t context = 0, vector_size = 0;
  std::string salt;  // of the prefix cache

  // The prompt of a chat with this body, in which no thought is open; the tokens of a text, with
  // those that begin every prompt or without.
  std::vector<int32_t> chat_tokens(const json::Value& body, const std::string& field) const;
  std::vector<int32_t> text_tokens(const std::string& text, bool add_special_tokens) const;
  // The token that ends an answer, where there is one.
  std::optional<int32_t> end_of_answer() const;
};

// Whether a path asks for numbers; what its answers' ids begin with.
bool is_question(std::string_view path);
std::string_view id_prefix_of_question(std::string_view path);
// Reads the body of such a path. Throws UsageError with one sentence, and what `texts` throws.
NumbersAsked numbers_asked(std::string_view path, const json::Value& body,
                           const QuestionTexts& texts);

// The texts of a body of /v1/embeddings as tokens. Those that are longer than the context are
// refused, or cut at their end with a warning in `cut`.
std::vector<std::vector<int32_t>> embedded_texts(const json::Value& body,
                                                 const QuestionTexts& texts,
                                                 openai::RequestWarnings* cut = nullptr);
// To how many numbers it wants its vectors cut, if it does.
std::optional<int32_t> dimensions_of(const json::Value& body, const QuestionTexts& texts);
// The bytes that requests for vectors of so many numbers hold, with their answer.
size_t vectors_bytes(const std::vector<Request>& requests, int32_t vector_size, bool base64);

// Each kind of path has its reader.
NumbersAsked decisions_asked(const json::Value& body, const QuestionTexts& texts);
NumbersAsked ranks_asked(const json::Value& body, const QuestionTexts& texts);
NumbersAsked scores_asked(const json::Value& body, const QuestionTexts& texts);
NumbersAsked vectors_asked(const json::Value& body, const QuestionTexts& texts, bool is_pooling);

}  // namespace invar
