#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/input_file.h"
#include "base/timer.h"
#include "collectives/mpi/library.h"
#include "command.h"
#include "engine/host_job.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/limits.h"
#include "model/families/presets.h"
#include "session/hub_names.h"
#include "speculative/method_names.h"
#include "switch_flag.h"

namespace invar::cli {

namespace {

// A directory of the hub's cache ("models--OWNER--NAME") stands for its snapshot. As a validator of
// CLI11: changes the word, and returns what is wrong with it.
std::string open_hub_cache(std::string& word) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path snapshots = fs::path(word) / "snapshots", main = fs::path(word) / "refs" / "main";
  if (!fs::is_directory(snapshots, ignored)) return {};
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(snapshots, ignored))
    found.push_back(entry.path());
  if (fs::exists(main, ignored)) {
    std::string name = read_whole_file(main.string(), 1 << 10);
    while (name.ends_with('\n')) name.pop_back();
    found = {snapshots / name};
  }
  if (found.size() != 1)
    return fmt::format("expected one snapshot in {}, or refs/main beside it, found {}",
                       snapshots.string(), found.size());
  word = found[0].string();
  return {};
}

// More threads than these only wait for each other, and some thousands take the machine down.
std::string bound_threads(std::string& word) {
  constexpr long kPerCore = 4, kLeast = 64, kSense = 1024;  // beyond that it is a slip: refused
  const long most = std::max(kLeast, kPerCore * std::ssize(ThreadPool::usable_cores()));
  char* end = nullptr;
  if (const long asked = std::strtol(word.c_str(), &end, 10);
      *end == 0 && asked > most && asked <= kSense) {
    fmt::print(stderr, "--threads {}: {} are used, the most for {} cores\n", word, most,
               ThreadPool::usable_cores().size());
    word = std::to_string(most);
  }
  return {};
}

// Read before all others (engine/host_workers.h): here for the help, and for files of options,
// which come too late.
void add_node_flags(CLI::App& command) {
  const auto add = [&](const std::string& name, const char* what) {
    command.add_option_function<std::string>(
        name, [name](const std::string&) { fail_usage("expected {} on the command line", name); },
        what);
  };
  add("--nnodes", "Hosts that share the model, each of which runs this command with a --node-rank");
  add("--node-rank", "Number of this host, of which 0 does what the command says (default: 0)");
  add("--master-addr", "Address of host 0, where it listens for the others (default: 127.0.0.1)");
  add("--master-port", "Its port (default: 29501)");
}

void take_gpu_layers(const std::string& layers, ModelOptions& options) {
  constexpr int64_t kAll = 99;  // as llama.cpp's users write it
  int64_t number = 0;
  const auto read = std::from_chars(layers.data(), layers.data() + layers.size(), number);
  const bool is_number = read.ec == std::errc() && read.ptr == layers.data() + layers.size();
  if (layers == "auto" || (is_number && number == 0)) return;
  if (layers != "all" && !(is_number && (number < 0 || number >= kAll)))
    fail_usage(
        "expected gpu-layers of 0, all or at least {}, since a model lies on a GPU as a whole or "
        "not at all (--device), found {}",
        kAll, layers);
  if (options.device == "cpu") options.device = "cuda";
}

// llama.cpp's: all layers, or none.
void add_gpu_layers(CLI::App& command, ModelOptions& o) {
  command
      .add_option_function<std::string>(
          "--gpu-layers", [&o](const std::string& layers) { take_gpu_layers(layers, o); })
      ->group("");
}

