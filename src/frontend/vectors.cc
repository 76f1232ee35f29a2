// POST /v1/embeddings and /pooling: vectors of texts.
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <algorithm>

#include "base/ends.h"
#include "base/error.h"
#include "base/json_values.h"
#include "engine/pooled_vector.h"
#include "frontend/body_fields.h"
#include "frontend/questions.h"

namespace invar {

namespace {

// A list of numbers, or the bytes of little-endian f32 in base64, as OpenAI's clients ask.
json::Value embedding_value(std::span<const float> vector, bool base64) {
  if (!base64) {
    json::Array numbers;
    for (const float number : vector) numbers.emplace_back(static_cast<double>(number));
    return numbers;
  }
  const size_t bytes = vector.size_bytes();
  std::string text((bytes + 2) / 3 * 4 + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(vector.data()),
                                   static_cast<int>(bytes));
  text.resize(static_cast<size_t>(size));
  return text;
}

// How vectors are shown.
struct Form {
  const char* object = "embedding";  // of each
  const char* key = "embedding";     // of its numbers
  bool base64 = false;
  std::optional<int32_t> dimensions;  // only the first so many
  bool normalize = false;             // to length 1
};

// JSON, vector by vector: as values all of them would take many times their bytes.
std::string body_of(const Numbers& vectors, const Form& form, int64_t tokens,
                    const NumbersHead& head) {
  std::string body;
  json::ObjectWriter out(body);
  json::append_quoted(out.member("object"), "list");
  std::string& data = out.member("data") += '[';
  for (size_t i = 0; i < vectors.size(); ++i) {
    const auto vector = shown_vector(vectors[i], form.dimensions, form.normalize);
    data += i == 0 ? "" : ", ";
    json::append(data, json::Object{{"object", form.object},
                                    {"index", static_cast<int64_t>(i)},
                                    {form.key, embedding_value(vector, form.base64)}});
  }
  data += ']';
  json::append_quoted(out.member("model"), head.model);
  json::append_quoted(out.member("system_fingerprint"), head.fingerprint);
  json::append(out.member("usage"),
               json::Object{{"prompt_tokens", tokens}, {"total_tokens", tokens}});
  if (!head.receipt.is_null()) json::append(out.member("receipt"), head.receipt);
  out.end();
  return body;
}

// As Ollama does: the beginning stays, and the token that ends every text.
void cut_end(std::vector<int32_t>& text, const QuestionTexts& texts,
             openai::RequestWarnings& warnings) {
  const auto most = static_cast<size_t>(texts.context);
  if (text.size() <= most) return;
  const bool has_end = texts.tokenizer->is_special(text.back());
  if (has_end) text[most - 1] = text.back();
  text.resize(most);
  warnings.add(fmt::format("a text is cut at its end to the {} tokens of the context", most));
}

}  // namespace

size_t vectors_bytes(const std::vector<Request>& requests, int32_t vector_size, bool base64) {
  constexpr size_t kText = sizeof(Request) + 256;
  const size_t shown = base64 ? 6 : 24;  // bytes of a number of the answer
  size_t bytes = requests.size() * (kText + static_cast<size_t>(vector_size) * (4 + shown));
  for (const Request& request : requests) bytes += request.prompt.size() * sizeof(int32_t);
  return bytes;
}

std::vector<std::vector<int32_t>> embedded_texts(const json::Value& body,
                                                 const QuestionTexts& texts,
                                                 openai::RequestWarnings* cut) {
  const json::Value* input = body.find("input");
  if (!input) fail_usage("expected \"input\" in the body of the request");
  dimensions_of(body, texts);  // refused before anything is tokenized
  if (input->is_array() && input->as_array().empty())
    fail_usage("expected at least one text as \"input\", found none");
  if (const json::Value* format = body.find("encoding_format"); format && !format->is_null() &&
                                                                *format != json::Value("float") &&
                                                                *format != json::Value("base64"))
    fail_usage("expected encoding_format float or base64, found {}", json::excerpt(*format));
  json::Value prompt = json::Object{{"prompt", *input}};
  for (const char* name : {"model", "truncate_prompt_tokens"})
    if (const json::Value* value = body.find(name)) prompt.set(name, *value);
  const openai::Request request = texts.read(prompt, openai::Endpoint::completions, "input");
  texts.check_model(request.model);
  std::vector<std::vector<int32_t>> all;
  for (const openai::Prompt& one : request.prompts) {
    all.push_back(openai::tokens_of(request, one, *texts.tokenizer, texts.context));
    if (cut) cut_end(last_of(all), texts, *cut);
    if (last_of(all).empty() || std::ssize(last_of(all)) > texts.context)
      throw FieldError("input", fmt::format("expected a text of 1 to {} tokens, found {}",
                                            texts.context, last_of(all).size()));
  }
  return all;
}

std::optional<int32_t> dimensions_of(const json::Value& body, const QuestionTexts& texts) {
  const json::Value* asked = body.find("dimensions");
  if (!asked || asked->is_null()) return std::nullopt;
  if (!texts.form.cuts)
    fail_usage(
        "expected no dimensions, since the model's config.json does not say that its embeddings "
        "may be cut (is_matryoshka), found {}",
        json::excerpt(*asked));
  const auto& sizes = texts.form.sizes;
  const int64_t found = asked->to_integer().value_or(0);
  const bool is_known = sizes.empty() || std::ranges::find(sizes, found) != sizes.end();
  const int32_t most = texts.vector_size;
  if (found < 1 || found > most || !is_known)
    fail_usage("expected dimensions {}, found {}",
               sizes.empty() ? fmt::format("from 1 to {}", most)
                             : fmt::format("among {}", fmt::join(sizes, ", ")),
               json::excerpt(*asked));
  return static_cast<int32_t>(found);
}

NumbersAsked vectors_asked(const json::Value& body, const QuestionTexts& texts, bool is_pooling) {
  NumbersAsked asked;
  int64_t tokens = 0;
  for (auto& text : embedded_texts(body, texts)) {
    tokens += std::ssize(text);
    asked.requests.push_back({.prompt = std::move(text), .hash_logits = false, .pooled = true});
  }
  if (!is_pooling && texts.form.relevance == Relevance::cross)
    fail_usage("the model is a cross-encoder, whose scores of pairs are no embeddings");
  const json::Value* format = body.find("encoding_format");
  const Form form{.object = is_pooling ? "pooling" : "embedding",
                  .key = is_pooling ? "data" : "embedding",
                  .base64 = format && *format == json::Value("base64"),
                  .dimensions = dimensions_of(body, texts),
                  .normalize = BodyFields(body).read_flag("normalize", texts.form.normalizes)};
  asked.bytes = vectors_bytes(asked.requests, texts.vector_size, form.base64);
  asked.body = [form, tokens](const Numbers& vectors, const NumbersHead& head) {
    return body_of(vectors, form, tokens, head);
  };
  return asked;
}

}  // namespace invar
