// POST /v1/rerank and /v1/score: how relevant texts are to others, by the model that is served.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "engine/pooled_vector.h"
#include "frontend/body_fields.h"
#include "frontend/likelihoods.h"
#include "frontend/questions.h"
#include "sampling/logprob.h"

namespace invar {

namespace {

constexpr size_t kMostTexts = 1024, kMostTextBytes = 4 << 20, kMostInstructionBytes = 16 << 10;
// As Qwen3-Reranker was trained to be asked.
constexpr const char* kJudge =
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".";
constexpr std::string_view kInstruction =
    "Given a web search query, retrieve relevant passages that answer the query";

struct Pair {
  std::string query, document;
};

// How a pair becomes a prompt: by the model's template, where it is one of pairs.
class PairPrompts {
 public:
  // `instruction`: the request's; empty: it has none.
  PairPrompts(const QuestionTexts& texts, std::string instruction)
      : texts_(texts),
        instruction_(std::move(instruction)),
        has_template_(texts.chat && texts.chat->is_of_pairs()) {}

  // The tokens for a model that is asked for yes or no.
  std::vector<int32_t> asked(const Pair& pair) const {
    if (has_template_) return rendered(pair);
    return said_of("documents", [&] { return texts_.chat_tokens(judged(pair), "documents"); });
  }
  // The tokens for a cross-encoder: by its template, else as the tokenizer joins two texts.
  std::vector<int32_t> encoded(const Pair& pair) const {
    if (has_template_) return rendered(pair);
    return texts_.tokenizer->pair_of(texts_.text_tokens(pair.query, false),
                                     texts_.text_tokens(pair.document, false));
  }

 private:
  std::vector<int32_t> rendered(const Pair& pair) const {
    return said_of("documents", [&] {
      return texts_.text_tokens(
          texts_.chat->render_pair(pair.query, pair.document, instruction_, texts_.clock), true);
    });
  }
  json::Value judged(const Pair& pair) const {
    const std::string text =
        fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}",
                    instruction_.empty() ? kInstruction : std::string_view(instruction_),
                    pair.query, pair.document);
    return json::Object{
        {"messages", json::Array{json::Object{{"role", "system"}, {"content", kJudge}},
                                 json::Object{{"role", "user"}, {"content", text}}}},
        {"max_tokens", 1},
        {"chat_template_kwargs", json::Object{{"enable_thinking", false}}}};
  }

  const QuestionTexts& texts_;
  const std::string instruction_;
  const bool has_template_;
};

// The requests for pairs, and each pair's score from their numbers.
struct PairsAsked {
  std::vector<Request> requests;
  size_t bytes = 0;
  int64_t tokens = 0;
  std::function<std::vector<float>(const Numbers&)> scores;
};

