#include "session/served_answer.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

namespace {

using openai::Endpoint;

constexpr size_t kMostReceipts = 1 << 16;

const json::Array& choices_of(const json::Value& body) {
  return body.find("choices")->as_array();
}

}  // namespace

std::string first_difference(const json::Value& expected, const json::Value& found,
                             const std::string& path) {
  const auto below = [&](const std::string& name) {
    return path.empty() ? name : path + "." + name;
  };
  if (expected.is_object() && found.is_object()) {
    for (const auto& [name, value] : found.as_object())
      if (!expected.find(name)) return fmt::format("{}: expected none", below(name));
    for (const auto& [name, value] : expected.as_object()) {
      const json::Value* other = found.find(name);
      if (!other) return fmt::format("{}: expected {}, found none", below(name), excerpt(value));
      if (auto inner = first_difference(value, *other, below(name)); !inner.empty()) return inner;
    }
    return {};
  }
  if (expected.is_array() && found.is_array()) {
    const json::Array &a = expected.as_array(), &b = found.as_array();
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (auto inner = first_difference(a[i], b[i], fmt::format("{}[{}]", path, i)); !inner.empty())
        return inner;
    if (a.size() == b.size()) return {};
    return fmt::format("{}: expected {} elements, found {}", path, a.size(), b.size());
  }
  const bool same = expected.is_number() && found.is_number() && !expected.is_integer()
                        ? expected.as_number() == found.as_number()
                        : expected == found;
  if (same) return {};
  return fmt::format("{}: expected {}, found {}", path, excerpt(expected), excerpt(found));
}

const json::Array* receipts_alone(const json::Value& value) {
  const json::Value* list = value.find("data");
  if (!list || !list->is_array()) return nullptr;
  const json::Value* object = value.find("object");
  if (object && *object != json::Value("list")) return nullptr;
  const size_t members = object ? 2 : 1;
  return value.as_object().size() == members ? &list->as_array() : nullptr;
}

ServedAnswer read_served_answer(const json::Value& value) {
  ServedAnswer answer;
  const json::Array* list = receipts_alone(value);
  const json::Value* choices = value.find("choices");
  if (value.find("invar_receipt")) {
    answer.receipts.push_back(receipt_from(value));
  } else if (choices && choices->is_array()) {
    answer.body = value;
    for (const json::Value& choice : choices->as_array()) {
      const json::Value* receipt = choice.find("receipt");
      if (!receipt) fail("expected a receipt in every choice, found one without");
      answer.receipts.push_back(receipt_from(*receipt));
    }
  } else if (list) {
    for (const json::Value& one : *list) answer.receipts.push_back(receipt_from(one));
  }
  if (answer.receipts.empty() || answer.receipts.size() > kMostReceipts)
    fail("expected a receipt, or an answer of 1 to {} choices that have one each, found {}",
         kMostReceipts, answer.receipts.empty() ? "neither" : "more");
  return answer;
}

std::string fault_between(std::span<const Receipt> receipts) {
  const Receipt& first = receipts.front();
  // Where seeds were drawn each prompt has its own.
  const bool are_drawn = receipts.back().params.seed != first.params.seed;
  for (size_t i = 0; i < receipts.size(); ++i) {
    const Receipt& one = receipts[i];
    SamplingParams params = first.params;
    if (are_drawn) params.seed += i / static_cast<size_t>(std::max(1, params.n));
    const auto same = [&](const char* what, const auto& a, const auto& b) {
      return a == b ? std::string()
                    : fmt::format("the receipts differ in {}, and one answer has one", what);
    };
    for (const std::string& fault :
         {same("their id", one.id, first.id), same("the time", one.created, first.created),
          same("the model's name", one.name, first.name),
          same("the context", one.context, first.context),
          same("the model", one.model, first.model),
          same("the sampling parameters", one.params, params),
          same("the stop strings", one.stop, first.stop),
          same("the form", one.grammar, first.grammar),
          same("the key", one.public_key, first.public_key)})
      if (!fault.empty()) return fault;
  }
  return {};
}

// ---- What was asked
// -----------------------------------------------------------------------------------------------

