#include "engine/model_runner.h"

#include <algorithm>
#include <barrier>
#include <exception>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "model/step_upload.h"

namespace invar {

// One tensor-parallel rank: its decoder, its keys and values, its activations.
struct ModelRunner::Rank {
  Rank(Model& model, const RunnerLimits& limits, int index, ThreadPool& pool, Group& group,
       KvStorage* storage = nullptr)
      : decoder(model.make_decoder(index, pool, limits.exit_layer)),
        own_kv(storage ? nullptr : make_storage(model.device(index), limits, decoder)),
        kv(storage ? *storage : *own_kv),
        workspace(decoder, limits.max_rows, limits.max_logit_rows, limits.max_aux_layers),
        group(group) {}

  static std::unique_ptr<KvStorage> make_storage(Device& device, const RunnerLimits& limits,
                                                 const Decoder& decoder) {
    const int layers = decoder.spec.layers;
    return std::make_unique<KvStorage>(device, limits.mtp_module ? 1 : layers, limits.blocks,
                                       limits.block_size, decoder.weights->shard().kv_heads,
                                       decoder.spec.head_dim, decoder.kernels.cache,
                                       limits.mtp_module ? layers : 0);
  }

  Decoder decoder;
  std::unique_ptr<KvStorage> own_kv;  // null where it is another runner's
  KvStorage& kv;
  Workspace workspace;
  Group& group;
  Batch stage;                // a copy of the batch with one stage's layers
  std::vector<float> hidden;  // between stages
  StepUpload copies;
  StepGraphs graphs;
};

// Ranks 1 and up each have a thread that does what rank 0's caller does.
struct ModelRunner::Team {
  explicit Team(Model& model)
      : start(model.ranks()),
        done(model.ranks()),
        groups(make_inproc_groups(model.ranks())),
        failures(static_cast<size_t>(model.ranks())) {
    const int each = model.threads_of_rank();
    for (int r = 0; r < model.ranks(); ++r) {
      pools.push_back(std::make_unique<ThreadPool>(each, r * each));
      if (!model.device(r).is_host()) staged.push_back(make_staged_group(*groups[r]));
    }
  }
  ~Team() {
    stopping = true;
    // For ranks that have no thread, since the memory for their keys and values could not be had.
    for (size_t rank = threads.size() + 1; rank < pools.size(); ++rank) (void)start.arrive();
    start.arrive_and_wait();
  }

  // The life of a further rank's thread.
  void serve(int rank) {
    if (staged.empty()) pools[rank]->pin_caller();
    while (true) {
      start.arrive_and_wait();
      if (stopping) return;
      run_or_leave(*work, rank);
      done.arrive_and_wait();
    }
  }

  // The others come to the end of the step without a rank that fails; nothing of it is taken.
  void run_or_leave(FunctionRef<void(int)> work, int rank) {
    try {
      work(rank);
    } catch (...) {
      failures[rank] = std::current_exception();
      group(rank).leave();
    }
  }
  void expect_all_ranks() const {
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
  }

  std::barrier<> start, done;
  Group& group(int rank) { return staged.empty() ? *groups[rank] : *staged[rank]; }

