// Who computes what in the next step. Pure bookkeeping over blocks: no tokens, no tensors, no
// clock.
//
// A sequence is a number of known tokens. Its rows up to the last known token are *prefill* (a
// prompt, or everything so far after a preemption); then each step computes one row, the *decode*
// row, which gives the next token. Policies differ only in `fill`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kv/block_table.h"
#include "kv/prefix_cache.h"
#include "scheduler/step_plan.h"

namespace invar {

// Chunks shrink from `high` to `low` rows in equal steps while a prompt of `max_tokens` is computed
// in `stages` stages: late rows of a long prompt attend to more and cost more.
struct ChunkSchedule {
  int32_t low = 128, high = 2048;
  int32_t max_tokens = 131072;
  int32_t stages = 16;
};
// Rows of a step that takes a chunk of a prompt after `done` of its tokens; a multiple of 32.
int32_t scheduled_chunk(const ChunkSchedule& schedule, int32_t done);

struct SchedulerOptions {
  std::string policy = "sarathi";
  int32_t max_num_seqs = 128;            // sequences that hold blocks
  int32_t max_num_batched_tokens = 512;  // rows of a step
  int32_t max_model_len = 0;             // tokens of a sequence, prompt and answer
  int32_t max_plans_in_flight = 1;       // 1 to 4; the depth of the pipeline
  std::optional<ChunkSchedule> chunk_schedule;
};

struct SequenceSpec {
  int64_t id = 0;
  int32_t tokens = 0;  // known: the prompt
  int32_t drafts = 0;  // draft rows wanted with each decode row
  // The known tokens themselves, kept current by the caller while the sequence lives; null: neither
  // takes blocks from the prefix cache nor leaves any there.
  const std::vector<int32_t>* prefix = nullptr;
  std::string cache_salt;  // only sequences of one salt share blocks
  int32_t priority = 0;    // smaller is sooner among those that wait
};

// What became of one entry of a plan.
struct StepResult {
  int32_t new_tokens =
      0;                  // now known; 0 for a chunk that does not sample, else 1 + accepted drafts
  bool finished = false;  // the sequence is over; without a new token it has failed
};

class Scheduler {
 public:
  // Throws UsageError when the options or the pool make no sense.
  Scheduler(const SchedulerOptions& options, BlockPool& pool, PrefixCache* cache);
  virtual ~Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Appends a sequence to the queue. Throws UsageError for one that is longer than max_model_len.
  void add(const SequenceSpec& spec);
  // Forgets a sequence; its blocks are free once no uncommitted plan computes it. Unknown ids are
  // ignored: it may have finished. Takes as long however many wait.
  void remove(int64_t id);
  void set_drafts(int64_t id, int32_t drafts);

  // Plans the next step of at most min(budget, max_num_batched_tokens) rows. The plan is empty when
  // there is nothing to do before a commit, or as many plans are uncommitted as are allowed. Blocks
  // of every planned row are held. Allocates only when more is live than ever before.
  void plan(int32_t budget, StepPlan& plan);
  // Plans are committed in the order in which they were made; results[i] belongs to entries[i].
  void commit(const StepPlan& plan, std::span<const StepResult> results);

  // Blocks of a planned sequence, valid until the next call.
  std::span<const int32_t> blocks(int32_t index) const { return sequences_[index].table.blocks(); }
  int32_t num_waiting() const { return num_waiting_; }
  int32_t num_running() const { return num_running_; }
  int32_t plans_in_flight() const { return static_cast<int32_t>(last_plan_ - last_commit_); }
  // Empty when blocks and queues agree; else what is wrong. `others`: references to blocks that are
  // held elsewhere.
  std::string check_integrity(int32_t others = 0) const;

 protected:
  enum class State : uint8_t { free, waiting, running, removed };

  struct Sequence {
    int64_t id = 0;
    int32_t priority = 0;     // of one that waits; then
    int64_t arrival = 0;      // the order of add
    int32_t known = 0;        // tokens
    int32_t planned = 0;      // slots that the plans so far compute
    int32_t prefill_end = 0;  // tokens known when it was admitted
    int32_t drafts = 0;
    int32_t in_flight = 0;  // uncommitted plans that compute it
    State state = State::free;
    BlockTable table;
    const std::vector<int32_t>* prefix = nullptr;
    std::string cache_salt;

    bool is_resident() const { return state == State::running; }
    bool in_prefill() const { return planned < prefill_end; }
    bool next_is_unknown() const { return planned == known; }
  };

