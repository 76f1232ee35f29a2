#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/timer.h"
#include "command.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/limits.h"

namespace invar::cli {

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  ModelOptions& o = flags.options;
  command.add_option(
      "MODEL", o.model,
      "A Hugging Face model directory; with --load-format dummy:SEED a directory of which only "
      "config.json is read, or a preset's name; without it generate, chat and serve take the model "
      "that Invar brings along, other commands a small made one");
  command
      .add_option("--load-format", o.load_format,
                  "auto: safetensors; dummy:SEED: random weights made in place")
      ->capture_default_str();
  command
      .add_option(
          "--arith", o.arithmetic,
          "portable; hopper: the bits of Hopper tensor cores; control: a conventional baseline "
          "that promises nothing")
      ->capture_default_str();
  command.add_option("--weights", o.weights, "auto, or rounded: f32 and f16 matrices become bf16")
      ->capture_default_str();
  command
      .add_option("--device", o.device,
                  "cpu; cuda: the GPUs, ranks going round them; cuda:N: one GPU")
      ->capture_default_str();
  command.add_option("--isa", o.instruction_set, "auto, scalar, avx2, avx512 or amx")
      ->capture_default_str();
  command
      .add_option("--threads", o.threads,
                  "Threads; 0 is one per core. Ranks share them out, one each at least")
      ->capture_default_str();
  command.add_option("--tensor-parallel-size", o.ranks, "Ranks that share the model")
      ->capture_default_str();
  command
      .add_option("--distributed-executor-backend", o.executor,
                  "Where the ranks are: threads of this process; mp: a process each (CPU only)")
      ->capture_default_str();
  command
      .add_option("--layer-cuts", o.layer_cuts, "Layers at which a further pipeline stage begins")
      ->delimiter(',');
  command.add_flag("--json", flags.json, "Print JSON for machines");
}

void use_bundled_model(ModelFlags& flags) {
  ModelOptions& options = flags.options;
  if (options.model.empty() && options.load_format == "auto") options.model = bundled_model();
}

ModelOptions resolved(const ModelFlags& flags) {
  ModelOptions options = flags.options;
  if (options.model.empty()) {
    options.model = "tiny";
    if (options.load_format == "auto") options.load_format = "dummy:1";
  }
  return options;
}

std::string made_weights(const ModelOptions& options) {
  if (!options.load_format.starts_with("dummy")) return {};
  return fmt::format("random ({} of {}), not those of a model that learned; MODEL names one",
                     options.load_format, options.model);
}

std::unique_ptr<Model> load_model(const ModelFlags& flags) {
  const ModelOptions options = resolved(flags);
  ProgressLine line;
  return std::make_unique<Model>(options, [&](int64_t done, int64_t total) {
    line.show(fmt::format("loading {:3.0f} %  {} of {} MiB",
                          100.0 * done / std::max<int64_t>(1, total), done >> 20, total >> 20));
  });
}

namespace {

constexpr int kAutoContext = -1;  // of --max-model-len, as in vLLM

}  // namespace

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  SchedulerOptions& s = flags.options.scheduler;
  command
      .add_option("--max-num-seqs", s.max_num_seqs, "Sequences that are answered at the same time")
      ->capture_default_str();
  command.add_option("--max-num-batched-tokens", s.max_num_batched_tokens, "Rows of one step")
      ->capture_default_str();
  command
      .add_option("--max-model-len", s.max_model_len,
                  "The context: tokens of prompt and answer; 0 is the model's; auto, or -1, is as "
                  "much of it as the KV cache holds for one sequence")
      ->transform(CLI::Validator(
          [](std::string& text) {
            if (text == "auto") text = std::to_string(kAutoContext);
            return std::string();
          },
          ""))
      ->capture_default_str();
  command
      .add_option("--scheduling-policy", s.policy,
                  fmt::format("Who is computed next: {}", fmt::join(scheduler_names(), ", ")))
      ->capture_default_str();
  command.add_flag("--enable-dynamic-chunking-schedule", flags.dynamic_chunks,
                   "Chunks of a long prompt shrink as it goes on, since its later rows cost more");
  command
      .add_option("--high-chunk-size", flags.chunks.high,
                  "With it: rows of a step that takes a prompt's first chunk")
      ->capture_default_str();
  command.add_option("--low-chunk-size", flags.chunks.low, "Rows of one that takes its last")
      ->capture_default_str();
  command
      .add_option("--chunk-schedule-max-tokens", flags.chunks.max_tokens,
                  "Tokens after which chunks shrink no more")
      ->capture_default_str();
  command
      .add_option("--chunk-schedule-stages", flags.chunks.stages,
                  "Equal steps in which they shrink")
      ->capture_default_str();
  command
      .add_option("--block-size", flags.options.block_size,
                  "Slots of a block of the KV cache: 32, 64 or 128")
      ->capture_default_str();
  command
      .add_option("--kv-cache-memory", flags.kv_gib,
                  "GiB for keys and values; 0 sizes them by what is free")
      ->capture_default_str();
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching",
                   flags.options.prefix_caching,
                   "Requests that begin alike share computed blocks (the default)");
}

