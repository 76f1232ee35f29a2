// How a user names a model, and where it is to run.
#pragma once

#include <string>
#include <vector>

#include "model/adapter_user.h"

namespace invar {

struct ModelOptions {
  std::string model;  // a Hugging Face directory, or a preset's name with load_format dummy
  // "auto" (safetensors), or "dummy:SEED": random weights for a preset, or a directory's
  // config.json
  std::string load_format = "auto";
  std::string arithmetic = "portable";  // "portable", "hopper", "control", "control-batch"
  // "auto"; "rounded": f32 and f16 weights become bf16; "exact": all is f32; "twin": weights of
  // int8 are multiplied as the bf16 that they stand for; "fp8": those of e4m3 are not; "fp8-row":
  // nor those with a scale a row, which are made of bf16, too; "blocks": those in blocks are not.
  std::string weights = "auto";
  std::string device = "cpu";            // "cpu", "cuda" (a rank per GPU, going round) or "cuda:N"
  int first_gpu = 0;                     // of "cuda"
  std::string instruction_set = "auto";  // of the CPU: "auto", "scalar", "avx2", "avx512", "amx"
  // Keys and values are stored as "auto" (bf16), or as "int8" or "fp8_e4m3": half the memory,
  // another identity.
  std::string kv_cache_dtype = "auto";
  int threads = 0;  // 0: one per core
  int ranks = 1;    // tensor-parallel ranks
  // Where the workers are: "auto", or "threads" of this process, or "mp": processes that it starts,
  // which exchange in shared memory ("mp-sockets": over sockets), or "mpi": processes that mpirun
  // or srun has started on any hosts. Processes only on the CPU so far.
  std::string executor = "threads";
  std::string worker = "/proc/self/exe";  // the invar program that such a process runs
  int stages = 1;                         // of a pipeline, as balanced_cuts says, or:
  std::vector<int> layer_cuts;            // ascending layers at which a pipeline stage begins
  // How ranks on GPUs exchange partial sums: "auto" or "host", "staged", "nccl" (peer_group.h); for
  // benches "none" and "nccl-sum", with which answers are wrong or nobody's.
  std::string exchange = "auto";
  AdapterUser adapter_user() const { return device == "cpu" ? AdapterUser::cpu : AdapterUser::gpu; }
  bool is_pipeline() const { return stages > 1 || !layer_cuts.empty(); }
  int workers() const {
    return ranks * (layer_cuts.empty() ? stages : static_cast<int>(layer_cuts.size()) + 1);
  }
  // Instead of "auto": "mp" where ranks or stages divide a CPU, else "threads".
  std::string settled_executor() const {
    if (executor != "auto") return executor;
    return (ranks > 1 || is_pipeline()) && device == "cpu" ? "mp" : "threads";
  }
  // Where experts lie, which changes no bit: "linear", "round_robin" over the ranks, or
  // "shuffled:SEED"; and how many have a second copy, with which rows take turns.
  std::string expert_placement = "linear";
  int redundant_experts = 0;
  // Drafts are accepted by rejection, so that answers depend on them (speculative/rejection.h).
  bool rejection = false;
  // Tokens of a prompt and its answer, as far as a rotation depends on them; 0: the model's
  // positions.
  int context = 0;
  bool mtp_module = false;  // keep the module that predicts one token further, where there is one
  // Keys of config.json that Invar does not know and that the user says change nothing.
  std::vector<std::string> ignored_config_keys;

  bool operator==(const ModelOptions&) const = default;
};

}  // namespace invar
