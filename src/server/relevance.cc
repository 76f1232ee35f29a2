// POST /v1/rerank and /v1/score: how relevant texts are to others, by the model that is served.
#include <fmt/ranges.h>

#include <algorithm>

#include "api.h"
#include "base/ends.h"
#include "base/error.h"
#include "engine/pooled_vector.h"
#include "frontend/body_fields.h"
#include "likelihoods.h"
#include "sampling/logprob.h"

namespace invar::server {

namespace {

constexpr size_t kMostTexts = 1024, kMostTextBytes = 4 << 20, kMostInstructionBytes = 16 << 10;
// As Qwen3-Reranker was trained to be asked.
constexpr const char* kJudge =
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".";
constexpr const char* kInstruction =
    "Given a web search query, retrieve relevant passages that answer the query";

struct Pair {
  std::string query, document;
};

// The requests for pairs, and each pair's score from their numbers.
struct PairsAsked {
  std::vector<Request> requests;
  size_t bytes = 0;
  int64_t tokens = 0;
  std::function<std::vector<float>(const Numbers&)> scores;
};

json::Value judged(const Pair& pair, const std::string& instruction) {
  const std::string text = fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}", instruction,
                                       pair.query, pair.document);
  return json::Object{
      {"messages", json::Array{json::Object{{"role", "system"}, {"content", kJudge}},
                               json::Object{{"role", "user"}, {"content", text}}}},
      {"max_tokens", 1},
      {"chat_template_kwargs", json::Object{{"enable_thinking", false}}}};
}

// The share of yes among yes and no.
PairsAsked by_likelihood(const Admission& admission, const std::vector<Pair>& pairs,
                         const std::string& instruction, const std::string& salt) {
  const auto yes = admission.text_tokens("yes", false), no = admission.text_tokens("no", false);
  Likelihoods likelihoods(salt, admission.context());
  for (const Pair& pair : pairs) {
    const std::vector<int32_t> prompt =
        said_of("documents", [&] { return admission.chat_tokens(judged(pair, instruction)); });
    said_of("documents", [&] { return likelihoods.add(prompt, yes); });
    likelihoods.add(prompt, no);
  }
  return {.requests = likelihoods.requests(),
          .bytes = likelihoods.bytes(),
          .tokens = likelihoods.prompt_tokens(),
          .scores = [likelihoods, count = pairs.size()](const Numbers& numbers) {
            std::vector<float> scores;
            for (size_t i = 0; i < count; ++i)
              scores.push_back(shares_of(
                  std::vector<float>{likelihoods.log_probability(2 * i, numbers),
                                     likelihoods.log_probability(2 * i + 1, numbers)})[0]);
            return scores;
          }};
}

// Adds the request for a text's vector; its number.
size_t add_text(PairsAsked& asked, std::vector<int32_t> text, int32_t context) {
  if (text.empty() || std::ssize(text) > context)
    fail_usage("expected texts of 1 to {} tokens, found {}", context, text.size());
  asked.tokens += std::ssize(text);
  asked.requests.push_back({.prompt = std::move(text), .hash_logits = false, .pooled = true});
  return asked.requests.size() - 1;
}

// Each text's vector once.
PairsAsked by_cosine(const Admission& admission, const std::vector<Pair>& pairs) {
  PairsAsked asked;
  std::map<std::string, size_t> known;
  const auto vector_of = [&](const std::string& text) {
    const auto found = known.find(text);
    if (found != known.end()) return found->second;
    return known[text] = add_text(asked, admission.text_tokens(text, true), admission.context());
  };
  std::vector<std::pair<size_t, size_t>> places;
  for (const Pair& pair : pairs) {
    const size_t query = vector_of(pair.query);
    places.emplace_back(query, vector_of(pair.document));
  }
  asked.scores = [places](const Numbers& vectors) {
    std::vector<float> scores;
    for (const auto& [query, document] : places)
      scores.push_back(cosine(vectors[query], vectors[document]));
    return scores;
  };
  return asked;
}

// The tokens of both texts, one behind the other.
PairsAsked by_encoder(const Admission& admission, const std::vector<Pair>& pairs) {
  PairsAsked asked;
  for (const Pair& pair : pairs) {
    std::vector<int32_t> tokens = admission.text_tokens(pair.query, true);
    std::ranges::copy(admission.text_tokens(pair.document, false), std::back_inserter(tokens));
    add_text(asked, std::move(tokens), admission.context());
  }
  asked.scores = [](const Numbers& vectors) {
    std::vector<float> scores;
    for (const std::vector<float>& vector : vectors) scores.push_back(vector[0]);
    return scores;
  };
  return asked;
}

PairsAsked asked_of(const Admission& admission, Relevance relevance, const std::vector<Pair>& pairs,
                    const std::string& instruction, const std::string& salt) {
  switch (relevance) {
    case Relevance::cosine:
      return by_cosine(admission, pairs);
    case Relevance::cross:
      return by_encoder(admission, pairs);
    default:
      return by_likelihood(admission, pairs, instruction, salt);
  }
}

// The bytes that the requests hold, and the numbers that come.
size_t bytes_of(const PairsAsked& asked, int32_t vector_size) {
  return asked.bytes > 0 ? asked.bytes : vectors_bytes(asked.requests, vector_size, true);
}

// A text, or an object with one.
std::string text_in(const json::Value& value, std::string_view name) {
  const json::Value* inner = value.is_object() ? value.find("text") : &value;
  if (!inner) fail_usage("expected \"text\" in each of {}, found {}", name, json::excerpt(value));
  const std::string& text = text_of(*inner, name, kMostTextBytes);
  if (text.empty()) fail_usage("expected a text of at least one byte in {}, found none", name);
  return text;
}