std::unique_ptr<Engine> make_engine(Model& model, const EngineFlags& flags, ThreadPool* threads) {
  EngineOptions options = flags.options;
  if (!(flags.kv_gib >= 0 && flags.kv_gib < 1e6))
    fail_usage("expected kv-cache-memory in GiB, 0 or more, found {}", flags.kv_gib);
  if (flags.kv_gib > 0) options.kv_bytes = static_cast<int64_t>(flags.kv_gib * (1 << 30));
  options.fit_context = options.scheduler.max_model_len == kAutoContext;
  if (options.fit_context) options.scheduler.max_model_len = 0;
  if (flags.dynamic_chunks) options.scheduler.chunk_schedule = flags.chunks;
  auto engine = std::make_unique<Engine>(model, options, threads);
  if (options.fit_context)
    fmt::print(stderr, "context {} of the model's {} tokens (--max-model-len auto)\n",
               engine->max_model_len(), model.spec().max_positions);
  return engine;
}

void settle_length(TextRequest& request, bool asked, TextEngine& engine) {
  if (asked) return;
  request.params.max_tokens = length_that_fits(
      request.params.max_tokens, engine.encode(request).size(), engine.engine().max_model_len());
}

void add_sampling_flags(CLI::App& command, SamplingParams& p) {
  command.add_option("--max-tokens", p.max_tokens, "Tokens of an answer at most")
      ->capture_default_str();
  command.add_option("--temperature", p.temperature, "0 is greedy")->capture_default_str();
  command.add_option("--top-k", p.top_k, "Only the K most likely tokens; 0 is off")
      ->capture_default_str();
  command.add_option("--top-p", p.top_p, "Only the most likely tokens of this probability in all")
      ->capture_default_str();
  command.add_option("--min-p", p.min_p, "Only tokens this likely, relative to the most likely")
      ->capture_default_str();
  command.add_option("--repetition-penalty", p.repetition_penalty, "Above 1: fewer repetitions")
      ->capture_default_str();
  command.add_option("--presence-penalty", p.presence_penalty, "Above 0: less of what was said")
      ->capture_default_str();
  command.add_option("--frequency-penalty", p.frequency_penalty, "The same, for each time")
      ->capture_default_str();
  command.add_option("--min-tokens", p.min_tokens, "No end of sequence before this many tokens")
      ->capture_default_str();
  command.add_option("--seed", p.seed, "Seed of the draws")->capture_default_str();
}

namespace {

double measure_gpu_read_bandwidth(Device& device) {
  const size_t bytes = std::min(size_t{4} << 30, device.available_bytes() / 2);
  const DeviceArray<std::byte> memory(device, bytes, "the bandwidth measurement");
  const DeviceArray<uint64_t> sum(device, 1, "the bandwidth measurement");
  const std::unique_ptr<Stream> stream = device.make_stream();
  double best = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const Timer timer;
    cuda::read(memory.data(), bytes, sum.data(), {&device, stream.get()});
    stream->wait();
    best = std::max(best, static_cast<double>(bytes) / timer.seconds());
  }
  return best;
}

}  // namespace

double measure_read_bandwidth(Model& model) {
  if (!model.device().is_host()) return measure_gpu_read_bandwidth(model.device());
  // The model's own arrays when they are beyond the caches, else a buffer that is.
  const size_t bytes = size_t{512} << 20;
  if (static_cast<size_t>(model.weight_bytes()) >= bytes)
    return measure_read_bandwidth(model.pool(), model.weight_arrays());
  const auto device = make_host_device();
  const DeviceArray<std::byte> memory(*device, bytes, "the bandwidth measurement");
  model.pool().run([&](Part part) {
    const auto [begin, end] = part.of(static_cast<int64_t>(bytes), 4096);
    std::fill(memory.data() + begin, memory.data() + end, std::byte{1});
  });
  return measure_read_bandwidth(model.pool(), {memory.data(), bytes});
}

ProgressLine::ProgressLine(bool enabled) : enabled_(enabled && isatty(STDERR_FILENO)) {}

void ProgressLine::show(std::string_view text) {
  if (!enabled_) return;
  std::fprintf(stderr, "\r%.*s%*s", static_cast<int>(text.size()), text.data(),
               static_cast<int>(width_ > text.size() ? width_ - text.size() : 0), "");
  std::fflush(stderr);
  width_ = text.size();
}

void ProgressLine::clear() {
  if (width_ == 0) return;
  std::fprintf(stderr, "\r%*s\r", static_cast<int>(width_), "");
  std::fflush(stderr);
  width_ = 0;
}

}  // namespace invar::cli
