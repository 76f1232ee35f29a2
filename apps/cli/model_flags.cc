// Flags of commands with a model: which one, and where it is computed.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/input_file.h"
#include "collectives/mpi/library.h"
#include "command.h"
#include "device/cuda_device.h"
#include "engine/host_job.h"
#include "hub_cache.h"
#include "model/families/presets.h"
#include "session/hub_names.h"

namespace invar::cli {

namespace {

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
  if (cuda_device_count() == 0)  // llama.cpp goes on, too
    fmt::print(stderr, "--gpu-layers changes nothing: this machine has no GPU that can be used\n");
  else if (options.device == "cpu")
    options.device = "cuda";
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
          "cores do (the default: as the bf16 that they stand for); fp8-row to do so where each "
          "row has one scale, or bf16 matrices are made such numbers; blocks to multiply those in "
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

}  // namespace invar::cli
