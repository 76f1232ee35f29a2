#include "scheduler/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

void check_options(const SchedulerOptions& o, const BlockPool& pool) {
  if (o.max_num_seqs < 1) fail_usage("max_num_seqs must be at least 1, not {}", o.max_num_seqs);
  if (o.max_num_batched_tokens < o.max_num_seqs)
    fail_usage("max_num_batched_tokens ({}) must be at least max_num_seqs ({})",
               o.max_num_batched_tokens, o.max_num_seqs);
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

int32_t scheduled_chunk(const ChunkSchedule& c, int32_t done) {
  const int32_t stage_tokens = (c.max_tokens + c.stages - 1) / c.stages;
  const int32_t stage = std::min(done / stage_tokens, c.stages - 1);
  const int64_t steps = std::max(1, c.stages - 1);
  const int64_t rows = c.high - (int64_t{c.high} - c.low) * stage / steps;
  return std::max<int32_t>(32, static_cast<int32_t>((rows + 16) / 32 * 32));
}

Scheduler::Scheduler(const SchedulerOptions& options, BlockPool& pool, PrefixCache* cache)
    : options_(options), pool_(pool), cache_(cache) {
  check_options(options, pool);
}

void Scheduler::add(const SequenceSpec& spec) {
  CHECK(spec.tokens >= 1 && spec.drafts >= 0, "a sequence without tokens");
  if (spec.tokens > options_.max_model_len)
    fail_usage("the prompt has {} tokens but the model takes at most {}", spec.tokens,
               options_.max_model_len);
  if (free_indices_.empty()) {
    free_indices_.push_back(static_cast<int32_t>(sequences_.size()));
    sequences_.push_back({.id = 0,
                          .priority = 0,
                          .arrival = 0,
                          .known = 0,
                          .planned = 0,
                          .prefill_end = 0,
                          .drafts = 0,
                          .in_flight = 0,
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
  s.arrival = arrivals_++;
  s.known = spec.tokens;
  s.planned = s.prefill_end = s.in_flight = 0;
  s.drafts = spec.drafts;
  s.prefix = spec.prefix;
  s.cache_salt = spec.cache_salt;
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

void Scheduler::set_drafts(int64_t id, int32_t drafts) {
  const auto found = index_of_.find(id);
  if (found != index_of_.end()) sequences_[found->second].drafts = drafts;
}

void Scheduler::plan(int32_t budget, StepPlan& plan) {
  plan.clear();
  if (plans_in_flight() == options_.max_plans_in_flight) return;
  budget = std::min(budget, options_.max_num_batched_tokens);
  victim_end_ = running_.size();
  fill(plan, budget);
  CHECK(plan.rows() <= budget, "a plan over its budget");
  if (!plan.preempted.empty()) forget_gone();
  if (!plan.entries.empty()) plan.number = ++last_plan_;
}

void Scheduler::commit(const StepPlan& plan, std::span<const StepResult> results) {
  if (plan.entries.empty()) return;
  CHECK(plan.number == last_commit_ + 1, "plans are committed in their order");
  CHECK(results.size() == plan.entries.size(), "one result for each entry");
  last_commit_ = plan.number;
  bool some_left = false;
  for (size_t i = 0; i < results.size(); ++i) {
    const StepEntry& e = plan.entries[i];
    const StepResult& r = results[i];
    Sequence& s = sequences_[e.sequence];
    CHECK(s.id == e.id && s.in_flight > 0, "a result for a sequence that was not planned");
    --s.in_flight;
    if (s.state == State::removed) {
      free_index_if_idle(s);
      continue;
    }
    CHECK(r.new_tokens <= (e.samples ? 1 + e.drafts : 0) &&
              (r.finished || r.new_tokens >= int32_t{e.samples}),
          "a sampling entry gives one token and at most its drafts, any other none");
    if (r.new_tokens > 0) {
      s.known += r.new_tokens;
      s.planned = s.known - 1;
      CHECK(s.known <= options_.max_model_len, "a sequence longer than the model allows");
      if (e.drafts > 0 && !reserves_whole_sequences()) s.table.truncate(s.planned);
      if (r.finished || e.start < s.prefill_end) remember(s);
    }
    if (r.finished) {
      drop(s);
      some_left = true;
    }
  }
  if (some_left) forget_gone();
}

void Scheduler::add_decodes(StepPlan& plan, int32_t& left) {
  for (size_t i = 0; i < running_.size() && left > 0; ++i) {
    Sequence& s = running(i);
    if (!s.is_resident() || s.next_is_unknown() || s.in_prefill() || !make_room(plan, i)) continue;
    emit(plan, s, 1);
    --left;
  }
}

void Scheduler::add_chunks(StepPlan& plan, int32_t budget, int32_t& left) {
  bool all_served = true;
  for (size_t i = 0; i < running_.size() && left > 0; ++i) {
    Sequence& s = running(i);
    if (!s.is_resident() || !s.in_prefill()) continue;
    const int32_t wanted = chunk(s.planned, s.prefill_end, budget, left);
    int32_t rows = rows_with_blocks(s, wanted);
    // The oldest sequence does not wait for the blocks of younger ones.
    if (rows == 0 && wanted > 0 && i == 0 && make_room(plan, i)) rows = 1;
    if (rows > 0) emit(plan, s, rows);
    left -= rows;
    all_served &= rows > 0;
  }
  // A prompt never overtakes one that got nothing, and blocks that were just taken from a sequence
  // are not given to another.
  while (left > 0 && all_served && plan.preempted.empty() && may_admit()) {
    const int32_t known = sequences_[waiting_.front().sequence].known;
    const int32_t rows = chunk(known - head_rows(), known, budget, left);
    if (rows == 0) return;
    emit(plan, admit(plan), rows);
    left -= rows;
  }
}

void Scheduler::add_whole_prompts(StepPlan& plan, int32_t& left) {
  while (left > 0 && plan.preempted.empty() && may_admit() && head_rows() <= left) {
    Sequence& s = admit(plan);
    const int32_t rows = s.prefill_end - s.planned;
    emit(plan, s, rows);
    left -= rows;
  }
}

int32_t Scheduler::admission_blocks(const Sequence& s) const {
  return pool_.blocks_for(reserves_whole_sequences() ? options_.max_model_len : s.known);
}

int32_t Scheduler::head_rows() const {
  return sequences_[waiting_.front().sequence].known -
         static_cast<int32_t>(matched_.size()) * pool_.block_size();
}

int32_t Scheduler::chunk(int32_t begin, int32_t end, int32_t budget, int32_t left) const {
  int32_t rows = std::min(end - begin, left);
  if (const auto& schedule = options_.chunk_schedule)
    rows = std::min(rows, scheduled_chunk(*schedule, begin) - (budget - left));
  return std::max(rows, 0);
}

int32_t Scheduler::owed_blocks(const Sequence& s) const {
  if (s.state != State::running || !s.in_prefill()) return 0;
  return std::max(0, pool_.blocks_for(s.prefill_end) - s.table.num_blocks());
}

bool Scheduler::may_admit() {
  const int32_t head = head_of_queue();
  if (head < 0 || num_running_ == options_.max_num_seqs) return false;
  const Sequence& s = sequences_[head];
  matched_.clear();
  if (cache_ && s.prefix)
    cache_->match(std::span(*s.prefix).first(s.known), s.cache_salt, matched_);
  // Idle blocks of the cache count as free until they are shared.
  int32_t free = pool_.free_blocks() - promised_;
  for (const int32_t block : matched_) free -= pool_.is_idle_kept(block);
  // The watermark is room for residents to grow: without any it would only keep the head waiting.
  const int32_t kept = num_running_ == 0 ? 0 : watermark();
  return free - (admission_blocks(s) - std::ssize(matched_)) >= kept;
}

Scheduler::Sequence& Scheduler::admit(StepPlan& plan) {
  Sequence& s = sequences_[waiting_.front().sequence];
  pop_head();
  --num_waiting_;
  s.state = State::running;
  s.table.share(matched_);
  s.planned = static_cast<int32_t>(s.table.capacity());
  s.prefill_end = s.known;
  if (reserves_whole_sequences())
    CHECK(s.table.grow(options_.max_model_len), "an admission without its blocks");
  promised_ += owed_blocks(s);
  ++num_running_;
  const auto older = [&](int32_t a, int32_t b) {
    return sequences_[a].arrival < sequences_[b].arrival;
  };
  running_.insert(std::upper_bound(running_.begin(), running_.end(), index_of(s), older),
                  index_of(s));
  plan.admitted.push_back(s.id);
  return s;
}

void Scheduler::preempt(StepPlan& plan, Sequence& s) {
  CHECK(s.state == State::running && s.in_flight == 0, "preemption of a sequence in flight");
  promised_ -= owed_blocks(s);
  --num_running_;
  remember(s);
  s.table.clear();
  s.planned = 0;
  insert_waiting(s);
  plan.preempted.push_back(s.id);
}

void Scheduler::remember(Sequence& s) {
  if (cache_ && s.prefix)
    cache_->insert(std::span(*s.prefix).first(s.planned), s.cache_salt, s.table);
}

bool Scheduler::make_room(StepPlan& plan, size_t index) {
  Sequence& s = running(index);
  while (!s.table.grow(s.planned + 1)) {
    bool younger_in_flight = victim_end_ < running_.size();
    while (victim_end_ > index + 1 && running(victim_end_ - 1).in_flight > 0) {
      --victim_end_;
      younger_in_flight = true;
    }
    if (victim_end_ > index + 1) {
      preempt(plan, running(--victim_end_));
    } else if (younger_in_flight) {
      return false;  // one of them will give its blocks back
    } else {
      preempt(plan, s);
      return false;
    }
  }
  return true;
}

int32_t Scheduler::rows_with_blocks(const Sequence& s, int32_t rows) const {
  const int64_t slots =
      s.table.capacity() + int64_t{pool_.free_blocks()} * pool_.block_size() - s.planned;
  return static_cast<int32_t>(std::min<int64_t>(rows, slots));
}

void Scheduler::emit(StepPlan& plan, Sequence& s, int32_t rows) {
  const bool in_prefill = s.in_prefill();
  if (in_prefill) promised_ -= owed_blocks(s);
  CHECK(s.table.grow(s.planned + rows), "a row without a block");
  StepEntry& e = plan.entries.emplace_back();
  e.id = s.id;
  e.sequence = index_of(s);
  e.start = s.planned;
  e.rows = rows;
  e.samples = s.planned + rows == s.known;
  s.planned += rows;
  ++s.in_flight;
  if (in_prefill) promised_ += owed_blocks(s);
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

void Scheduler::insert_waiting(Sequence& s) {
  s.state = State::waiting;
  ++num_waiting_;
  waiting_.push_back({s.priority, s.arrival, index_of(s)});
  std::push_heap(waiting_.begin(), waiting_.end());
}

bool Scheduler::still_waits(const Waiting& entry) const {
  const Sequence& s = sequences_[entry.sequence];
  return s.state == State::waiting && s.arrival == entry.arrival;  // no two arrivals are equal
}

int32_t Scheduler::head_of_queue() {
  while (!waiting_.empty() && !still_waits(waiting_.front())) pop_head();
  return waiting_.empty() ? -1 : waiting_.front().sequence;
}

void Scheduler::pop_head() {
  std::pop_heap(waiting_.begin(), waiting_.end());
  waiting_.pop_back();
}

// When they are more than the rest, so that each costs its removal once.
void Scheduler::forget_stale_entries() {
  if (std::ssize(waiting_) <= 2 * int64_t{num_waiting_} + 64) return;
  std::erase_if(waiting_, [&](const Waiting& entry) { return !still_waits(entry); });
  std::make_heap(waiting_.begin(), waiting_.end());
}

void Scheduler::drop(Sequence& s) {
  index_of_.erase(s.id);
  const bool waited = s.state == State::waiting;
  if (!waited) promised_ -= owed_blocks(s);
  --(waited ? num_waiting_ : num_running_);
  s.state = State::removed;
  free_index_if_idle(s);
  if (waited) forget_stale_entries();
}

void Scheduler::free_index_if_idle(Sequence& s) {
  if (s.in_flight > 0) return;
  s.table.clear();
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
  int32_t referenced = 0, promised = 0, resident = 0, waiting = 0;
  for (const Sequence& s : sequences_) {
    held += s.table.num_blocks();
    promised += owed_blocks(s);
    resident += s.state == State::running;
    waiting += s.state == State::waiting;
    if (s.state == State::running && s.prefix && std::ssize(*s.prefix) < s.known)
      return fmt::format("sequence {} has fewer tokens than are known", s.id);
    if (s.state == State::waiting && s.table.num_blocks() > 0)
      return fmt::format("sequence {} waits and holds blocks", s.id);
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
  if (waiting != num_waiting())
    return fmt::format("{} sequences wait but {} are listed", waiting, num_waiting());
  return {};
}

}  // namespace invar