// Where the model is computed.
void add_placement_flags(CLI::App& command, ModelOptions& o) {
  o.executor = mpi::launch().size > 1 ? "mpi" : hosts::launch().size > 1 ? "hosts" : "auto";
  command
      .add_option(
          "--device", o.device,
          "cpu; cuda for all GPUs (rank r uses GPU r modulo their number); cuda:N for one GPU")
      ->capture_default_str();
  command
      .add_option("--kv-cache-dtype", o.kv_cache_dtype,
                  "Keys and values in the cache: auto (bf16), int8 or fp8_e4m3 (half the memory; "
                  "another arithmetic)")
      ->capture_default_str();
  command
      .add_option("--isa", o.instruction_set, "Instruction set: auto, scalar, avx2, avx512 or amx")
      ->capture_default_str();
  command.add_option("--threads", o.threads, "Threads, divided among ranks; 0 means one per core")
      ->transform(CLI::Validator(bound_threads, ""))
      ->capture_default_str();
  command.add_option("--tensor-parallel-size", o.ranks, "Ranks that share the model")
      ->capture_default_str();
  command.add_flag("--enable-expert-parallel")
      ->description(
          "Experts are whole on a rank, shared out over the tensor-parallel ranks; they are "
          "without "
          "it, too");
  command
      .add_option("--expert-placement-strategy", o.expert_placement,
                  "Where experts lie in memory and on which rank, which changes no bit: linear; "
                  "round_robin over the ranks; shuffled:SEED")
      ->capture_default_str();
  command
      .add_option("--num-redundant-experts", o.redundant_experts,
                  "Experts that lie twice, with which rows take turns; it changes no bit")
      ->capture_default_str();
  command
      .add_option(
          "--distributed-executor-backend", o.executor,
          "Where ranks and stages run: mp, a process each; threads of this process; mpi, the "
          "processes of mpirun or srun (CPU only); hosts, those of torchrun or --nnodes; auto: "
          "mpi or hosts under a launcher, else mp, and threads on GPUs")
      ->capture_default_str();
  command
      .add_option(
          "--exchange", o.exchange,
          "How ranks on GPUs exchange partial sums: auto, in each other's memory where they "
          "see it; nccl, gathered by NCCL and added in the same order; host, where the host "
          "meets; staged, through host memory. No bit depends on it")
      ->check(CLI::IsMember({"auto", "host", "staged", "nccl"}))
      ->capture_default_str();
  command
      .add_option("--pipeline-parallel-size", o.stages,
                  "Stages of a pipeline, which read about as many weights each")
      ->capture_default_str();
  command.add_option("--layer-cuts", o.layer_cuts, "Layers at which a new pipeline stage begins")
      ->delimiter(',');
  add_node_flags(command);
}

}  // namespace

void add_ignored_config_keys(CLI::App& command, std::vector<std::string>& keys,
                             std::string_view and_then) {
  command
      .add_option("--ignore-config-keys", keys,
                  fmt::format("Keys of config.json that Invar does not know and that change no "
                              "number, as you say: they are read over, and {}. Default: none",
                              and_then))
      ->delimiter(',')
      ->check([](const std::string& key) {
        return key.empty() || key.size() > 256 ? "expected keys of 1 to 256 bytes" : "";
      });
}

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  ModelOptions& o = flags.options;
  command
      .add_option(
          "MODEL", o.model,
          "A Hugging Face model directory, a GGUF file, a model that invar pull has fetched "
          "(OWNER/NAME, or OWNER/NAME:QUANT), or with --load-format dummy:SEED a preset's "
          "name. Default: the bundled model, and for benchmarks a preset with random "
          "weights")
      ->transform(CLI::Validator(open_hub_cache, ""));
  command
      .add_option("--load-format", o.load_format,
                  "auto (safetensors, or GGUF for such a file), or dummy:SEED for random weights")
      ->capture_default_str();
  command
      .add_option(
          "--arith", o.arithmetic,
          "Order of additions: portable; hopper, that of Hopper's tensor cores; pair, that of "
          "AVX-512's dot products of bf16; or without the guarantee: control, a conventional "
          "baseline; control-batch (or "
          "control-batch-hopper), whose bits depend on the number of ranks alone")
      ->capture_default_str();
  command
      .add_option(
          "--weights", o.weights,
          "auto; rounded to round f32 and f16 matrices to bf16; exact to compute in f32 "
          "throughout, with keys and values in f32; twin to multiply int8 ones as the bf16 that "
          "they stand for, and to keep quantised matrices of directories as bf16 in memory; fp8 to "
          "multiply those of f8_e4m3 as such numbers, as Hopper's tensor "
          "cores do (the default: as the bf16 that they stand for); blocks to multiply those in "
          "blocks (GGUF, MXFP4) as integers, with activations that are made integers for each 32 "
          "columns")
      ->capture_default_str();
  add_ignored_config_keys(command, o.ignored_config_keys, "the fingerprint names them");
  add_placement_flags(command, o);
  add_gpu_layers(command, o);
  command.add_flag("--json", flags.json, "Print JSON");
}

