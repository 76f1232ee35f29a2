// The parts of invar bench model: its flags, timed requests, and what it may measure instead.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench_steps.h"
#include "cli/command.h"

namespace invar::cli {

struct ModelBenchFlags {
  ModelFlags model;
  std::vector<std::string> sets;  // instruction sets to force one after the other
  bool against_control = false;
  bool profile = false, sweep = false, alone = false, scaling = false;
  std::vector<int> batches = {1, 2, 4, 8, 16, 32, 64};  // of a sweep
  std::vector<int> prompts = {16, 32, 64, 128, 256, 512, 1024, 2048};
  int behind = 16;  // tokens of a sweep's sequences before they decode
  StepFlags steps;
  int rounds = 3;
  int64_t limit_mib = 1536;
  std::optional<bool> async_scheduling;
};

// Seconds of the whole, and of the steps after every prompt was computed.
struct Seconds {
  double total = 0, decode = 0;
  double idle = 0;  // of a device, between the steps that decode
  int decode_steps = 0;
};

// `sequences` prompts of `prompt` tokens, each answered with `answer` tokens, hashes off. `times`
// (or null) gets the steps that decode, or without such steps all of them.
Seconds run_requests(const std::shared_ptr<Model>& model, int sequences, int prompt, int answer,
                     int max_rows, std::optional<bool> async_scheduling,
                     OperationTimes* times = nullptr);

// Multiplications and additions of a prompt of n tokens, counted once each, one row of logits.
double prefill_operations(const DecoderSpec& s, double n);
// The operations of one prefill step and of the decode steps, each with its share of the limit.
void print_profiles(const std::shared_ptr<Model>& model, const ModelBenchFlags& flags, double peak,
                    double bandwidth);

// Throws UsageError where the flags ask for more than a sweep shows.
void check_sweep(const ModelBenchFlags& flags);
// Invar, and unless it runs alone `control` in turn, at many batches and lengths: what else the
// machine does hits both.
int run_sweep(const ModelBenchFlags& flags, ModelOptions options);

}  // namespace invar::cli
