#include "drafters/vocabulary.h"

#include <map>

#include "base/error.h"
#include "base/json.h"
#include "weights/hf_directory.h"

namespace invar {

namespace {

using Tokens = std::map<int64_t, std::string>;  // by id

// Empty when there is no such file or it lists its tokens in a way that is not known here.
Tokens tokens_of(const std::string& directory) {
  const auto texts = model_texts(directory);
  const auto text = texts.find("tokenizer.json");
  if (text == texts.end()) return {};
  const json::Value file = json::parse(text->second, directory + "/tokenizer.json");
  const json::Value* model = file.find("model");
  const json::Value* vocab = model ? model->find("vocab") : nullptr;
  if (!vocab) return {};
  Tokens tokens;
  if (vocab->is_object())
    for (const auto& [token, id] : vocab->as_object()) tokens[id.as_integer()] = token;
  if (vocab->is_array())  // of pairs of a token and its score
    for (const json::Value& pair : vocab->as_array())
      if (pair.is_array() && !pair.as_array().empty())
        tokens.emplace(std::ssize(tokens), pair.as_array()[0].as_string());
  return tokens;
}

}  // namespace

void expect_same_vocabulary(const std::string& target, const std::string& drafter) {
  const Tokens expected = tokens_of(target), found = tokens_of(drafter);
  if (expected.empty() || found.empty()) return;
  for (const auto& [id, token] : expected) {
    const auto other = found.find(id);
    if (other != found.end() && other->second == token) continue;
    fail_usage(
        "expected a drafter of the target's vocabulary, in which token {} is {}, found {} in {}",
        id, json::quoted(token),
        other == found.end() ? "no such token" : json::quoted(other->second), drafter);
  }
}

}  // namespace invar
