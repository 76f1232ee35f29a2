// A subcommand of `invar`: adds its options to the parser and, when it is the one chosen, runs.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <string_view>

#include "base/timer.h"
#include "engine/engine.h"
#include "frontend/text_engine.h"
#include "session/instance.h"
#include "session/open.h"
#include "tokenizer/tokenizer.h"

namespace invar::cli {

// Does the work of the chosen subcommand; returns the exit status.
using Action = std::function<int()>;

// Each adds one subcommand. `action` is set by the parser when the subcommand is chosen.
void add_make_model(CLI::App& app, Action& action);
void add_pull(CLI::App& app, Action& action);
void add_list(CLI::App& app, Action& action);
void add_rm(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_score(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_receipt_key(CLI::App& app, Action& action);
void add_audit(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_bench_serve(CLI::App& bench, Action& action);  // a subcommand of bench
void add_bench_text(CLI::App& bench, Action& action);   // another
void add_bench_schedule(CLI::App& bench, Action& action);
void add_bench_speculate(CLI::App& bench, Action& action);
void add_bench_load(CLI::App& bench, Action& action);
void add_bench_train(CLI::App& bench, Action& action);
void add_bench_model(CLI::App& bench, Action& action);
void add_bench_adapters(CLI::App& bench, Action& action);
void add_diff(CLI::App& app, Action& action);
void add_corpus(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);
void add_rl(CLI::App& app, Action& action);
void add_evaluate(CLI::App& app, Action& action);
void add_worker(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);

// Options that every command with a model takes.
struct ModelFlags {
  ModelOptions options;
  bool json = false;
};
void add_model_flags(CLI::App& command, ModelFlags& flags);
// `and_then` ends the sentence on what becomes of them.
void add_ignored_config_keys(CLI::App& command, std::vector<std::string>& keys,
                             std::string_view and_then);

// Where no model is named: the preset with random weights. For benchmarks, which measure time.
void use_made_model(ModelFlags& flags, const char* preset);

// The options with a model. Where none is named it is the bundled one (bundled_model), or a small
// preset if random weights are asked for.
ModelOptions resolved(const ModelFlags& flags);

// A sentence about weights that were made and not read: they are random, and why. Empty where they
// were read.
std::string made_weights(const ModelOptions& options);

// Speculative decoding, by vLLM's flags.
struct SpeculationFlags {
  std::string json, method, model;
  int tokens = 0;
};
void add_speculation_flags(CLI::App& command, SpeculationFlags& flags);
// Throws UsageError when they make no sense. A bundled drafter is found wherever Invar is
// installed.
SpeculativeConfig config_of(const SpeculationFlags& flags);

// Options of commands that answer requests.
struct EngineFlags {
  EngineOptions options;
  double kv_gib = 0;
  ChunkSchedule chunks;
  bool dynamic_chunks = false;
  SpeculationFlags speculation;
};
void add_engine_flags(CLI::App& command, EngineFlags& flags);

// The options that the flags ask the factory for. Throws UsageError when they make no sense.
InstanceOptions instance_options(const ModelFlags& model, const EngineFlags& engine);
// Loads the model with a progress line on the terminal.
std::shared_ptr<Model> open_with_progress(const InstanceOptions& options);
inline std::shared_ptr<Model> open_with_progress(const ModelFlags& flags) {
  return open_with_progress({.model = resolved(flags)});
}
// Says the context where the flags left it to the memory (--max-model-len auto).
void say_context(Instance& instance);

// Sampling options by the names that vLLM users know.
void add_sampling_flags(CLI::App& command, SamplingParams& params);
// Sets a request's max_tokens where the user did not ask for one: the default, or less where its
// prompt leaves less of the context.
void settle_length(Request& request, bool asked, const Engine& engine);
// Bytes per second that the model's device reads memory with, the best of a few passes: the limit
// of decoding.
double measure_read_bandwidth(Model& model);

// The CPU as the system names it.
std::string processor_name();

// Writes text to the standard output at once. Throws Error where it cannot be written: the disk is
// full, or nobody reads any longer.
void write_out(std::string_view text);
// Throws Error unless everything that was printed so far has been written.
void flush_out();

// One line on the error stream that replaces itself; silent when that is not a terminal.
class ProgressLine {
 public:
  explicit ProgressLine(bool enabled = true);
  ~ProgressLine() { clear(); }
  void show(std::string_view text);
  // A bar with how much is done of how much, the rate, and the time that is left at that rate:
  // "loading [####----]  50 %  430 of 860 MiB, 1200 MiB/s, 0:01 left".
  void show_share(std::string_view what, double done, double total, std::string_view unit);
  void clear();

 private:
  bool enabled_;
  size_t width_ = 0;
  std::string what_;  // of the bar, since start_
  Timer start_;
};

}  // namespace invar::cli
