// One text through a decoder of any spec, by the engine's kernels in some schedule and by the
// scalar definition.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "collectives/group.h"
#include "kernels/select.h"
#include "model/families/families.h"
#include "model/families/make_model.h"
#include "model/forward.h"
#include "scalar_decoder.h"

namespace invar::testing_model {

using Logits = std::vector<std::vector<float>>;

inline std::vector<int32_t> some_tokens(const DecoderSpec& spec) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 150; ++i) tokens.push_back((i * i * 7 + i * 3) % spec.vocab);
  return tokens;
}

struct Run {
  std::string set = "auto";
  Order order = Order::portable;
  int ranks = 1, chunk = 150, threads = 1;
  ExpertPlacement placement = {};
  bool is_baseline = false;
};

// One rank of a group: logits at every position.
inline Logits run_rank(const DecoderSpec& spec, const Run& how, int rank, Group& group) {
  const auto device = make_host_device();
  const Kernels kernels = select_kernels(how.order, how.set);
  const Arithmetic arithmetic{.order = how.order, .is_baseline = how.is_baseline};
  Shard shard = make_shard(spec, rank, how.ranks);
  shard.placement = how.placement;
  ThreadPool pool(how.threads);
  const auto source = dummy_weights(spec, 3);
  const DecoderWeights weights(spec, arithmetic, shard, *source, *device, pool);
  Decoder decoder(spec, arithmetic, kernels, weights, *device, &pool);
  SequenceStore kv(*device, states_of(spec, weights.shard(), {0, spec.layers}),
                   {.blocks = 8, .block_size = 32, .cells = 1, .scratch = {.chunks = 3}});
  Workspace workspace(decoder, how.chunk, how.chunk);
  const std::vector<int32_t> tokens = some_tokens(spec);
  Logits logits;
  for (int done = 0; done < std::ssize(tokens); done += how.chunk) {
    Batch batch;
    batch.sequences.push_back({{5, 1, 7, 0, 2}, 0});
    for (int i = done; i < std::min<int>(done + how.chunk, static_cast<int>(tokens.size())); ++i) {
      batch.logit_rows.push_back(static_cast<int32_t>(batch.rows.size()));
      batch.rows.push_back({.token = tokens[static_cast<size_t>(i)], .position = i});
    }
    ForwardIo io;
    forward(decoder, batch, kv, workspace, group, io);
    for (size_t begin = 0; begin < io.logits.size(); begin += static_cast<size_t>(spec.vocab))
      logits.emplace_back(io.logits.begin() + static_cast<int64_t>(begin),
                          io.logits.begin() + static_cast<int64_t>(begin) + spec.vocab);
  }
  return logits;
}

inline Logits run(const DecoderSpec& spec, const Run& how = {}) {
  const auto groups = make_inproc_groups(how.ranks);
  std::vector<Logits> of_rank(static_cast<size_t>(how.ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < how.ranks; ++rank)
      threads.emplace_back([&, rank] {
        const ScopedFlushToZero flush;
        of_rank[static_cast<size_t>(rank)] =
            run_rank(spec, how, rank, *groups[static_cast<size_t>(rank)]);
      });
  }
  return of_rank[0];
}

inline Logits evaluate(const DecoderSpec& spec, Order order = Order::portable) {
  const ScopedFlushToZero flush;
  return ScalarDecoder(spec, *dummy_weights(spec, 3), order).logits(some_tokens(spec));
}

}  // namespace invar::testing_model
