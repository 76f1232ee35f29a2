// Flags of commands that answer requests: speculation, scheduling, the cache, sampling.
#include <fmt/ranges.h>

#include "base/error.h"
#include "command.h"
#include "model_sampling.h"
#include "speculative/method_names.h"
#include "switch_flag.h"

namespace invar::cli {

namespace {

constexpr int kAutoContext = -1;  // of --max-model-len, as in vLLM

void add_chunk_flags(CLI::App& command, EngineFlags& flags) {
  command.add_flag(
      "--enable-dynamic-chunking-schedule", flags.dynamic_chunks,
      "Shrink the chunks of a long prompt as it proceeds, because later rows cost more");
  command
      .add_option("--high-chunk-size", flags.chunks.high,
                  "With the above: rows of a prompt's first chunk")
      ->capture_default_str();
  command
      .add_option("--low-chunk-size", flags.chunks.low,
                  "With the above: rows of a prompt's last chunk")
      ->capture_default_str();
  command
      .add_option("--chunk-schedule-max-tokens", flags.chunks.max_tokens,
                  "With the above: tokens after which chunks stop shrinking")
      ->capture_default_str();
  command
      .add_option("--chunk-schedule-stages", flags.chunks.stages,
                  "With the above: number of steps in which chunks shrink")
      ->capture_default_str();
}

}  // namespace

SpeculativeConfig config_of(const SpeculationFlags& flags) {
  SpeculativeConfig config = with_short_flags(flags.json, flags.method, flags.model, flags.tokens);
  config.model = found_drafter(config.model);
  return config;
}

void add_speculation_flags(CLI::App& command, SpeculationFlags& flags) {
  command.add_option(
      "--speculative-config", flags.json,
      "Speculative decoding, as vLLM's JSON: {\"method\": \"ngram\", ...}. It changes "
      "the speed of answers, never a bit of them (docs/speculation.md)");
  command.add_option("--spec-method", flags.method,
                     "Its \"method\": " + speculation_method_names());
  command.add_option("--spec-model", flags.model, "Its \"model\": the drafter's directory");
  command.add_option("--spec-tokens", flags.tokens, "Its \"num_speculative_tokens\"");
}

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  SchedulerOptions& s = flags.options.scheduler;
  // The ranges are the engine's; drafters are made before it.
  command.add_option("--max-num-seqs", s.max_num_seqs, "Most sequences computed at the same time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--max-num-batched-tokens", s.max_num_batched_tokens,
                  "Most rows (tokens) of one step")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command
      .add_option("--max-model-len", s.max_model_len,
                  "Context length in tokens, prompt and answer together; 0 is the model's own; "
                  "auto (or -1) is what the KV cache can hold")
      ->transform(CLI::Validator(
          [](std::string& text) {
            if (text == "auto") text = std::to_string(kAutoContext);
            return std::string();
          },
          ""))
      ->capture_default_str();
  command
      .add_option("--scheduling-policy", s.policy,
                  fmt::format("The policy that chooses what is computed next: {}",
                              fmt::join(scheduler_names(), ", ")))
      ->capture_default_str();
  add_chunk_flags(command, flags);
  command
      .add_option("--block-size", flags.options.block_size,
                  "Tokens per block of the KV cache: 32, 64 or 128")
      ->capture_default_str();
  command
      .add_option("--kv-cache-memory", flags.kv_gib,
                  "Size of the KV cache in GiB; 0 uses the free memory")
      ->capture_default_str();
  add_switch(
      command, "async-scheduling", flags.options.async_scheduling,
      "Begin a step before the last one has ended. Requests with structured output, penalties or "
      "bad words are in every other step then. Default: on with a GPU, as long as there is no such "
      "request. With drafts, ranks or pipeline stages a step begins when the last one has ended, "
      "before its tokens are sent");
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching",
                   flags.options.prefix_caching,
                   "Share the cached blocks of common prefixes (default)");
  add_speculation_flags(command, flags.speculation);
}

InstanceOptions instance_options(const ModelFlags& model, const EngineFlags& flags) {
  InstanceOptions options{.model = resolved(model),
                          .engine = flags.options,
                          .speculation = config_of(flags.speculation)};
  if (!(flags.kv_gib >= 0 && flags.kv_gib < 1e6))
    fail_usage("expected kv-cache-memory in GiB, 0 or more, found {}", flags.kv_gib);
  EngineOptions& engine = options.engine;
  if (flags.kv_gib > 0) engine.kv_bytes = static_cast<int64_t>(flags.kv_gib * (1 << 30));
  engine.fit_context = engine.scheduler.max_model_len == kAutoContext;
  if (engine.fit_context) engine.scheduler.max_model_len = 0;
  options.model.context = engine.scheduler.max_model_len;
  if (flags.dynamic_chunks) engine.scheduler.chunk_schedule = flags.chunks;
  return options;
}

void say_context(Instance& instance) {
  const Engine& engine = instance.engine();
  if (engine.options().fit_context)
    fmt::print(stderr, "context {} of the model's {} tokens (--max-model-len auto)\n",
               engine.max_model_len(), instance.model().spec().max_positions);
}

void settle_length(Request& request, bool asked, const Engine& engine) {
  if (!asked) fit_length(request.params, request.prompt.size(), engine.max_model_len());
}

void add_sampling_flags(CLI::App& command, SamplingParams& params) {
  for_each_field<&FieldFacts::flag>(params, [&](const auto& field, auto& value) {
    command.add_option(flag_of(field.name), value, field.facts.flag)->capture_default_str();
  });
}

}  // namespace invar::cli