void use_made_model(ModelFlags& flags, const char* preset) {
  ModelOptions& options = flags.options;
  if (!options.model.empty()) return;
  options.model = preset;
  if (options.load_format == "auto") options.load_format = "dummy:1";
}

ModelOptions resolved(const ModelFlags& flags) {
  ModelOptions options = flags.options;
  if (mpi::launch().size > 1 && options.executor != "mpi")
    fail_usage("expected the executor mpi in a job of {} processes, found {}", mpi::launch().size,
               options.executor);
  if (hosts::launch().size > 1 && options.executor != "hosts")
    fail_usage("expected the executor hosts in a job of {} processes, found {}",
               hosts::launch().size, options.executor);
  options.executor = options.settled_executor();
  if (options.model.empty())
    options.model = options.load_format == "auto" ? bundled_model() : "tiny";
  else if (options.load_format == "auto")
    options.model = found_model(options.model);
  if (std::error_code ignored; options.load_format == "auto" && is_preset(options.model) &&
                               !std::filesystem::exists(options.model, ignored))
    fail_usage("expected a model directory, found the preset {}: --load-format dummy:1 makes it",
               options.model);
  return options;
}

std::string made_weights(const ModelOptions& options) {
  if (!options.load_format.starts_with("dummy")) return {};
  return fmt::format("random ({} of {}); name a MODEL to use a trained one", options.load_format,
                     options.model);
}

std::shared_ptr<Model> open_with_progress(const InstanceOptions& options) {
  ProgressLine line;
  return open_model(options, [&](int64_t done, int64_t total) {
    constexpr double kMiB = 1 << 20;
    line.show_share("loading", static_cast<double>(done) / kMiB, static_cast<double>(total) / kMiB,
                    "MiB");
  });
}

namespace {

constexpr int kAutoContext = -1;  // of --max-model-len, as in vLLM

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

namespace {

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
                  fmt::format("Who is computed next: {}", fmt::join(scheduler_names(), ", ")))
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

void add_sampling_flags(CLI::App& command, SamplingParams& p) {
  command.add_option("--max-tokens", p.max_tokens, "Most tokens of an answer")
      ->capture_default_str();
  command.add_option("--temperature", p.temperature, "Sampling temperature; 0 is greedy")
      ->capture_default_str();
  command.add_option("--top-k", p.top_k, "Sample from the K most likely tokens; 0 is off")
      ->capture_default_str();
  command
      .add_option("--top-p", p.top_p,
                  "Sample from the most likely tokens whose probabilities sum to P")
      ->capture_default_str();
  command
      .add_option("--min-p", p.min_p,
                  "Sample from tokens at least this likely, relative to the most likely one")
      ->capture_default_str();
  command
      .add_option("--repetition-penalty", p.repetition_penalty,
                  "Above 1: discourage tokens of the prompt and the answer")
      ->capture_default_str();
  command
      .add_option("--presence-penalty", p.presence_penalty,
                  "Above 0: discourage tokens of the answer")
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", p.frequency_penalty,
                  "Above 0: discourage tokens by how often the answer has them")
      ->capture_default_str();
  command.add_option("--min-tokens", p.min_tokens, "Least tokens before an end of sequence")
      ->capture_default_str();
  command.add_option("--seed", p.seed, "Seed of the sampling")->capture_default_str();
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

}  // namespace invar::cli