// The share of yes among yes and no.
PairsAsked by_likelihood(const QuestionTexts& texts, const std::vector<Pair>& pairs,
                         const PairPrompts& prompts) {
  const auto yes = texts.text_tokens("yes", false), no = texts.text_tokens("no", false);
  Likelihoods likelihoods(texts.salt, texts.context);
  for (const Pair& pair : pairs) {
    const std::vector<int32_t> prompt = prompts.asked(pair);
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
PairsAsked by_cosine(const QuestionTexts& texts, const std::vector<Pair>& pairs) {
  PairsAsked asked;
  std::map<std::string, size_t> known;
  const auto vector_of = [&](const std::string& text) {
    const auto found = known.find(text);
    if (found != known.end()) return found->second;
    return known[text] = add_text(asked, texts.text_tokens(text, true), texts.context);
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

PairsAsked by_encoder(const QuestionTexts& texts, const std::vector<Pair>& pairs,
                      const PairPrompts& prompts) {
  PairsAsked asked;
  for (const Pair& pair : pairs) add_text(asked, prompts.encoded(pair), texts.context);
  asked.scores = [](const Numbers& vectors) {
    std::vector<float> scores;
    for (const std::vector<float>& vector : vectors) scores.push_back(vector[0]);
    return scores;
  };
  return asked;
}

PairsAsked asked_of(const QuestionTexts& texts, const std::vector<Pair>& pairs,
                    const std::string& instruction) {
  switch (texts.form.relevance) {
    case Relevance::cosine:
      return by_cosine(texts, pairs);
    case Relevance::cross:
      return by_encoder(texts, pairs, {texts, instruction});
    default:
      return by_likelihood(texts, pairs, {texts, instruction});
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
  return found ? text_of(*found, "instruction", kMostInstructionBytes) : std::string();
}

void check_model(const json::Value& body, const QuestionTexts& texts) {
  if (const json::Value* model = BodyFields(body).find("model"))
    texts.check_model(text_of(*model, "model"));
}

// Bytes of the texts once more, in the answer.
size_t text_bytes(const std::vector<Pair>& pairs) {
  size_t bytes = 0;
  for (const Pair& pair : pairs) bytes += pair.query.size() + pair.document.size();
  return bytes;
}

json::Value usage_of(int64_t tokens) {
  return json::Object{{"prompt_tokens", tokens}, {"total_tokens", tokens}};
}

std::string shown(json::Value body, const NumbersHead& head) {
  if (!head.receipt.is_null()) body.set("receipt", head.receipt);
  return json::dump(body);
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

NumbersAsked ranks_asked(const json::Value& body, const QuestionTexts& texts) {
  check_model(body, texts);
  const BodyFields fields(body);
  const std::string query = text_in(needed(fields, {"query"}), "query");
  const std::vector<std::string> documents = texts_in(needed(fields, {"documents"}), "documents");
  int32_t top = static_cast<int32_t>(documents.size());
  fields.read_integer("top_n", top, 1);
  const bool shows = fields.read_flag("return_documents", true);
  std::vector<Pair> pairs;
  for (const std::string& document : documents) pairs.push_back({query, document});
  PairsAsked asked = asked_of(texts, pairs, instruction_of(fields));
  size_t shown_bytes = query.size();
  for (const std::string& document : documents) shown_bytes += document.size();
  const size_t bytes = bytes_of(asked, texts.vector_size) + 2 * shown_bytes;
  return {.requests = std::move(asked.requests),
          .bytes = bytes,
          .body = [=, scores_of = asked.scores, tokens = asked.tokens](const Numbers& numbers,
                                                                       const NumbersHead& head) {
            const std::vector<float> scores = scores_of(numbers);
            json::Array results;
            for (const size_t i : ranked(scores, static_cast<size_t>(top))) {
              json::Value result =
                  json::Object{{"index", static_cast<int64_t>(i)},
                               {"relevance_score", static_cast<double>(scores[i])}};
              if (shows) result.set("document", json::Object{{"text", documents[i]}});
              results.push_back(std::move(result));
            }
            return shown(json::Object{{"id", head.id},
                                      {"model", head.model},
                                      {"system_fingerprint", head.fingerprint},
                                      {"results", std::move(results)},
                                      {"usage", usage_of(tokens)}},
                         head);
          }};
}

// One text against each of the others, or as many against as many.
NumbersAsked scores_asked(const json::Value& body, const QuestionTexts& texts) {
  check_model(body, texts);
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
  PairsAsked asked = asked_of(texts, pairs, instruction_of(fields));
  const size_t bytes = bytes_of(asked, texts.vector_size) + 2 * text_bytes(pairs);
  return {.requests = std::move(asked.requests),
          .bytes = bytes,
          .body = [scores_of = asked.scores, tokens = asked.tokens](const Numbers& numbers,
                                                                    const NumbersHead& head) {
            json::Array data;
            for (const float score : scores_of(numbers))
              data.push_back(json::Object{{"index", std::ssize(data)},
                                          {"object", "score"},
                                          {"score", static_cast<double>(score)}});
            return shown(json::Object{{"id", head.id},
                                      {"object", "list"},
                                      {"created", head.created},
                                      {"model", head.model},
                                      {"system_fingerprint", head.fingerprint},
                                      {"data", std::move(data)},
                                      {"usage", usage_of(tokens)}},
                         head);
          }};
}

}  // namespace invar
