// From the bytes of a request to a journal entry and the requests that compute it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "admission_slots.h"
#include "backend.h"
#include "frontend/numbers_receipt.h"
#include "frontend/openai.h"
#include "frontend/questions.h"
#include "frontend/receipt.h"
#include "http.h"
#include "journal/journal.h"
#include "model_card.h"
#include "served_adapters.h"

namespace invar::server {

// The context in which requests are read; fixed while the server runs.
struct ServedModel {
  std::vector<std::string> names;  // under which clients may ask for it; the first is shown
  std::string directory;           // that it was opened from; empty: its weights are made
  ModelCard card;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat = nullptr;                  // null: the model has none, because
  std::string no_chat;                                 // of this sentence
  ToolFormat tool_format = ToolFormat::none;           // how it writes calls of tools
  ThoughtFormat thought_format = ThoughtFormat::none;  // and thoughts
  const ThoughtSeal* seal = nullptr;  // of thoughts that clients keep; null: they keep none
  SamplingParams defaults;            // of what a request does not say
  std::string defaults_from;          // who says them: SamplingDefaults::from, flags
  NumberForm numbers;                 // of vectors and relevance
  int32_t max_logprobs = 20;          // of a position, vLLM's
  bool clamps_length = false;         // of any endpoint: see openai::Context
  // Requests of all keys share computed blocks. Else those of one key do: how soon an answer begins
  // would tell a client whether somebody else asked the same.
  bool shares_prefixes = true;
  const ReceiptKey* receipt_key = nullptr;  // null: there are no receipts
  // Digests of tokenizer, template and defaults; the rest is the backend's.
  ReceiptModel texts;
  ServedAdapters* adapters = nullptr;  // that clients may ask for, too; null: none
};

// The model's abilities, by Ollama's words: completion, tools, thinking, insert, embedding.
std::vector<std::string> capabilities_of(const ServedModel& model);

struct Admitted {
  JournalEntry entry;
  openai::Request request;
  openai::Head head;
  std::vector<Request> requests;  // one for each answer; their ids are still 0
  // How many tokens of its prompts were in the prefix cache, where that was said before: an answer
  // that is computed again says the same.
  std::optional<int64_t> cached;
  std::shared_ptr<HeldSlots> slots;  // one for each
  bool was_large = false;            // its body: memory is given back when it is over
};

struct TokenizedText {
  std::vector<int32_t> ids;
  bool with_texts = false;
};

class Admission {
 public:
  Admission(const ServedModel& model, const Backend& backend) : model_(model), backend_(backend) {}

  // A new request, with its body as JSON. Draws what the request leaves open: id, time, seed. Takes
  // slots for its answers before it looks at its prompts. `earlier`: JSON of the items of the
  // response that it goes on from. Throws ApiError and UsageError.
  Admitted admit(const HttpRequest& http, const std::string& owner, const json::Value& body,
                 const std::optional<std::string>& earlier, std::shared_ptr<HeldSlots> slots) const;
  // The same once more, from its entry. Throws ApiError when it was made with another arithmetic
  // or another model, naming both.
  Admitted readmit(const JournalEntry& entry) const;

  // Makes the answer its receipts and nothing else. Throws ApiError when there are none.
  void ask_for_receipt(Admitted& admitted) const;

  // Answers POST /tokenize, as vLLM has it: a "prompt" or "messages". Throws as `admit` does.
  TokenizedText tokenize(const HttpRequest& http) const;
  // Answers POST `path`/render: the prompt of a chat, a message or a response, and the form in
  // which the chat template has its conversation. `earlier`: as of `admit`.
  json::Value render(const std::string& path, json::Value body,
                     const std::optional<std::string>& earlier = std::nullopt) const;
  // Answers POST .../derender: the answer that these tokens are (derender.cc).
  json::Value derender(const HttpRequest& http) const;
  // Answers POST /detokenize: the text of "tokens".
  std::string detokenize(const HttpRequest& http) const;

  // POST /v1/messages/count_tokens and /v1/responses/input_tokens: the tokens of the prompt that
  // such a message or response would have.
  int64_t count_tokens(const std::string& endpoint, json::Value body,
                       const std::optional<std::string>& earlier = std::nullopt) const;

  // Bytes of the largest text whose tokens are shown or counted and not computed, and of a body
  // that may have it.
  size_t most_counted_bytes() const;
  size_t most_counted_body() const { return 4 * most_counted_bytes(); }

