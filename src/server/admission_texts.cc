// What is read of bodies whose texts are embedded, counted or compared.
#include "admission.h"

#include <algorithm>
#include <ctime>

#include "base/ends.h"
#include "base/error.h"
#include "base/json_values.h"
#include "errors.h"

namespace invar::server {

// What is wrong with the prompts is wrong with the input that they were.
openai::Request Admission::read_input(const json::Value& prompt) const {
  try {
    return within("input", [&] { return read({.endpoint = "/v1/completions"}, prompt); });
  } catch (ApiError& error) {
    if (error.param == "prompt") error.param = "input";
    throw;
  }
}

std::vector<std::vector<int32_t>> Admission::embedded(const json::Value& body) const {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  const json::Value* input = body.find("input");
  if (!input) fail_usage("expected \"input\" in the body of the request");
  dimensions(body);  // refused before anything is tokenized
  if (input->is_array() && input->as_array().empty())
    fail_usage("expected at least one text as \"input\", found none");
  if (const json::Value* format = body.find("encoding_format"); format && !format->is_null() &&
                                                                *format != json::Value("float") &&
                                                                *format != json::Value("base64"))
    fail_usage("expected encoding_format float or base64, found {}", json::excerpt(*format));
  json::Value prompt = json::Object{{"prompt", *input}};
  for (const char* name : {"model", "truncate_prompt_tokens"})
    if (const json::Value* value = body.find(name)) prompt.set(name, *value);
  const openai::Request request = read_input(prompt);
  check_model(request.model);
  std::vector<std::vector<int32_t>> texts;
  const int32_t most = backend_.facts().max_model_len;
  for (const openai::Prompt& one : request.prompts) {
    texts.push_back(encode(request, one));
    if (last_of(texts).empty() || std::ssize(last_of(texts)) > most)
      throw FieldError("input", fmt::format("expected a text of 1 to {} tokens, found {}", most,
                                            last_of(texts).size()));
  }
  return texts;
}

std::vector<int32_t> Admission::chat_tokens(const json::Value& body) const {
  expect_head();
  openai::Request request = read(
      {.created = static_cast<int64_t>(std::time(nullptr)), .endpoint = "/v1/chat/completions"},
      body);
  check_model(request.model);
  openai::Prompt& prompt = first_of(request.prompts);
  // A template of a model that always thinks opens the thought.
  if (auto* text = std::get_if<std::string>(&prompt);
      text && text->find_last_not_of(" \n") != text->npos) {
    const std::string_view said =
        std::string_view(*text).substr(0, text->find_last_not_of(" \n") + 1);
    if (said.ends_with("<think>")) *text += "\n</think>\n\n";
  }
  return encode(request, prompt);
}

std::vector<int32_t> Admission::text_tokens(const std::string& text,
                                            bool add_special_tokens) const {
  const openai::Request request =
      read_input(json::Object{{"prompt", text}, {"add_special_tokens", add_special_tokens}});
  return encode(request, first_of(request.prompts));
}

std::optional<int32_t> Admission::end_of_answer() const {
  const std::vector<int32_t> ends = backend_.facts().end_tokens;
  const auto named = model_.tokenizer->eos_id();
  if (named && std::ranges::find(ends, *named) != ends.end()) return named;
  return ends.empty() ? std::nullopt : std::optional(ends.front());
}

// No salt of a client's is that of another key: an owner is of one length.
std::string Admission::salt_of(const std::string& owner) const {
  return model_.shares_prefixes ? std::string() : owner;
}

std::optional<int32_t> Admission::dimensions(const json::Value& body) const {
  const json::Value* asked = body.find("dimensions");
  if (!asked || asked->is_null()) return std::nullopt;
  if (!model_.cuts_embeddings)
    fail_usage(
        "expected no dimensions, since the model's config.json does not say that its embeddings "
        "may be cut (is_matryoshka), found {}",
        json::excerpt(*asked));
  const auto& sizes = model_.embedding_sizes;
  const int64_t found = asked->to_integer().value_or(0);
  const bool is_known = sizes.empty() || std::ranges::find(sizes, found) != sizes.end();
  const int32_t most = backend_.facts().vector_size;
  if (found < 1 || found > most || !is_known)
    fail_usage("expected dimensions {}, found {}",
               sizes.empty() ? fmt::format("from 1 to {}", most)
                             : fmt::format("among {}", fmt::join(sizes, ", ")),
               json::excerpt(*asked));
  return static_cast<int32_t>(found);
}

}  // namespace invar::server
