// Plans which sequences compute which rows in the next step. Pure bookkeeping over blocks: no
// tokens, no tensors, no clock.
//
// A sequence is a number of known tokens. Its rows up to the last known token are *prefill* (a
// prompt, or everything so far after a preemption); then each step computes one row, the *decode*
// row, which gives the next token. A decode row may run *ahead*: it is planned while the plan that
// samples its token is uncommitted. Where the sequence turns out to end with that token, the row is
// computed in vain and its result is ignored. Policies differ in `fill` and in their queue's order.
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
#include "scheduler/waiting_queue.h"

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
  int32_t max_num_seqs = 128;            // sequences that hold blocks, and a cell each
  int32_t max_num_batched_tokens = 512;  // rows of a step
  int32_t max_model_len = 0;             // tokens of a sequence, prompt and answer
  int32_t max_plans_in_flight = 1;       // 1 to 4
  // A plan takes at most its share of the sequences that decode, so that as many plans as may be in
  // flight have equal work: the micro-batches of a pipeline.
  bool splits_decodes = false;
  std::optional<ChunkSchedule> chunk_schedule;
  // Owners have equal shares (SequenceSpec::owner). A waiting sequence takes places and blocks of
  // residents that the queue's rank puts behind it; these wait again. Else an admitted sequence
  // stays. Of one owner's sequences, too, a short one may come before a long one (or_the_oldest).
  bool urgent_take_slots = false;
  // Layers have a state of each sequence. Chunks of prompts then end at boundaries
  // (kv/cell_placement.h), so that a step crosses few of them.
  bool has_states = false;
};

struct SequenceSpec {
  int64_t id = 0;
  int32_t tokens = 0;  // known: the prompt
  int32_t drafts = 0;  // draft rows wanted with each decode row
  // The most tokens that it may come to, where the row of a token may be planned while a plan in
  // flight still samples that token; 0: it sits out until the token is known. Not with drafts.
  int32_t ahead_until = 0;
  // The known tokens themselves, kept current by the caller while the sequence lives; null: neither
  // takes blocks from the prefix cache nor leaves any there.
  const std::vector<int32_t>* prefix = nullptr;
  std::string cache_salt;  // only sequences of one salt share blocks
  int32_t priority = 0;    // smaller is sooner among those that wait
  // With urgent_take_slots: the k-th of an owner's sequences that are not over, by priority and
  // arrival, comes before the next one of another owner, and among such k-th the one that has been
  // it for longest comes first. Those behind one that ends come forward: nobody waits for ever but
  // for more urgent ones of its own owner. 0: nobody's, its rank is its priority.
  int64_t owner = 0;
};

// The result of one entry of a plan.
struct StepResult {
  int32_t new_tokens =
      0;                  // now known; 0 for a chunk that does not sample, else 1 + accepted drafts
  bool finished = false;  // the sequence is over; without a new token it has failed
  // The entry samples, and its token comes with `settle`. Until then the sequence sits out.
  bool is_late = false;
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
  // ignored: it may have finished. Takes as long however many wait, but with owners, whose ranks
  // the next plan counts anew.
  void remove(int64_t id);

  // Plans the next step of at most min(budget, max_num_batched_tokens) rows. The plan is empty when
  // there is nothing to do before a commit, or as many plans are uncommitted as are allowed. Blocks
  // of every planned row are held. Allocates only when more is live than ever before.
  void plan(int32_t budget, StepPlan& plan);
  // Plans are committed in the order in which they were made; results[i] belongs to entries[i].
  void commit(const StepPlan& plan, std::span<const StepResult> results);
  // The token of a sequence whose result was late. REQUIRES: the sequence lives and was not
  // preempted since; such a one is computed again, and samples that token again.
  void settle(int64_t id, bool finished);

  // The same of a plan whose step failed: its rows were not computed, and yet the results may have
  // been. Until preempt_all, nothing else is called.
  void discard(const StepPlan& plan, std::span<const StepResult> results);
  // Every resident sequence loses its blocks, none of which the prefix cache keeps, and waits to be
  // computed again; adds their ids. REQUIRES: no plan is in flight.
  void preempt_all(std::vector<int64_t>& preempted);

  // Blocks of a planned sequence, valid until the next call.
  std::span<const int32_t> blocks(int32_t index) const { return sequences_[index].table.blocks(); }
  // Its cell, of max_num_seqs.
  int32_t cell(int32_t index) const { return sequences_[index].cell; }
  int32_t num_waiting() const { return queue_.size(); }
  int32_t num_running() const { return num_running_; }
  int32_t plans_in_flight() const { return static_cast<int32_t>(last_plan_ - last_commit_); }
  // Empty when blocks and queues agree; else what is wrong. `others`: references to blocks that are
  // held elsewhere.
  std::string check_integrity(int32_t others = 0) const;