Asked read_asked(const json::Value& body, const Receipt& receipt, const AnswerTexts& texts) {
  const bool is_chat = body.find("messages") != nullptr;
  const bool of_vllm = receipt.model.defaults == defaults_digest({});
  openai::Context context{.vocab = texts.vocab,
                          .tokenizer = &texts.tokenizer,
                          .end_tokens = texts.end_tokens,
                          .defaults = of_vllm ? SamplingParams{} : texts.model_defaults,
                          .chat = texts.chat,
                          .no_chat = "the model has none",
                          .clock = [&] { return utc_time(receipt.created); },
                          .max_logprobs = texts.vocab,
                          .ignores_unknown = true};
  if (texts.chat) context.tool_format = texts.chat->tool_format();
  if (texts.chat) context.thought_format = thought_format_of(texts.chat->source());
  if (is_chat) context.defaults.max_tokens = receipt.context;
  Asked asked{parse_request(body, is_chat ? Endpoint::chat : Endpoint::completions, context), {}};
  openai::Request& request = asked.request;
  if (!request.has_seed) request.base.params.seed = receipt.params.seed;
  check_params(request.base, texts.vocab);
  size_t longest = 0;
  for (const openai::Prompt& prompt : request.prompts) {
    asked.prompts.push_back(tokens_of(request, prompt, texts.tokenizer, receipt.context));
    longest = std::max(longest, asked.prompts.back().size());
  }
  // An echo shows the rest of a prompt that was cut.
  if (request.truncate_prompt_tokens != 0)
    request.prompts.assign(asked.prompts.begin(), asked.prompts.end());
  settle_length(request, longest, receipt.context);
  if (!asked.prompts.empty()) settle_thoughts(request, asked.prompts.front(), texts.tokenizer);
  return asked;
}

namespace {

// The settings of one choice, by names.
json::Value asked_json(const Request& request) {
  const std::vector<std::string>& stops = request.stop.strings();
  return json::Object{{"choice", request.choice},
                      {"prompt", json::Array(request.prompt.begin(), request.prompt.end())},
                      {"sampling", params_json(request.params)},
                      {"stop", json::Array(stops.begin(), stops.end())},
                      {"include_stop_str_in_output", request.include_stop},
                      {"skip_special_tokens", request.skip_special},
                      {"form", request.structured_output.get()}};
}

std::string difference_in_choice(const Asked& asked, const Receipt& receipt, size_t i) {
  const auto n = static_cast<size_t>(asked.request.base.params.n);
  return first_difference(asked_json(asked.request.answer(i, asked.prompts[i / n])),
                          asked_json({.prompt = receipt.prompt,
                                      .params = receipt.params,
                                      .choice = receipt.choice,
                                      .structured_output = receipt.grammar,
                                      .stop = receipt.stop,
                                      .include_stop = receipt.include_stop,
                                      .skip_special = receipt.skip_special}),
                          "");
}

}  // namespace

std::string request_difference(const Asked& asked, std::span<const Receipt> receipts) {
  const openai::Request& request = asked.request;
  std::string found;
  if (receipts.size() != request.answers())
    found = fmt::format("expected {} choices, found {}", request.answers(), receipts.size());
  else if (!request.model.empty() && request.model != receipts.front().name)
    found = fmt::format("the model: expected {}, found {}", json::quoted(request.model),
                        json::quoted(receipts.front().name));
  for (size_t i = 0; i < receipts.size() && found.empty(); ++i)
    found = difference_in_choice(asked, receipts[i], i);
  return found.empty() ? found : "the receipt is not of this request: " + found;
}

// ---- How it was shown
// ---------------------------------------------------------------------------------------------

namespace {

// The most tokens that an entry of a list tells of.
int32_t most_tokens(const json::Value* list) {
  size_t count = 0;
  if (list && list->is_array())
    for (const json::Value& one : list->as_array()) {
      const json::Value* tops = one.find("top_logprobs");
      if (tops && tops->is_array()) count = std::max(count, tops->as_array().size());
      if (!tops && one.is_object()) count = std::max(count, one.as_object().size());
    }
  return static_cast<int32_t>(count);
}

// The same of a prompt's entries, which tell of the prompt's own token also where it is none of the
// likeliest.
int32_t most_likeliest(const json::Array& entries, const std::vector<int32_t>& prompt) {
  int64_t most = 0;
  for (size_t i = 1; i < std::min(entries.size(), prompt.size()); ++i) {
    if (!entries[i].is_object()) continue;
    const int64_t count = std::ssize(entries[i].as_object());
    const json::Value* own = entries[i].find(std::to_string(prompt[i]));
    const json::Value* rank = own ? own->find("rank") : nullptr;
    const bool is_one = rank && rank->is_integer() && rank->as_integer() < count;
    most = std::max(most, is_one ? count : count - 1);
  }
  return static_cast<int32_t>(most);
}

}  // namespace