  // Adds entries to an empty plan: at most `budget` rows in all.
  virtual void fill(StepPlan& plan, int32_t budget) = 0;
  // Whether a sequence takes the blocks of max_model_len slots when it is admitted. Else it takes
  // them as its rows are planned, and is admitted when all it has so far fits above the watermark.
  virtual bool reserves_whole_sequences() const { return false; }

  // What `fill` is made of. `left` is what is left of the budget.

  // The decode rows of all resident sequences, oldest first.
  void add_decodes(StepPlan& plan, int32_t& left);
  // Chunks of the prompts of resident sequences, oldest first, then of new ones.
  void add_chunks(StepPlan& plan, int32_t budget, int32_t& left);
  // Whole prompts of new sequences.
  void add_whole_prompts(StepPlan& plan, int32_t& left);
  // Gives what is left to draft rows.
  void add_drafts(StepPlan& plan, int32_t& left);

  const SchedulerOptions options_;
  BlockPool& pool_;
  PrefixCache* const cache_;  // or null

 private:
  Sequence& running(size_t index) { return sequences_[running_[index]]; }
  int32_t admission_blocks(const Sequence& s) const;
  int32_t watermark() const { return reserves_whole_sequences() ? 0 : pool_.watermark(); }
  // Whether the head of the queue exists and fits. Looks it up in the prefix cache.
  bool may_admit();
  // Rows that the head of the queue has to compute, after may_admit.
  int32_t head_rows() const;
  // Moves the head of the queue to the resident sequences, after may_admit. It begins behind what
  // the prefix cache knows of it.
  Sequence& admit(StepPlan& plan);
  void preempt(StepPlan& plan, Sequence& s);
  // Makes room for one more slot of resident `index`: takes blocks from the youngest sequences
  // after it that no uncommitted plan computes, then from itself when it is the last. Returns
  // whether it may be planned.
  bool make_room(StepPlan& plan, size_t index);
  // As many of `rows` more rows as there are blocks for.
  int32_t rows_with_blocks(const Sequence& s, int32_t rows) const;
  // Rows of the next chunk of a prompt, of which [begin, end) is left. A chunk size of the schedule
  // counts all rows of the step.
  int32_t chunk(int32_t begin, int32_t end, int32_t budget, int32_t left) const;
  // Adds an entry; the blocks exist.
  void emit(StepPlan& plan, Sequence& s, int32_t rows);
  // Leaves the full blocks of what is computed in the prefix cache.
  void remember(Sequence& s);
  // Blocks that a resident prompt has yet to take.
  int32_t owed_blocks(const Sequence& s) const;
  void insert_waiting(Sequence& s);
  // The head of the queue, or -1 when nobody waits.
  int32_t head_of_queue();
  void pop_head();
  int32_t index_of(const Sequence& s) const { return static_cast<int32_t>(&s - sequences_.data()); }
  // Ends a sequence; its index is free when no plan computes it.
  void drop(Sequence& s);
  void free_index_if_idle(Sequence& s);
  void forget_gone();

  std::vector<Sequence> sequences_;  // by index
  std::vector<int32_t> free_indices_;
  std::unordered_map<int64_t, int32_t> index_of_;
  // One that waits. A sequence that is removed leaves its entry, which is skipped when it comes to
  // the head.
  struct Waiting {
    int32_t priority;
    int64_t arrival;
    int32_t sequence;
    // Whether it comes after the other: the heap's top is the head of the queue.
    bool operator<(const Waiting& other) const {
      return std::tie(priority, arrival) > std::tie(other.priority, other.arrival);
    }
  };
  bool still_waits(const Waiting& entry) const;
  void forget_stale_entries();

  std::vector<Waiting> waiting_;  // a heap
  std::vector<int32_t> running_;  // slots, oldest first
  int32_t num_running_ = 0, num_waiting_ = 0;
  int32_t promised_ = 0;          // blocks that resident prompts have yet to take
  std::vector<int32_t> matched_;  // cached blocks of the head of the queue
  size_t victim_end_ = 0;         // residents from here on are in flight or gone
  int64_t arrivals_ = 0, last_plan_ = 0, last_commit_ = 0;
};

// The policy that options.policy names. Throws UsageError for an unknown name.
std::unique_ptr<Scheduler> make_scheduler(const SchedulerOptions& options, BlockPool& pool,
                                          PrefixCache* cache = nullptr);
// Names that make_scheduler knows.
std::vector<std::string> scheduler_names();

}  // namespace invar