 protected:
  enum class State : uint8_t { free, waiting, running, removed };

  struct Sequence {
    int64_t id = 0;
    int32_t priority = 0;
    int64_t owner = 0;
    int64_t rank = 0;         // its priority, or how many of its owner's come before it
    int64_t turn = 0;         // when it came to that rank, by the numbers of arrivals
    int64_t arrival = 0;      // the order of add
    int32_t known = 0;        // tokens
    int32_t planned = 0;      // slots that the plans so far compute; known + 1 at most
    int32_t prefill_end = 0;  // tokens known when it was admitted
    int32_t drafts = 0;
    int32_t ahead_until = 0;
    int32_t in_flight = 0;  // uncommitted plans that compute it
    int32_t entry = 0;      // of the last plan that computes it
    int32_t overtakers =
        0;              // blocks of those that were admitted while it was the oldest that waits
    int32_t cell = -1;  // while it holds blocks
    State state = State::free;
    BlockTable table;
    const std::vector<int32_t>* prefix = nullptr;
    std::string cache_salt;

    bool is_resident() const { return state == State::running; }
    bool in_prefill() const { return planned < prefill_end; }
    // Its next row is of a token that a plan in flight samples.
    bool is_ahead() const { return planned == known; }
    // Whether that row may be planned: the token is not the last one in any case.
    bool may_run_ahead() const { return is_ahead() && planned + 1 < ahead_until; }
    bool next_is_unknown() const { return planned >= known; }
  };

  // Adds entries to an empty plan: at most `budget` rows in all.
  virtual void fill(StepPlan& plan, int32_t budget) = 0;
  // Whether a sequence takes the blocks of max_model_len slots when it is admitted. Else it takes
  // them as its rows are planned, and is admitted when all it has so far fits above the watermark.
  virtual bool reserves_whole_sequences() const { return false; }

  // The order of the queue. Sequences are admitted by rank, a smaller one sooner, and among equals
  // by who came to it first; the rank is asked when the wait begins and when those of owners
  // change. A policy whose order changes meanwhile says which is next.
  virtual int64_t queue_rank(const Sequence& s) const { return s.rank; }
  virtual int32_t next_waiting() { return queue_.oldest(); }  // its index; -1: nobody waits
  // Whether that rank is asked of owners' places (SchedulerOptions::urgent_take_slots).
  virtual bool has_shares() const { return options_.urgent_take_slots; }
  // The order of those who hold blocks, likewise: the last gives its own back when they run out.
  virtual int64_t resident_rank(const Sequence&) const { return 0; }

  // Tools for such an order: the first of the queue by rank; whether one still waits; how many of
  // its tokens are cached; the candidate (-1: nobody), or the oldest when enough have overtaken
  // that.
  void first_waiting(size_t most, std::vector<int32_t>& indices) const {
    queue_.first(most, indices);
  }
  bool is_waiting(int32_t index) const { return sequences_[index].state == State::waiting; }
  int32_t cached_tokens(int32_t index);
  int32_t or_the_oldest(int32_t candidate);

  // Tools for `fill`. `left` is the rest of the budget.