  // Questions of this owner and second are read with the result, which this outlives. It throws
  // ApiError, too.
  QuestionTexts question_texts(const std::string& owner, int64_t created) const;
  // A new question's entry but for its `request`. Throws UsageError.
  JournalEntry question_entry(const HttpRequest& http, const std::string& owner) const;
  // Its receipt but for the numbers; `request` stands in the entry.
  NumbersReceipt question_receipt(const JournalEntry& entry) const;
  // Throws ApiError where there are no receipts of answers of this model.
  void expect_receipts(const ReceiptModel& model) const;
  // Throws ApiError where the entry's answer was made with another arithmetic or another model,
  // naming both.
  static void expect_same_model(const JournalEntry& entry, const ReceiptModel& now);

  // The inputs that answers depend on beside their requests, with the weights of this moment.
  ReceiptModel answering_model(const RequestAdapter* adapter = nullptr) const;
  std::string fingerprint(const RequestAdapter* adapter = nullptr) const {
    return fingerprint_of(answering_model(adapter));
  }
  // An empty one is the first of the model's names.
  bool is_models_name(const std::string& name) const;
  // Throws ApiError for a name that is not served.
  void check_model(const std::string& name) const;
  // The adapter of that name; null where the name is the model's. Throws as check_model does.
  std::shared_ptr<const RequestAdapter> adapter_of(const std::string& name) const;

 private:
  enum class Purpose {
    answer,
    count,  // the prompt's tokens alone: it may be of any size
    show,   // the conversation, too
  };
  // `entry` says to which endpoint and when, and has the prompts if they are known.
  openai::Request read(const JournalEntry& entry, const json::Value& body,
                       const std::optional<std::string>& earlier = std::nullopt,
                       Purpose purpose = Purpose::answer) const;
  // The same of a response whose oldest turns are left out where it does not fit.
  openai::Request read_fitting(const JournalEntry& entry, const json::Value& body,
                               const std::optional<std::string>& earlier) const;
  // A prompt as /inference/v1/generate takes it, beside what is shown of it; a list of a
  // completion's.
  json::Value rendered(json::Value shown, const json::Value& body,
                       const std::vector<int32_t>& ids) const;
  json::Value render_prompts(const json::Value& body, const openai::Request& request) const;
  // The choices of an answer in the form of /inference/v1/generate.
  std::vector<TextAnswer> answers_in(const json::Value& response, openai::Request& request) const;
  std::vector<int32_t> encode(const openai::Request& request, const openai::Prompt& prompt) const;
  // The same of the first prompt, which is only shown or counted. Throws UsageError for a text that
  // is too large.
  std::vector<int32_t> encode_counted(const openai::Request& request) const;
  using Adapter = std::shared_ptr<const RequestAdapter>;
  std::vector<Request> make_requests(const JournalEntry& entry, const openai::Request& request,
                                     const Adapter& adapter) const;
  Admitted complete(JournalEntry entry, openai::Request request, const Adapter& adapter) const;
  void expect_head() const;
  void prepare_receipts(Admitted& admitted) const;

  const ServedModel& model_;
  const Backend& backend_;
};

// Whether a name, or one in which '*' stands for anything, is this one.
bool names(std::string_view pattern, std::string_view name);
// The same with or without Ollama's tag, which its clients leave out or add at every path.
bool names_without_tag(std::string_view pattern, std::string_view name);
// Takes slots for all answers of the request. Throws ApiError when there are not so many.
void take_slots(HeldSlots& slots, const openai::Request& request);
// Holds so many bytes of memory, before a request keeps them. Throws ApiError when there are not so
// many.
void hold_memory(HeldSlots& slots, size_t bytes);
// The same of a request of an RL stack, an object; no body is an empty one. Throws ApiError.
json::Value json_body(const HttpRequest& request);
// The text that a member of it is. Throws ApiError.
std::string text_member(const json::Value& value, const char* name);
// The request's, or an empty one. Throws UsageError for one that is too long.
std::string idempotency_key_of(const HttpRequest& http);
// Which field of a body its prompts come from.
const char* prompt_field(openai::Endpoint endpoint);
// The JSON of a request's body, of limited depth. Throws Error.
json::Value parse_body(const std::string& body);

// `prefix` and 24 random hexadecimal digits.
std::string random_id(const char* prefix);

}  // namespace invar::server
