#include "frontend/questions.h"

#include <algorithm>

#include "base/ends.h"
#include "base/error.h"

namespace invar {

namespace {

using openai::Endpoint;

enum class Kind : uint8_t { decisions, ranks, scores, vectors };

struct Path {
  std::string_view path;
  Kind kind;
  std::string_view id_prefix;
};

constexpr Path kPaths[] = {
    {"/v1/decisions", Kind::decisions, "dec_"}, {"/v1/rerank", Kind::ranks, "rerank-"},
    {"/rerank", Kind::ranks, "rerank-"},        {"/v1/reranking", Kind::ranks, "rerank-"},
    {"/reranking", Kind::ranks, "rerank-"},     {"/v1/score", Kind::scores, "score-"},
    {"/score", Kind::scores, "score-"},         {"/v1/embeddings", Kind::vectors, "embd-"},
    {"/pooling", Kind::vectors, "pool-"}};

const Path* find_path(std::string_view path) {
  const auto* found = std::ranges::find(kPaths, path, &Path::path);
  return found == std::end(kPaths) ? nullptr : found;
}

}  // namespace

std::vector<int32_t> QuestionTexts::chat_tokens(const json::Value& body,
                                                const std::string& field) const {
  openai::Request request = read(body, Endpoint::chat, field);
  check_model(request.model);
  openai::Prompt& prompt = first_of(request.prompts);
  // A template of a model that always thinks opens the thought.
  if (auto* text = std::get_if<std::string>(&prompt);
      text && text->find_last_not_of(" \n") != text->npos) {
    const std::string_view said =
        std::string_view(*text).substr(0, text->find_last_not_of(" \n") + 1);
    if (said.ends_with("<think>")) *text += "\n</think>\n\n";
  }
  return openai::tokens_of(request, prompt, *tokenizer, context);
}

std::vector<int32_t> QuestionTexts::text_tokens(const std::string& text,
                                                bool add_special_tokens) const {
  const openai::Request request =
      read(json::Object{{"prompt", text}, {"add_special_tokens", add_special_tokens}},
           Endpoint::completions, "input");
  return openai::tokens_of(request, first_of(request.prompts), *tokenizer, context);
}

std::optional<int32_t> QuestionTexts::end_of_answer() const {
  const auto named = tokenizer->eos_id();
  if (named && std::ranges::find(end_tokens, *named) != end_tokens.end()) return named;
  return end_tokens.empty() ? std::nullopt : std::optional(end_tokens.front());
}

bool is_question(std::string_view path) {
  return find_path(path) != nullptr;
}

std::string_view id_prefix_of_question(std::string_view path) {
  return find_path(path)->id_prefix;
}

NumbersAsked numbers_asked(std::string_view path, const json::Value& body,
                           const QuestionTexts& texts) {
  const Path* found = find_path(path);
  if (!found) fail_usage("expected a path of questions, found {}", json::quoted(path));
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  switch (found->kind) {
    case Kind::decisions:
      return decisions_asked(body, texts);
    case Kind::ranks:
      return ranks_asked(body, texts);
    case Kind::scores:
      return scores_asked(body, texts);
    default:
      return vectors_asked(body, texts, path == "/pooling");
  }
}

}  // namespace invar
