#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "kv/cell_placement.h"

namespace invar {

namespace {

void check_options(const SchedulerOptions& o, const BlockPool& pool) {
  if (o.max_num_seqs < 1) fail_usage("max_num_seqs must be at least 1, not {}", o.max_num_seqs);
  if (o.max_num_batched_tokens < o.max_num_seqs)
    fail_usage("max_num_batched_tokens ({}) must be at least max_num_seqs ({})",
               o.max_num_batched_tokens, o.max_num_seqs);
  if (o.has_states && o.max_num_batched_tokens < o.max_num_seqs + kBoundary)
    fail_usage(
        "expected max-num-batched-tokens of at least max-num-seqs + {} ({}) where layers have "
        "states, found {}",
        kBoundary, o.max_num_seqs + kBoundary, o.max_num_batched_tokens);
  if (o.max_model_len < 1) fail_usage("max_model_len must be at least 1, not {}", o.max_model_len);
  if (o.max_plans_in_flight < 1 || o.max_plans_in_flight > 4)
    fail_usage("1 to 4 plans may be in flight, not {}", o.max_plans_in_flight);
  if (pool.blocks_for(o.max_model_len) > pool.num_blocks())
    fail_usage(
        "the KV cache has {} blocks of {} slots, which is less than one sequence of {} tokens "
        "(max_model_len)",
        pool.num_blocks(), pool.block_size(), o.max_model_len);
  if (const auto& c = o.chunk_schedule) {
    if (c->low < 1 || c->high < c->low)
      fail_usage("chunk sizes must satisfy 1 <= low <= high, not low {} and high {}", c->low,
                 c->high);
    if (c->stages < 1 || c->max_tokens < c->stages)
      fail_usage("a chunk schedule needs at least one stage and a token for each, not {} and {}",
                 c->stages, c->max_tokens);
  }
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, BlockPool& pool, PrefixCache* cache)
    : options_(options), pool_(pool), cache_(cache), queue_(options.urgent_take_slots) {
  check_options(options, pool);
  shortest_.reserve(static_cast<size_t>(options.max_num_seqs));
  for (int32_t cell = options.max_num_seqs; --cell >= 0;) free_cells_.push_back(cell);
}

void Scheduler::add(const SequenceSpec& spec) {
  CHECK(spec.tokens >= 1 && spec.drafts >= 0, "a sequence without tokens");
  CHECK(spec.ahead_until <= options_.max_model_len && (spec.ahead_until == 0 || spec.drafts == 0),
        "a sequence that runs ahead has an end and no drafts");
  if (spec.tokens > options_.max_model_len)
    fail_usage("the prompt has {} tokens but the model takes at most {}", spec.tokens,
               options_.max_model_len);
  if (free_indices_.empty()) {
    free_indices_.push_back(static_cast<int32_t>(sequences_.size()));
    sequences_.push_back({.id = 0,
                          .priority = 0,
                          .owner = 0,
                          .rank = 0,
                          .turn = 0,
                          .arrival = 0,
                          .known = 0,
                          .planned = 0,
                          .prefill_end = 0,
                          .drafts = 0,
                          .ahead_until = 0,
                          .in_flight = 0,
                          .entry = 0,
                          .overtakers = 0,
                          .cell = -1,
                          .state = State::free,
                          .table = BlockTable(pool_),
                          .prefix = nullptr,
                          .cache_salt = {}});
    sequences_.back().table.reserve(options_.max_model_len);
  }
  const int32_t index = free_indices_.back();
  CHECK(index_of_.emplace(spec.id, index).second, "a sequence that lives already");
  free_indices_.pop_back();
  Sequence& s = sequences_[index];
  s.id = spec.id;
  s.priority = spec.priority;
  s.owner = spec.owner;
  s.rank = spec.priority;
  s.arrival = s.turn = arrivals_++;
  s.known = spec.tokens;
  s.planned = s.prefill_end = s.in_flight = s.overtakers = 0;
  s.drafts = spec.drafts;
  s.ahead_until = spec.ahead_until;
  s.prefix = spec.prefix;
  s.cache_salt = spec.cache_salt;
  note_owner(s, true);
  insert_waiting(s);
}

void Scheduler::remove(int64_t id) {
  const auto found = index_of_.find(id);
  if (found == index_of_.end()) return;
  Sequence& s = sequences_[found->second];
  const bool was_resident = s.is_resident();
  drop(s);
  if (was_resident) forget_gone();
}

void Scheduler::plan(int32_t budget, StepPlan& plan) {
  plan.clear();
  if (plans_in_flight() == options_.max_plans_in_flight) return;
  budget = std::min(budget, options_.max_num_batched_tokens);
  took_blocks_ = false;
  rank_by_owner();
  make_way(plan);
  victim_end_ = running_.size();
  fill(plan, budget);
  CHECK(plan.rows() <= budget, "a plan over its budget");
  if (!plan.preempted.empty()) forget_gone();
  if (plan.entries.empty()) return;
  plan.number = ++last_plan_;
  std::swap(plan.state_copies, state_copies_);
}

void Scheduler::preempt_all(std::vector<int64_t>& preempted) {
  CHECK(plans_in_flight() == 0, "preemption of sequences in flight");
  state_copies_.clear();
  for (const int32_t index : running_) {
    lay_aside(sequences_[index]);
    preempted.push_back(sequences_[index].id);
  }
  forget_gone();
}

int32_t Scheduler::admission_blocks(const Sequence& s) const {
  return pool_.blocks_for(reserves_whole_sequences() ? options_.max_model_len : s.known);
}

int32_t Scheduler::new_rows(int32_t index) const {
  return sequences_[index].known - static_cast<int32_t>(matched_.size()) * pool_.block_size();
}

int32_t Scheduler::owed_blocks(const Sequence& s) const {
  if (s.state != State::running || !s.in_prefill()) return 0;
  return std::max(0, pool_.blocks_for(s.prefill_end) - s.table.num_blocks());
}

int32_t Scheduler::cached_tokens(int32_t index) {
  const Sequence& s = sequences_[index];
  matched_.clear();
  matched_state_ = -1;
  if (cache_ && s.prefix)
    matched_state_ = cache_->match(std::span(*s.prefix).first(s.known), s.cache_salt, matched_);
  return static_cast<int32_t>(matched_.size()) * pool_.block_size();
}

bool Scheduler::fits(int32_t index) {
  if (index < 0 || num_running_ == options_.max_num_seqs || free_cells_.empty()) return false;
  const Sequence& s = sequences_[index];
  cached_tokens(index);
  // Idle blocks of the cache count as free until they are shared.
  int32_t free = pool_.free_blocks() - promised_;
  for (const int32_t block : matched_) free -= pool_.is_idle_kept(block);
  // The watermark is room for residents to grow: without any it would only keep all waiting.
  const int32_t kept = num_running_ == 0 ? 0 : watermark();
  return free - (admission_blocks(s) - std::ssize(matched_)) >= kept;
}

Scheduler::Sequence& Scheduler::admit(StepPlan& plan, int32_t index) {
  Sequence& s = sequences_[index];
  if (const int32_t oldest = queue_.oldest(); oldest != index)
    sequences_[oldest].overtakers += admission_blocks(s);
  queue_.remove(index);
  s.state = State::running;
  s.cell = free_cells_.back();
  free_cells_.pop_back();
  if (matched_state_ >= 0) state_copies_.push_back({matched_state_, s.cell});
  s.table.share(matched_);
  s.planned = static_cast<int32_t>(s.table.capacity());
  s.prefill_end = s.known;
  if (reserves_whole_sequences())
    CHECK(s.table.grow(options_.max_model_len), "an admission without its blocks");
  promised_ += owed_blocks(s);
  ++num_running_;
  const auto sooner = [&](int32_t a, int32_t b) {
    return place_of_resident(a) < place_of_resident(b);
  };
  running_.insert(std::upper_bound(running_.begin(), running_.end(), index_of(s), sooner),
                  index_of(s));
  plan.admitted.push_back(s.id);
  return s;
}

void Scheduler::preempt(StepPlan& plan, Sequence& s) {
  CHECK(s.state == State::running && s.in_flight == 0, "preemption of a sequence in flight");
  remember(s, s.planned);
  lay_aside(s);
  plan.preempted.push_back(s.id);
}

void Scheduler::lay_aside(Sequence& s) {
  promised_ -= owed_blocks(s);
  --num_running_;
  s.table.clear();
  give_back_cell(s);
  s.planned = 0;
  insert_waiting(s);
}

void Scheduler::note_owner(const Sequence& s, bool has_come) {
  if (!has_shares()) return;
  ranks_are_old_ = true;
  const auto at = std::ranges::lower_bound(by_owner_, place_of_owner(index_of(s)), {},
                                           [&](int32_t index) { return place_of_owner(index); });
  if (has_come)
    by_owner_.insert(at, index_of(s));
  else
    by_owner_.erase(at);
}

void Scheduler::rank_by_owner() {
  if (!std::exchange(ranks_are_old_, false)) return;
  queue_.clear();
  int64_t owner = 0, rank = 0;
  const int64_t now = arrivals_++;
  for (const int32_t index : by_owner_) {
    Sequence& s = sequences_[index];
    if (std::exchange(owner, s.owner) != s.owner) rank = 0;
    if (s.owner == 0) rank = s.priority;
    const int64_t before = std::exchange(s.rank, rank++);
    if (s.rank != before) s.turn = now;
    if (is_waiting(index)) insert_waiting(s);
  }
  std::ranges::sort(running_, {}, [&](int32_t index) { return place_of_resident(index); });
}

void Scheduler::make_way(StepPlan& plan) {
  yielding_ = -1;
  const int32_t urgent = options_.urgent_take_slots ? next_waiting() : -1;
  while (urgent >= 0 && !running_.empty() && !fits(urgent)) {
    Sequence& last = sequences_[running_.back()];
    if (queue_rank(last) <= queue_rank(sequences_[urgent])) return;
    if (last.in_flight > 0) {
      yielding_ = running_.back();
      return;
    }
    preempt(plan, last);
    running_.pop_back();
  }
}

void Scheduler::remember(Sequence& s, int32_t slots) {
  if (!cache_ || !s.prefix) return;
  // Where its states are once all that is planned is computed.
  const int32_t state_at = s.planned / kBoundary * kBoundary;
  const int32_t cell =
      cache_->insert(std::span(*s.prefix).first(slots), s.cache_salt, s.table, state_at);
  if (cell >= 0) state_copies_.push_back({s.cell, cell});
}

void Scheduler::give_back_cell(Sequence& s) {
  if (s.cell >= 0) free_cells_.push_back(s.cell);
  s.cell = -1;
}

bool Scheduler::make_room(StepPlan& plan, size_t index) {
  Sequence& s = running(index);
  if (s.is_ahead()) return s.table.grow(s.planned + 1);
  const int32_t owed = owed_blocks(s);
  while (!s.table.grow(s.planned + 1)) {
    bool younger_in_flight = victim_end_ < running_.size();
    while (victim_end_ > index + 1 && running(victim_end_ - 1).in_flight > 0) {
      --victim_end_;
      younger_in_flight = true;
    }
    if (victim_end_ > index + 1) {
      preempt(plan, running(--victim_end_));
      took_blocks_ = true;
    } else if (younger_in_flight || s.in_flight > 0) {
      return false;  // a plan that is committed gives blocks back, or makes it known who can
    } else {
      preempt(plan, s);
      took_blocks_ = true;
      return false;
    }
  }
  promised_ -= owed - owed_blocks(s);
  return true;
}

void Scheduler::emit(StepPlan& plan, Sequence& s, int32_t rows) {
  const bool in_prefill = s.in_prefill();
  if (in_prefill) promised_ -= owed_blocks(s);
  CHECK(s.table.grow(s.planned + rows), "a row without a block");
  const bool is_new = s.entry >= std::ssize(plan.entries) || plan.entries[s.entry].id != s.id;
  if (is_new) {
    s.entry = static_cast<int32_t>(plan.entries.size());
    plan.entries.push_back({.id = s.id, .sequence = index_of(s), .start = s.planned});
    ++s.in_flight;
  }
  StepEntry& e = plan.entries[s.entry];
  e.rows += rows;
  s.planned += rows;
  e.samples = s.planned >= s.known;
  if (in_prefill) promised_ += owed_blocks(s);
}

void Scheduler::insert_waiting(Sequence& s) {
  s.state = State::waiting;
  queue_.add(index_of(s), queue_rank(s), s.known, {s.turn, s.arrival});
}

void Scheduler::drop(Sequence& s) {
  index_of_.erase(s.id);
  note_owner(s, false);
  if (s.state == State::waiting) {
    queue_.remove(index_of(s));
  } else {
    promised_ -= owed_blocks(s);
    --num_running_;
  }
  s.state = State::removed;
  free_index_if_idle(s);
}

void Scheduler::free_index_if_idle(Sequence& s) {
  if (s.in_flight > 0) return;
  s.table.clear();
  give_back_cell(s);
  s.state = State::free;
  free_indices_.push_back(index_of(s));
}

// Takes sequences that are no longer resident out of the list.
void Scheduler::forget_gone() {
  std::erase_if(running_, [&](int32_t i) { return sequences_[i].state != State::running; });
}

std::string Scheduler::check_integrity(int32_t others) const {
  if (std::string wrong = pool_.check_integrity(); !wrong.empty()) return wrong;
  if (cache_)
    if (std::string wrong = cache_->check_integrity(); !wrong.empty()) return wrong;
  int32_t held = others + (cache_ ? cache_->size() : 0);
  int32_t referenced = 0, promised = 0, resident = 0, waiting = 0, cells = 0;
  for (const Sequence& s : sequences_) {
    held += s.table.num_blocks();
    promised += owed_blocks(s);
    resident += s.state == State::running;
    waiting += s.state == State::waiting;
    if (s.state == State::running && s.prefix && std::ssize(*s.prefix) < s.known)
      return fmt::format("sequence {} has fewer tokens than are known", s.id);
    if (s.state == State::waiting && s.table.num_blocks() > 0)
      return fmt::format("sequence {} waits and holds blocks", s.id);
    if ((s.cell >= 0) != (s.state == State::running || s.state == State::removed))
      return fmt::format("sequence {} has the cell {} in a state of other ones", s.id, s.cell);
    cells += s.cell >= 0;
    if (s.state == State::running && s.table.capacity() < s.planned)
      return fmt::format("sequence {} is planned beyond its blocks", s.id);
  }
  for (int32_t block = 0; block < pool_.num_blocks(); ++block)
    referenced += pool_.references(block);
  if (held != referenced)
    return fmt::format("{} references to blocks are counted but {} are held", referenced, held);
  if (promised != promised_)
    return fmt::format("{} blocks are promised but {} are owed", promised_, promised);
  if (resident != num_running_ || resident != std::ssize(running_))
    return fmt::format("{} sequences are resident but {} are listed", resident, running_.size());
  if (cells + std::ssize(free_cells_) != options_.max_num_seqs)
    return fmt::format("{} cells are free and {} are held of {}", free_cells_.size(), cells,
                       options_.max_num_seqs);
  if (waiting != num_waiting())
    return fmt::format("{} sequences wait but {} are listed", waiting, num_waiting());
  return {};
}

}  // namespace invar