  std::vector<std::unique_ptr<Group>> groups, staged;  // staged: on GPUs
  std::vector<std::unique_ptr<ThreadPool>> pools;
  std::vector<std::exception_ptr> failures;  // of the ranks that have left their group
  const FunctionRef<void(int)>* work = nullptr;
  bool stopping = false;
  std::vector<std::jthread> threads;
};

ModelRunner::ModelRunner(Model& model, const RunnerLimits& limits, ThreadPool* threads,
                         std::span<KvStorage* const> storages)
    : model_(model), limits_(limits) {
  const int ranks = model.ranks();
  CHECK(storages.empty() || std::ssize(storages) == ranks, "a storage for each rank");
  const auto storage_of = [&](int rank) { return storages.empty() ? nullptr : storages[rank]; };
  if (ranks == 1) {
    ranks_.push_back(std::make_unique<Rank>(model, limits, 0, threads ? *threads : model.pool(),
                                            solo_group(), storage_of(0)));
    return;
  }
  team_ = std::make_unique<Team>(model);
  for (int r = 0; r < ranks; ++r)
    ranks_.push_back(
        std::make_unique<Rank>(model, limits, r, *team_->pools[r], team_->group(r), storage_of(r)));
  for (int r = 1; r < ranks; ++r) team_->threads.emplace_back([this, r] { team_->serve(r); });
}

ModelRunner::ModelRunner(Model& model, const RunnerLimits& limits, ThreadPool& threads,
                         Group& group)
    : model_(model), limits_(limits) {
  ranks_.push_back(std::make_unique<Rank>(model, limits, group.rank(), threads, group));
}

ModelRunner::~ModelRunner() = default;

void ModelRunner::on_every_rank(FunctionRef<void(int)> work) {
  if (!team_) return work(0);
  team_->expect_all_ranks();
  team_->work = &work;
  team_->start.arrive_and_wait();
  team_->run_or_leave(work, 0);
  team_->done.arrive_and_wait();
  team_->expect_all_ranks();
}

void ModelRunner::run(const Batch& batch, ForwardIo& io) {
  const std::span<float> hidden = io.hidden;
  const bool begins_findings = io.begins_findings;
  on_every_rank([&](int rank) {
    ForwardIo own;  // of a further rank: nobody reads what it leaves
    own.hidden = hidden;
    own.begins_findings = begins_findings;
    run_stages(*ranks_[rank], batch, rank == 0 ? io : own);
  });
}

// The layers from `begin` on that one forward runs: up to a cut or a layer that is left out.
int ModelRunner::end_of_stage(int begin, int last) const {
  const std::vector<int>& cuts = model_.options().layer_cuts;
  int end = begin + 1;
  while (end < last && !std::ranges::binary_search(cuts, end) && !is_skipped(end)) ++end;
  return std::min(end, last);
}

void ModelRunner::run_stages(Rank& rank, const Batch& batch, ForwardIo& io) {
  const int last = batch.layer_end < 0 ? rank.decoder.spec.layers : batch.layer_end;
  StepGraphs* graphs = records_steps_ ? &rank.graphs : nullptr;
  if (model_.options().layer_cuts.empty() && skipped_.empty())
    return forward(rank.decoder, batch, rank.kv, rank.workspace, rank.group, io, graphs);
  rank.stage = batch;
  int begin = batch.layer_begin;
  do {
    rank.stage.layer_begin = begin;
    rank.stage.layer_end = end_of_stage(begin, last);
    forward(rank.decoder, rank.stage, rank.kv, rank.workspace, rank.group, io, graphs);
    io.begins_findings = false;
    // The next stage gets a copy, as another process would.
    rank.hidden.assign(io.hidden.begin(), io.hidden.end());
    io.hidden = rank.hidden;
    begin = rank.stage.layer_end;
    while (is_skipped(begin)) ++begin;
  } while (begin < last);
}

int64_t ModelRunner::recorded_steps() const {
  return ranks_[0]->graphs.launched();
}

std::vector<KvStorage*> ModelRunner::storages() {
  std::vector<KvStorage*> storages;
  for (const auto& rank : ranks_) storages.push_back(&rank->kv);
  return storages;
}

const Placement& ModelRunner::placement() const {
  return ranks_[0]->workspace.table_builder.placement();
}

const Decoder& ModelRunner::decoder() const {
  return ranks_[0]->decoder;
}

int64_t ModelRunner::workspace_bytes() const {
  int64_t total = 0;
  for (const auto& rank : ranks_) total += static_cast<int64_t>(rank->workspace.bytes());
  return total;
}

void ModelRunner::copy_slots(const std::vector<SlotCopy>& copies) {
  on_every_rank([&](int index) {
    Rank& rank = *ranks_[index];
    const Execution& on = rank.decoder.execution;
    rank.copies.begin(on, StepUpload::bytes_of<SlotCopy>(copies.size()));
    const SlotCopy* list = rank.copies.put(std::span<const SlotCopy>(copies));
    rank.copies.send(on);
    for (const KvLayer& layer : rank.kv.layers())
      rank.decoder.run(rank.decoder.kernels.copy_slots,
                       CopySlotsParams{layer, list, std::ssize(copies)});
  });
}

}  // namespace invar
