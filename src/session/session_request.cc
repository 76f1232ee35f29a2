#include "session/session_request.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/fields.h"
#include "frontend/openai_sampling.h"
#include "session/hub_names.h"
#include "session/open.h"

namespace invar {

namespace {

constexpr int kFitContext = -1;

void add_logprobs(const TokenLogprobs& from, std::vector<float>& logprobs,
                  std::vector<int32_t>& ranks, std::vector<std::vector<Logprob>>& top) {
  logprobs.push_back(from.logprob);
  ranks.push_back(from.rank);
  std::vector<Logprob>& most = top.emplace_back();
  for (const TokenLogprob& one : from.top) most.push_back({one.token, one.logprob, one.rank});
}

DType dtype_of(const Tensor& tensor) {
  if (tensor.dtype == "BF16") return DType::bf16;
  if (tensor.dtype == "F16") return DType::f16;
  if (tensor.dtype == "F32") return DType::f32;
  fail_usage("expected the type of the tensor {} as BF16, F16 or F32, found {}",
             json::quoted(tensor.name), json::quoted(tensor.dtype));
}

// The types as a library's caller has them: an optional count and a list of tokens for each word
// are another form of what GenerateOptions says, and are not copied.
template <typename T>
struct Plain {
  using Type = T;
};
template <typename T>
struct Plain<Shared<T>> {
  using Type = T;
};

// Sets the listed fields that GenerateOptions has under the same name and in the same type.
template <typename To>
void copy_named(const GenerateOptions& from, To& to) {
  fields::for_each(from, [&]<typename T>(std::string_view name, const T& given) {
    for_each_field(to, [&]<typename Own>(const auto& field, Own& own) {
      if constexpr (std::is_same_v<typename Plain<Own>::Type, T>)
        if (field.name == name) own = given;
    });
  });
}

constexpr bool has_option(std::string_view name) {
  for (const std::string_view one : fields::names<GenerateOptions>())
    if (one == name) return true;
  return false;
}
constexpr bool is_known(std::string_view name) {
  return name == "n" || has_option(name);
}
static_assert(std::apply([](const auto&... field) { return (is_known(field.name) && ...); },
                         kFieldsOf<SamplingParams>),
              "GenerateOptions has every field of SamplingParams but n, which `choice` stands for");

}  // namespace

namespace {

// Rows of a step where nothing is asked for: a GPU is fast with many, and callers wait for the
// whole.
int rows_of_a_step(const SessionOptions& o) {
  if (o.max_num_batched_tokens != 0) return o.max_num_batched_tokens;
  return std::max(o.device == "cpu" ? 512 : 4096, o.max_num_seqs);
}

}  // namespace

InstanceOptions instance_options(const SessionOptions& o) {
  if (o.model.empty()) fail_usage("expected a model directory in SessionOptions, found none");
  if (o.max_model_len < kFitContext)
    fail_usage("expected max_model_len of -1 or more, found {}", o.max_model_len);
  if (!(o.kv_cache_gib >= 0 && o.kv_cache_gib < 1e6))
    fail_usage("expected kv_cache_gib of 0 or more, found {}", o.kv_cache_gib);
  const std::string model = o.load_format == "auto" ? found_model(o.model) : o.model;
  InstanceOptions options{.model = {.model = model,
                                    .load_format = o.load_format,
                                    .arithmetic = o.arithmetic,
                                    .weights = o.weights,
                                    .device = o.device,
                                    .instruction_set = o.instruction_set,
                                    .threads = o.threads,
                                    .ranks = o.tensor_parallel_size}};
  EngineOptions& engine = options.engine;
  engine.fit_context = o.max_model_len == kFitContext;
  engine.scheduler.max_model_len = engine.fit_context ? 0 : o.max_model_len;
  engine.scheduler.policy = o.scheduling_policy;
  engine.scheduler.max_num_seqs = o.max_num_seqs;
  engine.scheduler.max_num_batched_tokens = rows_of_a_step(o);
  engine.prefix_caching = o.enable_prefix_caching;
  engine.kv_bytes = static_cast<int64_t>(o.kv_cache_gib * (1 << 30));
  engine.prompt_logprobs = engine.embeddings = true;
  engine.adapters = {.most = o.max_loras, .most_rank = o.max_lora_rank};
  options.speculation = with_short_flags(o.speculative_config, {}, {}, 0);
  options.speculation.model = found_drafter(options.speculation.model);
  return options;
}

Request request_of(const GenerateOptions& o, const Tokenizer& tokenizer) {
  if (o.choice < 0 || o.choice >= INT32_MAX)
    fail_usage("expected a choice of 0 or more, found {}", o.choice);
  Request request{.stop = o.stop};
  copy_named(o, request);
  copy_named(o, request.params);
  request.hash_logits |= o.receipt;
  SamplingParams& p = request.params;
  p.n = o.choice + 1;  // so many the prompt has at least
  for (const std::string& word : o.bad_words)
    openai::add_bad_word(word, tokenizer, p.bad_words.edit());
  if (o.logprobs) p.logprobs = o.top_logprobs;
  if (o.prompt_logprobs) p.prompt_logprobs = o.top_logprobs;
  if (!o.logprobs_mode.empty()) p.logprobs_mode = logprobs_mode_of(o.logprobs_mode);
  return request;
}

GeneratedToken shown(const AnswerEvent& event, size_t prompt) {
  const TokenOutput& token = *event.token;
  return {.id = token.token,
          .index = token.index,
          .text = event.text,
          .logprob = token.logprobs ? std::optional(token.logprobs->logprob) : std::nullopt,
          .prompt = prompt};
}

namespace {

// Empty where nothing was hashed.
std::string shown_hash(const Digest& hash) {
  return hash == Digest{} ? std::string() : to_hex(hash);
}

}  // namespace

Generation shown(TextAnswer answer) {
  Generation g{.text = std::move(answer.text),
               .prompt_tokens = std::move(answer.prompt_tokens),
               .tokens = std::move(answer.tokens),
               .finish_reason = name_of(answer.finish),
               .stop = std::move(answer.stop),
               .logits_hash = shown_hash(answer.logits_hash)};
  for (const TokenLogprobs& one : answer.logprobs)
    add_logprobs(one, g.logprobs, g.ranks, g.top_logprobs);
  for (const TokenLogprobs& one : answer.prompt_logprobs)
    add_logprobs(one, g.prompt_logprobs, g.prompt_ranks, g.top_prompt_logprobs);
  return g;
}

void add_token(Generation& so_far, const AnswerEvent& event) {
  so_far.text += event.text;
  so_far.tokens.push_back(event.token->token);
  so_far.logits_hash = shown_hash(event.token->logits_hash);
  if (const auto& logprobs = event.token->logprobs)
    add_logprobs(*logprobs, so_far.logprobs, so_far.ranks, so_far.top_logprobs);
}

GivenTensor given(const Tensor& tensor) {
  return {.name = tensor.name,
          .info = {.dtype = dtype_of(tensor), .shape = tensor.shape},
          .data = static_cast<const std::byte*>(tensor.data),
          .gpu = tensor.gpu};
}

Tensor described(const std::string& name, const TensorInfo& info) {
  std::string type(name_of(info.dtype));
  for (char& c : type) c = static_cast<char>(std::toupper(c));
  return {.name = name, .dtype = type, .shape = info.shape};
}

}  // namespace invar
