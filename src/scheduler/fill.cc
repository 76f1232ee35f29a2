// Tools with which policies fill a plan: decode rows, chunks of prompts, whole prompts, drafts.
#include <algorithm>

#include "base/check.h"
#include "kv/cell_placement.h"
#include "scheduler/scheduler.h"

namespace invar {

int32_t scheduled_chunk(const ChunkSchedule& c, int32_t done) {
  const int32_t stage_tokens = (c.max_tokens + c.stages - 1) / c.stages;
  const int32_t stage = std::min(done / stage_tokens, c.stages - 1);
  const int64_t steps = std::max(1, c.stages - 1);
  const int64_t rows = c.high - (int64_t{c.high} - c.low) * stage / steps;
  return std::max<int32_t>(32, static_cast<int32_t>((rows + 16) / 32 * 32));
}

int32_t Scheduler::most_decodes() const {
  const int32_t plans = options_.splits_decodes ? options_.max_plans_in_flight : 1;
  const auto decoding =
      std::ranges::count_if(running_, [&](int32_t i) { return !sequences_[i].in_prefill(); });
  return static_cast<int32_t>((decoding + plans - 1) / plans);
}

void Scheduler::add_decodes(StepPlan& plan, int32_t& left) {
  bool may_run_ahead = true;
  int32_t most = most_decodes();
  for (size_t i = 0; i < running_.size() && left > 0 && most > 0; ++i) {
    Sequence& s = running(i);
    if (!s.is_resident() || s.in_prefill()) continue;
    const bool runs_ahead = may_run_ahead && s.may_run_ahead() && running_[i] != yielding_;
    if (s.next_is_unknown() && !runs_ahead) continue;
    if (!make_room(plan, i)) {
      // Younger sequences come out of flight, so that blocks can be taken from them.
      may_run_ahead = false;
      continue;
    }
    emit(plan, s, 1);
    --left;
    --most;
  }
}

void Scheduler::add_chunks(StepPlan& plan, int32_t budget, int32_t& left) {
  const bool all_served = add_oldest(plan, budget, left - left / 2, left);
  // Blocks that were just taken from a sequence are not given to another.
  add_shortest(plan, budget, all_served && !took_blocks_, left);
}

bool Scheduler::add_oldest(StepPlan& plan, int32_t budget, int32_t share, int32_t& left) {
  const int32_t end = left - share;
  for (size_t i = 0; i < running_.size() && left > end; ++i) {
    Sequence& s = running(i);
    if (!s.is_resident() || !s.in_prefill()) continue;
    const int32_t wanted = std::min(chunk(s.planned, s.prefill_end, budget, left), left - end);
    int32_t rows = whole_chunks(s.planned, s.prefill_end, rows_with_blocks(s, wanted));
    // The oldest sequence does not wait for the blocks of younger ones.
    if (rows == 0 && wanted > 0 && i == 0 && make_room(plan, i)) rows = 1;
    if (rows == 0) return false;
    emit(plan, s, rows);
    left -= rows;
  }
  while (left > end && !took_blocks_ &&
         admit_chunk(plan, next_waiting(), budget, left - end, left)) {
  }
  return true;
}

void Scheduler::add_shortest(StepPlan& plan, int32_t budget, bool may_admit, int32_t& left) {
  const auto rows_to_go = [&](int32_t index) {
    return sequences_[index].prefill_end - sequences_[index].planned;
  };
  shortest_.clear();
  for (const int32_t index : running_)
    if (sequences_[index].is_resident() && sequences_[index].in_prefill())
      shortest_.push_back(index);
  std::ranges::sort(shortest_, {}, [&](int32_t index) {
    return std::pair(rows_to_go(index), sequences_[index].arrival);
  });
  for (size_t i = 0; left > 0;) {
    const int32_t waiting = may_admit ? or_the_oldest(queue_.shortest()) : -1;
    const bool is_resident = i < shortest_.size() &&
                             (waiting < 0 || rows_to_go(shortest_[i]) <= sequences_[waiting].known);
    if (!is_resident) {
      may_admit = may_admit && admit_chunk(plan, waiting, budget, left, left);
      if (!may_admit && i == shortest_.size()) return;
      continue;
    }
    Sequence& s = sequences_[shortest_[i++]];
    const int32_t rows =
        whole_chunks(s.planned, s.prefill_end,
                     rows_with_blocks(s, chunk(s.planned, s.prefill_end, budget, left)));
    if (rows > 0) emit(plan, s, rows);
    left -= rows;
  }
}

int32_t Scheduler::or_the_oldest(int32_t candidate) {
  const int32_t oldest = queue_.oldest();
  if (oldest < 0 || candidate < 0) return oldest;
  const int32_t taken = sequences_[oldest].overtakers + admission_blocks(sequences_[candidate]);
  return taken <= admission_blocks(sequences_[oldest]) ? candidate : oldest;
}

bool Scheduler::admit_chunk(StepPlan& plan, int32_t index, int32_t budget, int32_t share,
                            int32_t& left) {
  if (!fits(index)) return false;
  const int32_t known = sequences_[index].known;
  const int32_t begin = known - new_rows(index);
  const int32_t rows =
      whole_chunks(begin, known, std::min(chunk(begin, known, budget, left), share));
  if (rows == 0) return false;
  emit(plan, admit(plan, index), rows);
  left -= rows;
  return true;
}

void Scheduler::add_whole_prompts(StepPlan& plan, int32_t& left) {
  while (left > 0 && !took_blocks_) {
    const int32_t next = next_waiting();
    if (!fits(next) || new_rows(next) > left) return;
    Sequence& s = admit(plan, next);
    const int32_t rows = s.prefill_end - s.planned;
    emit(plan, s, rows);
    left -= rows;
  }
}

int32_t Scheduler::chunk(int32_t begin, int32_t end, int32_t budget, int32_t left) const {
  int32_t rows = std::min(end - begin, left);
  if (const auto& schedule = options_.chunk_schedule) {
    const int32_t least = options_.has_states ? kBoundary : 0;
    rows = std::min(rows, std::max(least, scheduled_chunk(*schedule, begin)) - (budget - left));
  }
  return std::max(rows, 0);
}

int32_t Scheduler::whole_chunks(int32_t begin, int32_t end, int32_t rows) const {
  if (!options_.has_states || begin + rows >= end) return rows;
  return std::max(0, (begin + rows) / kBoundary * kBoundary - begin);
}

void Scheduler::add_drafts(StepPlan& plan, int32_t& left) {
  for (StepEntry& e : plan.entries) {
    Sequence& s = sequences_[e.sequence];
    if (left == 0) return;
    if (s.drafts == 0 || e.start < s.prefill_end) continue;
    const int32_t spare = std::max(0, pool_.free_blocks() - promised_ - watermark());
    const int64_t room = s.table.capacity() + int64_t{spare} * pool_.block_size() - s.known;
    e.drafts = static_cast<int32_t>(std::max<int64_t>(
        0, std::min<int64_t>({s.drafts, left, room, options_.max_model_len - s.known})));
    CHECK(s.table.grow(s.known + e.drafts), "a draft row without a block");
    left -= e.drafts;
  }
}

int32_t Scheduler::rows_with_blocks(const Sequence& s, int32_t rows) const {
  const int64_t slots =
      s.table.capacity() + int64_t{pool_.free_blocks()} * pool_.block_size() - s.planned;
  return static_cast<int32_t>(std::min<int64_t>(rows, slots));
}

}  // namespace invar