  // The decode rows of all resident sequences, oldest first; of a share of them where plans in
  // flight divide them.
  void add_decodes(StepPlan& plan, int32_t& left);
  // Chunks of prompts. Half of the rows go to the prompts in the order of their arrival, so that
  // each comes to its end; what is left to those that have the fewest rows to go, so that a short
  // one does not wait for the whole of a long one.
  void add_chunks(StepPlan& plan, int32_t budget, int32_t& left);
  // The same, but for the second half: all rows go by the orders of residents and queue.
  void add_chunks_in_order(StepPlan& plan, int32_t budget, int32_t& left) {
    add_oldest(plan, budget, left, left);
  }
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
  // Chunks of at most `share` of the `left` rows: of resident prompts, oldest first, then of new
  // ones. Returns whether every resident prompt that it came to got rows.
  bool add_oldest(StepPlan& plan, int32_t budget, int32_t share, int32_t& left);
  // Chunks of the prompts with the fewest rows to go, new ones too if `may_admit`.
  void add_shortest(StepPlan& plan, int32_t budget, bool may_admit, int32_t& left);
  // Whether a sequence that waits (or -1: nobody) can be admitted. Looks it up in the prefix cache.
  bool fits(int32_t index);
  // Rows that the sequence which was just found to fit has to compute.
  int32_t new_rows(int32_t index) const;
  // Moves it to the resident sequences. It begins behind what the prefix cache knows of it.
  Sequence& admit(StepPlan& plan, int32_t index);
  // Admits it with a chunk of its prompt, if there is room for one in the step.
  bool admit_chunk(StepPlan& plan, int32_t index, int32_t budget, int32_t share, int32_t& left);
  void preempt(StepPlan& plan, Sequence& s);
  // Takes from the last residents what the first that waits needs, where that comes before them.
  void make_way(StepPlan& plan);
  // The order of residents: a rank, then who came to it first, then the age.
  std::tuple<int64_t, int64_t, int64_t> place_of_resident(int32_t index) const {
    const Sequence& s = sequences_[index];
    return {options_.urgent_take_slots ? queue_rank(s) : resident_rank(s), s.turn, s.arrival};
  }
  // A sequence has come, or is over: others of its owner have other ranks now.
  void note_owner(const Sequence& s, bool has_come);
  // Brings the ranks, and both orders by them, up to date.
  void rank_by_owner();
  std::tuple<int64_t, int32_t, int64_t> place_of_owner(int32_t index) const {
    const Sequence& s = sequences_[index];
    return {s.owner, s.priority, s.arrival};
  }
  // Its blocks are free, and it waits.
  void lay_aside(Sequence& s);
  // The next plan in flight is over. Calls take(sequence, entry, result) for each that lives.
  template <typename Take>
  void end_plan(const StepPlan& plan, std::span<const StepResult> results, Take take);
  // Makes room for one more slot of resident `index`: takes blocks from the youngest sequences
  // after it that no uncommitted plan computes, then from itself when it is the last. Returns
  // whether it may be planned. A row that runs ahead takes only what is free.
  bool make_room(StepPlan& plan, size_t index);
  // The most sequences that decode in one plan.
  int32_t most_decodes() const;
  // As many of `rows` more rows as there are blocks for.
  int32_t rows_with_blocks(const Sequence& s, int32_t rows) const;
  // Rows of the next chunk of a prompt, of which [begin, end) is left. A chunk size of the schedule
  // counts all rows of the step.
  int32_t chunk(int32_t begin, int32_t end, int32_t budget, int32_t left) const;
  // Adds rows to the sequence's entry, or such an entry; the blocks exist.
  void emit(StepPlan& plan, Sequence& s, int32_t rows);
  // The same, up to the last boundary where layers have states, if the chunk does not end at `end`.
  int32_t whole_chunks(int32_t begin, int32_t end, int32_t rows) const;
  // Leaves the full blocks of its first slots, which are computed, in the prefix cache.
  void remember(Sequence& s, int32_t slots);
  void give_back_cell(Sequence& s);
  // Blocks that a resident prompt has yet to take.
  int32_t owed_blocks(const Sequence& s) const;
  void insert_waiting(Sequence& s);
  int32_t index_of(const Sequence& s) const { return static_cast<int32_t>(&s - sequences_.data()); }
  // Ends a sequence; its index is free when no plan computes it.
  void drop(Sequence& s);
  void free_index_if_idle(Sequence& s);
  void forget_gone();

  std::vector<Sequence> sequences_;  // by index
  std::vector<int32_t> free_indices_, free_cells_;
  std::unordered_map<int64_t, int32_t> index_of_;
  WaitingQueue queue_;
  std::vector<int32_t> running_;  // slots, by place_of_resident
  int32_t num_running_ = 0;
  int32_t promised_ = 0;                // blocks that resident prompts have yet to take
  std::vector<int32_t> matched_;        // cached blocks of the sequence that was found to fit
  int32_t matched_state_ = -1;          // and the cell of the states behind them
  std::vector<CellCopy> state_copies_;  // of the next plan
  std::vector<int32_t> shortest_;       // resident prompts in their order by size
  std::vector<int32_t> by_owner_;       // with urgent_take_slots: all that live, in that order
  bool ranks_are_old_ = false;          // one of them came or went
  size_t victim_end_ = 0;               // residents from here on are in flight or gone
  bool took_blocks_ = false;            // for a resident: nobody is admitted with them in this plan
  int32_t yielding_ = -1;               // index of the resident that is to come out of flight
  int64_t arrivals_ = 0, last_plan_ = 0, last_commit_ = 0;
};

// The policy that options.policy names. Throws UsageError for an unknown name.
std::unique_ptr<Scheduler> make_scheduler(const SchedulerOptions& options, BlockPool& pool,
                                          PrefixCache* cache = nullptr);
// Names that make_scheduler knows.
std::vector<std::string> scheduler_names();

}  // namespace invar