std::vector<std::string> texts_in(const json::Value& value, std::string_view name) {
  if (!value.is_array()) return {text_in(value, name)};
  std::vector<std::string> texts;
  for (const json::Value& one : list_of(value, name, kMostTexts))
    texts.push_back(text_in(one, name));
  if (texts.empty()) fail_usage("expected at least one text in {}, found none", name);
  return texts;
}

// The field under the first of these names that is there.
const json::Value& needed(const BodyFields& fields, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const json::Value* value = fields.find(name)) return *value;
  fail_usage("expected \"{}\" in the body of the request", *names.begin());
}

std::string instruction_of(const BodyFields& fields) {
  const json::Value* found = fields.find("instruction");
  return found ? text_of(*found, "instruction", kMostInstructionBytes) : kInstruction;
}

void expect_object(const json::Value& body, const Admission& admission) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  if (const json::Value* model = body.find("model"); model && !model->is_null())
    admission.check_model(text_of(*model, "model"));
}

json::Value usage_of(int64_t tokens) {
  return json::Object{{"prompt_tokens", tokens}, {"total_tokens", tokens}};
}

// The best first, of equal ones the first.
std::vector<size_t> ranked(const std::vector<float>& scores, size_t most) {
  std::vector<size_t> order(scores.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return scores[i]; });
  order.resize(std::min(order.size(), most));
  return order;
}

}  // namespace

NumbersAsked Server::ranks_asked(const HttpRequest& request, const json::Value& body) const {
  expect_object(body, admission_);
  const BodyFields fields(body);
  const std::string query = text_in(needed(fields, {"query"}), "query");
  const std::vector<std::string> documents = texts_in(needed(fields, {"documents"}), "documents");
  int32_t top = static_cast<int32_t>(documents.size());
  fields.read_integer("top_n", top, 1);
  const bool shows = fields.read_flag("return_documents", true);
  std::vector<Pair> pairs;
  for (const std::string& document : documents) pairs.push_back({query, document});
  PairsAsked asked = asked_of(admission_, model_.relevance, pairs, instruction_of(fields),
                              admission_.salt_of(options_.keys.owner(request)));
  const size_t bytes = bytes_of(asked, backend_.facts().vector_size) + 2 * request.body.size();
  return {.requests = std::move(asked.requests),
          .bytes = bytes,
          .body = [=, scores_of = asked.scores, tokens = asked.tokens,
                   model = first_of(model_.names), fingerprint = admission_.fingerprint(),
                   id = random_id("rerank-")](const Numbers& numbers) {
            const std::vector<float> scores = scores_of(numbers);
            json::Array results;
            for (const size_t i : ranked(scores, static_cast<size_t>(top))) {
              json::Value result =
                  json::Object{{"index", static_cast<int64_t>(i)},
                               {"relevance_score", static_cast<double>(scores[i])}};
              if (shows) result.set("document", json::Object{{"text", documents[i]}});
              results.push_back(std::move(result));
            }
            return json::dump(json::Object{{"id", id},
                                           {"model", model},
                                           {"system_fingerprint", fingerprint},
                                           {"results", std::move(results)},
                                           {"usage", usage_of(tokens)}});
          }};
}

// One text against each of the others, or as many against as many.
NumbersAsked Server::scores_asked(const HttpRequest& request, const json::Value& body) const {
  expect_object(body, admission_);
  const BodyFields fields(body);
  std::vector<std::string> first =
      texts_in(needed(fields, {"text_1", "queries", "data_1"}), "text_1");
  const std::vector<std::string> second =
      texts_in(needed(fields, {"text_2", "documents", "items", "data_2"}), "text_2");
  if (first.size() != 1 && first.size() != second.size())
    fail_usage("expected text_1 as one text or as many as text_2, {}, found {}", second.size(),
               first.size());
  first.resize(second.size(), first[0]);
  std::vector<Pair> pairs;
  for (size_t i = 0; i < second.size(); ++i) pairs.push_back({first[i], second[i]});
  PairsAsked asked = asked_of(admission_, model_.relevance, pairs, instruction_of(fields),
                              admission_.salt_of(options_.keys.owner(request)));
  const size_t bytes = bytes_of(asked, backend_.facts().vector_size) + 2 * request.body.size();
  return {.requests = std::move(asked.requests),
          .bytes = bytes,
          .body = [scores_of = asked.scores, tokens = asked.tokens, model = first_of(model_.names),
                   fingerprint = admission_.fingerprint(), created = std::time(nullptr),
                   id = random_id("score-")](const Numbers& numbers) {
            json::Array data;
            for (const float score : scores_of(numbers))
              data.push_back(json::Object{{"index", std::ssize(data)},
                                          {"object", "score"},
                                          {"score", static_cast<double>(score)}});
            return json::dump(json::Object{{"id", id},
                                           {"object", "list"},
                                           {"created", static_cast<int64_t>(created)},
                                           {"model", model},
                                           {"system_fingerprint", fingerprint},
                                           {"data", std::move(data)},
                                           {"usage", usage_of(tokens)}});
          }};
}

void Server::rerank(std::shared_ptr<Exchange> exchange) {
  ask_numbers(exchange, &Server::ranks_asked);
}

void Server::score(std::shared_ptr<Exchange> exchange) {
  ask_numbers(exchange, &Server::scores_asked);
}

}  // namespace invar::server
