#include "audit_axes.h"

#include <fmt/format.h>

#include <random>

#include "audit_draft_axes.h"
#include "device/cuda_device.h"
#include "engine/runner.h"
#include "kernels/select.h"
#include "scheduler/policies.h"

namespace invar::cli {

namespace {

// Memory for the longest sequence `times` over.
int64_t blocks_for(const DecoderSpec& spec, const Schedule& base, int times) {
  const int slots = base.engine.block_size;
  const int64_t blocks = (base.engine.scheduler.max_model_len + slots - 1) / slots;
  const CacheType type = base.model.weights == "exact" ? CacheType::f32 : CacheType::bf16;
  return times * blocks * SequenceStore::block_bytes(states_of(spec), slots, type);
}

// Rows that a step has beside one for each sequence: a prompt of a model whose layers have states
// is cut where these move.
int prompt_rows(const DecoderSpec& spec) {
  return has_states(spec) ? kBoundary : 0;
}

// Memory was counted for blocks alone: states come on top.
void add_states(Schedule& s, const DecoderSpec& spec) {
  if (!has_states(spec) || s.engine.kv_bytes == 0) return;
  const int sequences = s.engine.scheduler.max_num_seqs;
  int draft_cells = 0;
  if (const auto& o = s.replay)
    draft_cells =
        Runner::draft_cells(sequences, o->branches > 1, o->num_speculative_tokens * o->branches);
  const RunnerLimits limits{.max_rows = s.engine.scheduler.max_num_batched_tokens,
                            .cells = sequences,
                            .draft_cells = draft_cells,
                            .snapshots = s.engine.prefix_caching ? 2 * sequences : 0};
  const CacheType type = s.model.weights == "exact" ? CacheType::f32 : CacheType::bf16;
  s.engine.kv_bytes += Runner::cell_bytes(states_of(spec), limits, type);
}

// Two pipeline stages, the second from layer `cut` on.
void divide(ModelOptions& model, int cut) {
  model.stages = 2;
  model.layer_cuts = {cut};
}

// Every axis at once, as the seed has it: when and where a request is computed, by which workers
// and beside which others.
Schedule random_schedule(const Schedule& base, const DecoderSpec& spec, uint32_t seed, int live) {
  std::mt19937 random(9000 + seed);
  const auto below = [&](size_t n) { return static_cast<int>(random() % n); };
  Schedule s = base;
  s.label = fmt::format("schedule {}", seed);
  s.engine.block_size = 32 << below(3);
  s.engine.prefix_caching = below(2);
  s.rounds = s.engine.prefix_caching ? 1 + below(2) : 1;
  if (below(3) == 0) s.engine.kv_bytes = blocks_for(spec, base, std::max(2, live / 16));
  SchedulerOptions& o = s.engine.scheduler;
  o.policy = scheduler_names()[seed % scheduler_names().size()];
  o.max_num_seqs = live + below(live);
  // Some compute prompts whole.
  o.max_num_batched_tokens =
      std::max(o.max_num_seqs + prompt_rows(spec) + below(400), o.max_model_len * below(2));
  if (computes_whole_prompts(o.policy))
    o.max_num_batched_tokens = std::max(o.max_num_batched_tokens, o.max_model_len);
  std::vector<std::string> sets;
  for (const std::string& set : instruction_sets())
    if (is_supported(set) && set != "scalar") sets.push_back(set);
  if (base.model.device == "cpu" && !sets.empty())
    s.model.instruction_set = sets[static_cast<size_t>(below(sets.size()))];
  s.model.threads = 1 + below(3);
  for (int most = most_ranks(spec); s.model.ranks * 2 <= most && below(2);) s.model.ranks *= 2;
  if (most_stages(spec) > 1 && below(2)) divide(s.model, 1 + below(spec.layers - 1));
  if (routed_columns(spec) > 0) {
    s.model.expert_placement = fmt::format("shuffled:{}", seed);
    s.model.redundant_experts = static_cast<int>(seed % 2);
  }
  s.neighbours = live + 40;
  s.at_once = live + 20;
  s.arrival = seed;
  if (below(4) == 0) s.replay = random_trees(seed);
  s.engine.async_scheduling = below(2);
  return s;
}

// ---- Neighbours and times ----

Axis batch_sizes(bool full, const Schedule& base) {
  Axis axis{"batch and place", {}, true};
  vary(axis, base, "one request at a time").one_at_a_time = true;
  for (const int n : full ? std::vector<int>{0, 1, 3, 7, 15, 31, 56} : std::vector<int>{0, 7, 56}) {
    Schedule& s = vary(axis, base, fmt::format("{} neighbours", n));
    s.neighbours = n;
    s.arrival = n;
  }
  return axis;
}

// Steps of so many rows, where a prompt needs no more.
void limit_rows(Schedule& s, int rows, const DecoderSpec& spec) {
  s.engine.scheduler.max_num_seqs = std::min(rows, s.engine.scheduler.max_num_seqs);
  s.engine.scheduler.max_num_batched_tokens = rows + prompt_rows(spec);
}

Axis chunk_cuts(bool full, const Schedule& base, const DecoderSpec& spec) {
  Axis axis{"chunk cuts", {}, true};
  for (const int rows :
       full ? std::vector<int>{1, 2, 15, 17, 32, 100, 300, 1024} : std::vector<int>{9, 40, 300})
    limit_rows(vary(axis, base, fmt::format("steps of {} rows", rows + prompt_rows(spec))), rows,
               spec);
  vary(axis, base, "chunks that shrink").engine.scheduler.chunk_schedule =
      ChunkSchedule{.low = 32, .high = 96, .max_tokens = 192, .stages = 3};
  return axis;
}

Axis arrival_orders(bool full, const Schedule& base) {
  Axis axis{"arrival order", {}, true};
  for (uint32_t seed = 1; seed <= (full ? 8u : 3u); ++seed)
    vary(axis, base, fmt::format("order {}", seed)).arrival = seed;
  return axis;
}

Axis policies(const Schedule& base) {
  Axis axis{"scheduling policy", {}, true};
  for (const std::string& policy : scheduler_names()) {
    Schedule& s = vary(axis, base, policy);
    s.engine.scheduler.policy = policy;
    // Some compute prompts whole.
    s.engine.scheduler.max_num_batched_tokens = s.engine.scheduler.max_model_len;
    s.neighbours = 7;
    s.arrival = 7;
  }
  return axis;
}

// ---- Workers ----

Axis threads(const Schedule& base) {
  Axis axis{"threads", {}, false};
  for (const int n : {1, 2, 3}) vary(axis, base, fmt::format("{} threads", n)).model.threads = n;
  return axis;
}

// The scalar one is slow, and here only where there are not two others.
Axis sets(bool full, const Schedule& base) {
  Axis axis{"instruction set", {}, false};
  const auto supported = std::ranges::count_if(
      instruction_sets(), [](const std::string& set) { return is_supported(set); });
  for (const std::string& set : instruction_sets())
    if (is_supported(set) && (full || supported < 3 || set != "scalar"))
      vary(axis, base, set).model.instruction_set = set;
  return axis;
}

// Only the CPU where there is no GPU.
Axis devices(const Schedule& base) {
  Axis axis{"device", {}, false};
  vary(axis, base, "cpu").model.device = "cpu";
  for (int i = 0; i < cuda_device_count(); ++i) {
    if (!cuda_device_is_usable(i)) continue;
    Schedule& s = vary(axis, base, fmt::format("cuda:{}", i));
    s.model.device = s.label;
    s.model.instruction_set = "auto";
  }
  return axis;
}

Axis ranks(const Schedule& base, const DecoderSpec& spec) {
  Axis axis{"ranks", {}, true};
  for (int size = 1; size <= most_ranks(spec); size *= 2)
    vary(axis, base, fmt::format("{} ranks", size)).model.ranks = size;
  if (base.model.device == "cpu" && most_ranks(spec) > 1) {
    Schedule& s = vary(axis, base, "2 ranks, a process each");
    s.model.ranks = 2;
    s.model.executor = "mp";
  }
  return axis;
}

// Experts lie in other orders, some of them twice, and on other ranks. The baseline adds a row's
// experts in the order in which they lie, as engines do that add what arrives.
Axis expert_order(bool full, const Schedule& base, const DecoderSpec& spec) {
  Axis axis{"order of experts", {}, true};
  int fewest = Routing::kMaxExperts;
  for (const LayerSpec& layer : spec.layer_specs)
    if (layer.experts()) fewest = std::min(fewest, layer.experts()->routing.experts);
  const auto place = [&](int ranks, const std::string& strategy, int copies) {
    Schedule& s = vary(axis, base, fmt::format("{} ranks, {}, {} twice", ranks, strategy, copies));
    s.model.ranks = ranks;
    s.model.expert_placement = strategy;
    s.model.redundant_experts = copies;
  };
  const int ranks = base.model.ranks;
  place(ranks, "linear", 0);
  place(ranks, "linear", fewest);
  for (int seed = 1; seed <= (full ? 6 : 2); ++seed)
    place(ranks, fmt::format("shuffled:{}", seed), seed % 2 ? 0 : fewest / 2);
  for (int size = 2; size <= most_ranks(spec) && (full || size == 2); size *= 2) {
    place(size, "round_robin", 0);
    place(size, "shuffled:7", 1);
  }
  return axis;
}

Axis layer_cuts(bool full, const Schedule& base, const DecoderSpec& spec) {
  Axis axis{"layer cuts", {}, false};
  vary(axis, base, "whole");
  for (int cut = 1; cut < spec.layers; cut += full ? 1 : 2)
    divide(vary(axis, base, fmt::format("cut at {}", cut)).model, cut);
  return axis;
}

Axis replicas(const Schedule& base, const DecoderSpec& spec) {
  Axis axis{"replicas", {}, true};
  for (const int count : {1, 2, 3}) {
    Schedule& s = vary(axis, base, fmt::format("{} replicas", count));
    s.replicas = count;
    s.neighbours = 7;
    s.engine.kv_bytes = blocks_for(spec, base, 2);
    s.model.threads = 1;
  }
  return axis;
}

#ifdef INVAR_HAVE_SERVER
Axis engine_process(const Schedule& base) {
  Axis axis{"engine's process", {}, false};
  vary(axis, base, "here");
  vary(axis, base, "a server's").place = Schedule::Place::apart;
  vary(axis, base, "killed in the middle").place = Schedule::Place::killed;
  return axis;
}
#endif

// The weights become others and their own again, as with POST /admin/weights or a trainer's.
Axis weight_swaps(const Schedule& base) {
  Axis axis{"weight swaps", {}, false};
  vary(axis, base, "as loaded");
  Schedule& s = vary(axis, base, "others and back");
  s.swaps_weights = true;
  s.rounds = 2;
  return axis;
}

Axis restart(const Schedule& base) {
  Axis axis{"restart", {}, false};
  vary(axis, base, "this process");
  vary(axis, base, "another process").elsewhere = true;
  return axis;
}

// ---- Memory ----

Axis block_sizes(const Schedule& base) {
  Axis axis{"block size", {}, false};
  for (const int slots : {32, 64, 128})
    vary(axis, base, fmt::format("{} slots", slots)).engine.block_size = slots;
  return axis;
}

Axis prefix_cache(const Schedule& base, const DecoderSpec& spec) {
  Axis axis{"prefix cache", {}, true, true};
  vary(axis, base, "off").engine.prefix_caching = false;
  vary(axis, base, "cold");
  vary(axis, base, "warm").rounds = 2;
  Schedule& evicted = vary(axis, base, "evicted");
  evicted.rounds = 2;
  evicted.neighbours = 20;
  evicted.engine.kv_bytes = blocks_for(spec, base, 1);
  return axis;
}

Axis preemption(const Schedule& base, const DecoderSpec& spec) {
  Axis axis{"preemption", {}, true, false, true};
  vary(axis, base, "room for all");
  for (const bool caching : {false, true}) {
    Schedule& s = vary(axis, base, caching ? "little room" : "little room, no cache");
    s.engine.prefix_caching = caching;
    s.engine.kv_bytes = blocks_for(spec, base, 1);
    s.neighbours = 20;
  }
  for (Schedule& s : axis.schedules) s.outgrows_context = true;
  return axis;
}

// An answer, above all its length, does not depend on how much memory the cache happens to have.
Axis cache_sizes(bool full, const Schedule& base, const DecoderSpec& spec) {
  Axis axis{"cache size", {}, true, false, true};
  for (const int sequences : full ? std::vector<int>{1, 2, 3, 5, 8} : std::vector<int>{1, 3}) {
    Schedule& s = vary(axis, base, fmt::format("{} sequences of the context", sequences));
    s.engine.kv_bytes = blocks_for(spec, base, sequences);
    s.fills_context = true;
    s.neighbours = 20;
  }
  vary(axis, base, "room for all").fills_context = true;
  return axis;
}

Axis steps_in_flight(const Schedule& base) {
  Axis axis{.name = "steps in flight", .control_differs = false, .expects_ahead = true};
  for (const bool two : {false, true}) {
    Schedule& s = vary(axis, base, two ? "two" : "one");
    s.engine.async_scheduling = two;
    s.neighbours = 7;
  }
  return axis;
}

// Beside requests of other adapters and of none, in turn where there is room for one, on ranks and
// stages, with drafts and with little room; where a GPU computes, on the CPU, too.
Axis adapters(const Schedule& base, const DecoderSpec& spec) {
  Axis axis{"adapters", {}, false};
  const auto with = [&](std::string label, int neighbours, int count) -> Schedule& {
    Schedule& s = vary(axis, base, std::move(label));
    s.adapters = count;
    s.adapter_user = base.model.adapter_user();
    s.neighbours = neighbours;
    s.engine.adapters = {.most = 2 * Schedule::kMostAdapters, .most_rank = Schedule::kAdapterRank};
    return s;
  };
  with("one request at a time", 0, 1).one_at_a_time = true;
  with("alone", 0, 1);
  with("beside one more", 12, 1);
  with("beside many", 30, Schedule::kMostAdapters).arrival = 5;
  with("a slot for one", 12, Schedule::kMostAdapters).engine.adapters.most = 1;
  limit_rows(with("small steps", 12, 3), 17, spec);
  Schedule& little = with("little room", 20, 3);
  little.engine.kv_bytes = blocks_for(spec, base, 1);
  with("drafts", 3, 2).replay = random_trees(2);
  with("cached", 7, 2).rounds = 2;
  if (most_ranks(spec) > 1) with("2 ranks", 7, 2).model.ranks = 2;
  if (most_stages(spec) > 1) divide(with("2 stages", 7, 2).model, 1);
  if (base.model.device != "cpu") with("on the CPU", 7, 2).model.device = "cpu";
  return axis;
}

Axis all_together(bool full, const Schedule& base, const DecoderSpec& spec) {
  const int live = full ? 256 : 32;
  Axis axis{"all together", {}, true, true, true, live};
  for (uint32_t seed = 1; seed <= (full ? 20u : 5u); ++seed)
    axis.schedules.push_back(random_schedule(base, spec, seed, live));
  return axis;
}

}  // namespace

Schedule& vary(Axis& axis, const Schedule& base, std::string label) {
  Schedule& s = axis.schedules.emplace_back(base);
  s.label = std::move(label);
  return s;
}

std::vector<Axis> make_axes(bool full, const Schedule& base, const DecoderSpec& spec) {
  const bool on_gpu = base.model.device != "cpu";
  std::vector<Axis> axes = {batch_sizes(full, base), chunk_cuts(full, base, spec),
                            arrival_orders(full, base), threads(base)};
  if (!on_gpu) axes.push_back(sets(full, base));
  if (Axis all = devices(base); all.schedules.size() > 1) axes.push_back(std::move(all));
  axes.push_back(block_sizes(base));
  if (Axis all = ranks(base, spec); all.schedules.size() > 1) axes.push_back(std::move(all));
  if (routed_columns(spec) > 0) axes.push_back(expert_order(full, base, spec));
  if (most_stages(spec) == spec.layers) axes.push_back(layer_cuts(full, base, spec));
  axes.push_back(policies(base));
  axes.push_back(prefix_cache(base, spec));
  axes.push_back(preemption(base, spec));
  axes.push_back(cache_sizes(full, base, spec));
  if (!on_gpu) axes.push_back(replicas(base, spec));
  // Over ranks and stages a step begins when the one before it is committed.
  if (base.model.ranks == 1 && !base.model.is_pipeline()) axes.push_back(steps_in_flight(base));
  axes.push_back(draft_trees(full, base));
  axes.push_back(drafters(full, base, spec));
  if (MadeAdapters::exist_for(spec, base.model.adapter_user()))
    axes.push_back(adapters(base, spec));
  axes.push_back(rejection(base));
  axes.push_back(all_together(full, base, spec));
  axes.push_back(restart(base));
  axes.push_back(weight_swaps(base));
#ifdef INVAR_HAVE_SERVER
  // The command line of a server's engine names one rank and one stage here.
  if (base.model.ranks == 1 && !base.model.is_pipeline()) axes.push_back(engine_process(base));
#endif
  for (Axis& axis : axes)
    for (Schedule& s : axis.schedules) add_states(s, spec);
  return axes;
}

}  // namespace invar::cli
