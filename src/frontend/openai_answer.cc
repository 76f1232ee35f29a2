// The body of a whole answer.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "base/ends.h"
#include "frontend/call_reader.h"
#include "frontend/custom_tools.h"
#include "frontend/openai_logprobs.h"
#include "speculative/prediction.h"

namespace invar::openai {

void add_prediction(json::Value& usage, int64_t accepted, int64_t rejected) {
  usage.set("completion_tokens_details", json::Object{{"accepted_prediction_tokens", accepted},
                                                      {"rejected_prediction_tokens", rejected}});
}

void add_thoughts(json::Value& usage, int64_t tokens) {
  const json::Value* before = usage.find("completion_tokens_details");
  json::Value details = before ? *before : json::Value(json::Object());
  details.set("reasoning_tokens", tokens);
  usage.set("completion_tokens_details", std::move(details));
}

void add_cached(json::Value& usage, std::optional<int64_t> tokens) {
  if (tokens) usage.set("prompt_tokens_details", json::Object{{"cached_tokens", *tokens}});
}

json::Value usage(int64_t prompt, int64_t completion) {
  return json::Object{{"prompt_tokens", prompt},
                      {"completion_tokens", completion},
                      {"total_tokens", prompt + completion}};
}

std::string call_id(const Head& head, size_t answer, size_t call) {
  const size_t dash = head.id.find('-');
  return fmt::format("call_{}_{}_{}", head.id.substr(dash + 1), answer, call);
}

bool is_custom_tool(const Request& request, const std::string& name) {
  return std::ranges::find(request.custom_tools, name) != request.custom_tools.end();
}

std::string echo_of(const Prompt& prompt, const Tokenizer& tokenizer) {
  const std::string* text = std::get_if<std::string>(&prompt);
  return text ? *text : tokenizer.decode(std::get<std::vector<int32_t>>(prompt));
}

json::Array ids_of(const std::vector<int32_t>& tokens) {
  json::Array ids;
  for (const int32_t token : tokens) ids.emplace_back(static_cast<int64_t>(token));
  return ids;
}

int64_t shown_length(const Request& request) {
  return request.prompt_only ? 0 : request.base.params.max_tokens;
}

const char* finish_reason(const TextAnswer& answer, bool calls_tools) {
  return calls_tools && answer.finish == FinishReason::stop ? "tool_calls" : name_of(answer.finish);
}

json::Value stop_reason(const Request& request, const TextAnswer& answer) {
  if (answer.finish != FinishReason::stop) return {};
  if (!answer.stop.empty()) return answer.stop;
  const int32_t last = last_of(answer.tokens);
  return std::ranges::count(request.stop_token_ids, last) ? json::Value(int64_t{last})
                                                          : json::Value();
}

json::Value weight_versions(const TextAnswer& answer) {
  json::Array all;
  for (size_t i = 0; i < answer.weights.size(); ++i) {
    const auto& [version, first] = answer.weights[i];
    const size_t end =
        i + 1 < answer.weights.size() ? answer.weights[i + 1].first : answer.tokens.size();
    const auto begin = static_cast<int64_t>(std::min(first, end)), last = static_cast<int64_t>(end);
    all.push_back(json::Object{{"weight_version", version},
                               {"tokens", last - begin},
                               {"version", version},  // SGLang's and vLLM's names
                               {"start", begin},
                               {"end", last}});
  }
  return all;
}

bool can_be_proved(const TextAnswer& answer) {
  return answer.finish != FinishReason::aborted && answer.weights.empty();
}

bool shows_logprobs_mode(const SamplingParams& p) {
  return (p.logprobs || p.prompt_logprobs) && p.logprobs_mode != LogprobsMode::raw_logprobs;
}

namespace {

json::Value call_in_message(const Request& request, const ToolCall& call, const std::string& id) {
  const bool is_custom = is_custom_tool(request, call.name);
  const char* type = is_custom ? "custom" : "function";
  json::Value what = json::Object{{"name", call.name}};
  if (is_custom)
    what.set("input", custom_input(call.arguments));
  else
    what.set("arguments", call.arguments);
  return json::Object{{"id", id}, {"type", type}, {type, std::move(what)}};
}

json::Value message_of(const Request& request, const TextAnswer& answer, size_t index,
                       const Head* head, bool& calls_tools) {
  std::string content;
  std::vector<ToolCall> calls;
  std::vector<AnswerPiece> pieces;
  ToolCallReader reader(request.tools, request.tool, &request.tool_list);
  reader.push(answer.text, pieces);
  reader.finish(pieces, is_cut(answer.finish));
  add_pieces(pieces, content, calls);
  calls_tools = !calls.empty();
  json::Value message = json::Object{{"role", "assistant"}};
  for (const char* name : {"reasoning_content", "reasoning"})
    if (!answer.thought.empty()) message.set(name, answer.thought);
  message.set("content", calls_tools && content.empty() ? json::Value() : json::Value(content));
  if (!calls_tools) return message;
  json::Array shown;
  for (const ToolCall& call : calls)
    shown.push_back(call_in_message(
        request, call,
        head ? call_id(*head, index, shown.size()) : fmt::format("call_{}", shown.size())));
  message.set("tool_calls", std::move(shown));
  return message;
}

// A list of `size` elements, at once or late.
json::Value list_or_late(size_t size, const std::function<json::Value(size_t)>& element,
                         LateLists* late) {
  if (late)
    return late->add(
        {{"[", size, [element](size_t i, std::string& out) { json::append(out, element(i)); }}},
        "]");
  json::Array all;
  for (size_t i = 0; i < size; ++i) all.push_back(element(i));
  return all;
}

json::Value ids_in(const Shared<std::vector<int32_t>>& ids, LateLists* late) {
  return list_or_late(
      ids.size(), [ids](size_t i) { return json::Value(ids[i]); }, late);
}

// Adds the experts of the prompt's tokens and of the answer's, a list for each, all layers in turn.
void add_routed_experts(json::Value& choice, const TextAnswer& answer, LateLists* late) {
  const size_t prompt = answer.prompt_tokens.size(),
               tokens = prompt + (answer.tokens.empty() ? 0 : answer.tokens.size() - 1),
               columns = tokens ? answer.routed_experts.size() / tokens : 0;
  const auto rows = std::make_shared<const std::vector<int16_t>>(answer.routed_experts);
  const auto list = [&](size_t begin, size_t end) {
    const auto row_of = [rows, begin, columns](size_t i) -> json::Value {
      const auto* row = rows->data() + (begin + i) * columns;
      return json::Array(row, row + columns);
    };
    return list_or_late(end - begin, row_of, late);
  };
  choice.set("prompt_routed_experts", list(0, std::min(prompt, tokens)));
  choice.set("routed_experts", list(std::min(prompt, tokens), tokens));
}

// `late`, where there is one, takes what may be long out of the answer.
json::Value choice_of(const Request& request, const TextAnswer& answer, int64_t index,
                      const Tokenizer& tokenizer, const Head* head, LateLists* late) {
  const SamplingParams& p = request.base.params;
  int64_t offset = 0;
  bool calls_tools = false;
  json::Value choice;
  choice.set("index", index);
  if (request.endpoint == Endpoint::chat)
    choice.set("message",
               message_of(request, answer, static_cast<size_t>(index), head, calls_tools));
  else
    choice.set(
        "text",
        (request.echo ? echo_of(request.prompt_of(static_cast<size_t>(index)), tokenizer) : "") +
            (request.prompt_only ? "" : answer.text));
  if (p.logprobs) {
    auto shown = request.echo ? all_logprobs(answer, request.prompt_only) : answer.logprobs;
    const TokenNames names{tokenizer, request.tokens_as_ids};
    choice.set(
        "logprobs",
        late ? late_logprobs(request.endpoint, names,
                             std::make_shared<const std::vector<TokenLogprobs>>(std::move(shown)),
                             *late)
             : logprobs_of(request.endpoint, names, shown, offset));
  } else if (head) {
    choice.set("logprobs", nullptr);
  }
  if (request.has_several_seeds())
    choice.set("seed", request.seed_of(static_cast<size_t>(index) / static_cast<size_t>(p.n)));
  if (shows_logprobs_mode(p)) choice.set("logprobs_mode", name_of(p.logprobs_mode));
  if (request.token_ids) {
    choice.set("token_ids", ids_in(answer.tokens, late));
    choice.set("prompt_token_ids", ids_in(answer.prompt_tokens, late));
  }
  if (p.prompt_logprobs)
    choice.set("prompt_logprobs",
               late ? late_prompt_logprobs(tokenizer,
                                           std::make_shared<const std::vector<TokenLogprobs>>(
                                               answer.prompt_logprobs),
                                           *late)
                    : prompt_logprobs(tokenizer, answer.prompt_logprobs));
  const bool is_whole = answer.finish != FinishReason::aborted;
  if (request.base.routed_experts && is_whole) add_routed_experts(choice, answer, late);
  choice.set("finish_reason", finish_reason(answer, calls_tools));
  choice.set("stop_reason", stop_reason(request, answer));
  if (request.logits_hash) choice.set("logits_hash", to_hex(answer.logits_hash));
  if (!answer.weights.empty()) choice.set("weight_versions", weight_versions(answer));
  if (request.receipt && request.make_receipt && can_be_proved(answer))
    choice.set("receipt", request.make_receipt(answer, static_cast<size_t>(index)));
  return choice;
}

json::Value body_of(const Request& request, std::span<const TextAnswer> answers,
                    const Tokenizer& tokenizer, const Head* head, LateLists* late) {
  json::Array choices;
  int64_t prompt = 0, completion = 0, accepted = 0, rejected = 0, thought = 0;
  std::optional<int64_t> cached;
  const Prediction predicted(request.base.prediction);
  for (const TextAnswer& answer : answers) {
    if (!request.base.prediction.empty()) {
      Prediction prediction = predicted;
      for (const int32_t token : answer.tokens) prediction.take(token);
      accepted += prediction.accepted();
      rejected += prediction.rejected();
    }
    if (std::ssize(choices) % request.base.params.n == 0) {
      prompt += std::ssize(answer.prompt_tokens);
      if (answer.cached) cached = cached.value_or(0) + *answer.cached;
    }
    choices.push_back(choice_of(request, answer, std::ssize(choices), tokenizer, head, late));
    if (!request.prompt_only) completion += std::ssize(answer.tokens);
    thought += answer.thought_tokens;
  }
  json::Value body;
  if (head) body.set("id", head->id);
  body.set("object", request.endpoint == Endpoint::chat ? "chat.completion" : "text_completion");
  if (head) {
    body.set("created", head->created);
    body.set("model", head->model);
    body.set("system_fingerprint", head->system_fingerprint);
    body.set("seed", head->seed);
  }
  body.set("max_tokens", shown_length(request));
  body.set("choices", std::move(choices));
  // vLLM's chats have the only prompt beside the choices.
  if (request.endpoint == Endpoint::chat && request.token_ids)
    body.set("prompt_token_ids", ids_in(first_of(answers).prompt_tokens, late));
  json::Value counts = usage(prompt, completion);
  add_cached(counts, cached);
  if (!request.base.prediction.empty()) add_prediction(counts, accepted, rejected);
  if (request.thought_format != ThoughtFormat::none) add_thoughts(counts, thought);
  body.set("usage", std::move(counts));
  if (answers.size() == 1 && request.logits_hash)
    body.set("logits_hash", to_hex(first_of(answers).logits_hash));
  return body;
}

}  // namespace

json::Value answer_body(const Request& request, std::span<const TextAnswer> answers,
                        const Tokenizer& tokenizer, const Head* head) {
  return body_of(request, answers, tokenizer, head, nullptr);
}

BodyPieces answer_pieces(const Request& request, std::vector<TextAnswer> answers,
                         const Tokenizer& tokenizer, const Head& head) {
  LateLists late;
  const json::Value body = body_of(request, answers, tokenizer, &head, &late);
  return BodyPieces(body, std::move(late));
}

}  // namespace invar::openai
