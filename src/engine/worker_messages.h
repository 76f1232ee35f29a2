// The messages to a worker. Each is a plain struct, whose bytes come from its fields
// (base/fields.h): within a process it is passed by reference, to another one as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/model_options.h"
#include "kv/placement.h"
#include "model/batch.h"

namespace invar {

// Which of the ranks x stages workers one is. The last stage's rank 0 is at home: in the engine's
// process, where the results of a step are wanted.
struct WorkerPlace {
  int32_t rank = 0, ranks = 1;    // of its tensor group
  int32_t stage = 0, stages = 1;  // of the pipeline

  bool is_home() const { return rank == 0 && stage == stages - 1; }
  bool operator==(const WorkerPlace&) const = default;
};

struct RunnerLimits {
  int32_t blocks = 0;
  int32_t block_size = 64;
  int32_t max_rows = 512;
  int32_t max_logit_rows = 128;
  int32_t max_aux_layers = 0;
  // Where layers have states: cells of sequences; scratch ones of draft paths, beside those of the
  // pieces of a step; snapshots of states. In the order in which they lie.
  int32_t cells = 1, draft_cells = 0, snapshots = 0;
  bool drafts_move_states = true;  // a draft path may cross a boundary
  // A drafter that is a part of the target has keys and values for its layers alone.
  int32_t exit_layer = 0;   // the first so many layers, with the head behind them; 0: all
  bool mtp_module = false;  // the module that predicts one token further; batches begin with it
  // Whether steps of few rows are launched as recorded graphs, where the device has them.
  bool records_steps = true;

  bool operator==(const RunnerLimits&) const = default;
};

// Numbers of the files over which a process computes with others of its host; -1: none.
struct Wires {
  std::vector<int32_t> peers;       // sockets to the ranks of its group, by rank
  int32_t before = -1, after = -1;  // sockets to the stages beside it
  // Shared memory of its group, of the channels, and of everybody's signs of life; without that of
  // a group or channel the sockets are used.
  int32_t group_memory = -1, before_memory = -1, after_memory = -1, pulses = -1;
  int32_t spins = 0;  // looks before a rank that waits sleeps
  bool operator==(const Wires&) const = default;
};

// The first one of a worker in a process of its own.
struct LoadModel {
  ModelOptions options;
  WorkerPlace place;
  int32_t threads = 1;     // 0: what its launch gives it
  int32_t first_core = 0;  // of its threads, among those that its process may use
  Wires wires;
  bool operator==(const LoadModel&) const = default;
};

// A runner is a worker's part of an executor: a decoder of its layers, with keys and values.
struct MakeRunner {
  int32_t runner = 0;
  int32_t keys_of = -1;  // the runner on whose keys and values it computes; -1: on its own
  RunnerLimits limits;
  bool operator==(const MakeRunner&) const = default;
};

struct EndRunner {
  int32_t runner = 0;
  bool operator==(const EndRunner&) const = default;
};

struct RunBatch {
  int32_t runner = 0;
  Batch batch;
  bool operator==(const RunBatch&) const = default;
};

// Moves keys and values between blocks, in every layer.
struct CopySlots {
  int32_t runner = 0;
  std::vector<SlotCopy> copies;
  bool operator==(const CopySlots&) const = default;
};

// Takes weights of the same shape and type from a checkpoint: ModelOptions::model and load_format.
struct TakeWeights {
  std::string model, load_format;
  bool operator==(const TakeWeights&) const = default;
};

// Gives memory back until it is taken again, zeroed, at the same addresses: the KV cache of all
// runners, or the weights.
struct GiveMemory {
  bool kv_cache = false, weights = false;
  bool keeps_weights = false;  // a GPU's weights go to the host's memory; else they are lost
  bool operator==(const GiveMemory&) const = default;
};
// Weights that were kept come back; others are to be taken (TakeWeights).
struct TakeMemory {
  bool kv_cache = false, weights = false;
  bool operator==(const TakeMemory&) const = default;
};

// A worker's process ends with the connection.
using WorkerMessage = std::variant<LoadModel, MakeRunner, EndRunner, RunBatch, CopySlots,
                                   TakeWeights, GiveMemory, TakeMemory>;

}  // namespace invar