void ask_for_shown(const ServedAnswer& served, SamplingParams& params) {
  if (served.body.is_null()) return;
  const json::Value& choice = choices_of(served.body).front();
  const json::Value* mode = choice.find("logprobs_mode");
  if (mode && mode->is_string()) params.logprobs_mode = logprobs_mode_of(mode->as_string());
  const json::Value* shown = choice.find("logprobs");
  if (shown && shown->is_object())
    params.logprobs = most_tokens(shown->find(shown->find("content") ? "content" : "top_logprobs"));
  const json::Value* of_prompt = choice.find("prompt_logprobs");
  if (of_prompt && of_prompt->is_array())
    params.prompt_logprobs = most_likeliest(of_prompt->as_array(), served.receipts.front().prompt);
}

namespace {

// The name of the function that the body says was called.
std::string called_name(const json::Value& body) {
  for (const json::Value& choice : choices_of(body))
    if (const json::Value* message = choice.find("message"))
      if (const json::Value* calls = message->find("tool_calls"); calls && calls->is_array())
        for (const json::Value& call : calls->as_array())
          if (const json::Value* function = call.find("function"))
            if (const json::Value* name = function->find("name"); name && name->is_string())
              return name->as_string();
  return {};
}

// A request that has these receipts, shown as the body shows what a request may choose freely.
openai::Request plain_request(const ServedAnswer& served, Endpoint endpoint,
                              const AnswerTexts& texts) {
  const Receipt& first = served.receipts.front();
  const json::Value& choice = choices_of(served.body).front();
  openai::Request request{.endpoint = endpoint, .base = {.params = first.params}};
  request.base.stop = first.stop;
  request.base.include_stop = first.include_stop;
  request.base.skip_special = first.skip_special;
  if (!first.grammar.empty()) take_thoughts(first.grammar, texts.tokenizer, request.base);
  request.thought_format = request.base.thoughts.format;
  ask_for_shown(served, request.base.params);
  const auto n = static_cast<size_t>(first.params.n);
  for (size_t i = 0; i < served.receipts.size(); i += n)
    request.prompts.emplace_back(served.receipts[i].prompt);
  for (const int32_t token : first.params.stop_token_ids)
    if (first.params.ignore_eos || !std::ranges::count(texts.end_tokens, token))
      request.stop_token_ids.edit().push_back(token);
  request.token_ids = choice.find("token_ids") != nullptr;
  request.logits_hash = choice.find("logits_hash") != nullptr;
  request.has_seed = choice.find("seed") == nullptr;  // else one was drawn for each prompt
  return request;
}

// The requests that could be shown so, the likeliest first.
std::vector<openai::Request> possible_requests(const ServedAnswer& served, Endpoint endpoint,
                                               const AnswerTexts& texts) {
  std::vector<openai::Request> all{plain_request(served, endpoint, texts)};
  if (endpoint == Endpoint::completions) {
    all.push_back(all.front());
    all.back().echo = true;
  } else {
    std::vector<ToolFormat> formats{ToolFormat::object, ToolFormat::arguments};
    for (const ToolStyle& style : tool_styles()) formats.push_back(style.format);
    for (const ToolFormat format : formats) {
      all.push_back(all.front());
      all.back().tools = format;
      std::vector<int32_t>& shown = all.back().base.shown_special.edit();
      const auto marks = special_marks(marks_of(format), texts.tokenizer);
      shown.insert(shown.end(), marks.begin(), marks.end());
      std::ranges::sort(shown);
      if (format == ToolFormat::arguments) all.back().tool = called_name(served.body);
    }
  }
  return all;
}

// The answer's text where special tokens are shown that its computation did not show.
std::vector<TextAnswer> as_shown(const openai::Request& request,
                                 std::span<const TextAnswer> answers, const Tokenizer& tokenizer) {
  std::vector<TextAnswer> all(answers.begin(), answers.end());
  if (request.base.shown_special.empty()) return all;
  for (TextAnswer& answer : all) {
    AnswerBuilder builder(tokenizer, request.base);
    for (size_t i = 0; i < answer.tokens.size(); ++i)
      builder.push({.token = answer.tokens[i],
                    .finish = i + 1 < answer.tokens.size() ? FinishReason::none : answer.finish});
    answer.text = builder.answer.text;
    answer.thought = builder.answer.thought;
    answer.thought_tokens = builder.answer.thought_tokens;
    answer.turns = builder.answer.turns;
  }
  return all;
}

// As it was once printed: the numbers of f32 with as many digits as tell them from others of f32.
json::Value with_short_numbers(const json::Value& value) {
  if (value.is_object()) {
    json::Object all;
    for (const auto& [name, member] : value.as_object())
      all.emplace_back(name, with_short_numbers(member));
    return all;
  }
  if (value.is_array()) {
    json::Array all;
    for (const json::Value& one : value.as_array()) all.push_back(with_short_numbers(one));
    return all;
  }
  if (!value.is_number() || value.is_integer()) return value;
  const auto narrow = static_cast<float>(value.as_number());
  return static_cast<double>(narrow) == value.as_number() ? json::Value(json::shortest(narrow))
                                                          : value;
}

// Members and elements that both have alike.
int64_t common_values(const json::Value& a, const json::Value& b) {
  int64_t count = !a.is_object() && !a.is_array() && a == b;
  if (a.is_object() && b.is_object())
    for (const auto& [name, value] : a.as_object())
      if (const json::Value* other = b.find(name)) count += common_values(value, *other);
  if (a.is_array() && b.is_array())
    for (size_t i = 0; i < std::min(a.as_array().size(), b.as_array().size()); ++i)
      count += common_values(a.as_array()[i], b.as_array()[i]);
  return count;
}

// How an answer differs from the one that a request would have; empty: it does not.
struct Difference {
  std::string where;
  int64_t in_common;  // values of the two
};

// `free`: members of the body's usage that are no property of the answer.
Difference difference_from(openai::Request request, const ServedAnswer& served,
                           std::span<const TextAnswer> answers, const AnswerTexts& texts,
                           std::span<const char* const> free) {
  const Receipt& first = served.receipts.front();
  request.receipt = true;
  request.make_receipt = [&](const TextAnswer&, size_t i) { return to_json(served.receipts[i]); };
  const openai::Head head{.id = first.id,
                          .created = first.created,
                          .model = first.name,
                          .system_fingerprint = fingerprint_of(first.model),
                          .seed = first.params.seed};
  const std::vector<TextAnswer> shown = as_shown(request, answers, texts.tokenizer);
  json::Value body = answer_body(request, shown, texts.tokenizer, &head);
  const json::Value* usage = served.body.find("usage");
  json::Value own = *body.find("usage");
  for (const char* name : free)
    if (const json::Value* details = usage ? usage->find(name) : nullptr) own.set(name, *details);
  body.set("usage", std::move(own));
  // As a reader sees it.
  body = json::parse(json::dump(body), "the answer");
  const std::string found = first_difference(body, served.body, "");
  const bool is_same =
      found.empty() || first_difference(with_short_numbers(body), served.body, "").empty();
  return {is_same ? std::string() : found, common_values(body, served.body)};
}

}  // namespace

std::string body_difference(const ServedAnswer& served, std::span<const TextAnswer> answers,
                            const openai::Request* asked, const AnswerTexts& texts) {
  const json::Value* object = served.body.find("object");
  const bool is_chat = object && *object == json::Value("chat.completion");
  if (!is_chat && (!object || *object != json::Value("text_completion")))
    return fmt::format("the body's object: expected chat.completion or text_completion, found {}",
                       object ? json::excerpt(*object) : "none");
  const auto requests =
      asked ? std::vector{*asked}
            : possible_requests(served, is_chat ? Endpoint::chat : Endpoint::completions, texts);
  // How much of a prompt was cached, and of what a request that is not known predicted came true.
  constexpr const char* kFree[] = {"prompt_tokens_details", "completion_tokens_details"};
  const std::span free(kFree, asked ? 1 : 2);
  // The request that was made has more in common with the answer than those that show it otherwise.
  Difference nearest{{}, -1};
  for (const openai::Request& request : requests) {
    Difference difference = difference_from(request, served, answers, texts, free);
    if (difference.where.empty()) return {};
    if (difference.in_common > nearest.in_common) nearest = std::move(difference);
  }
  return "the body differs from its receipts: " + nearest.where;
}

}  // namespace invar
