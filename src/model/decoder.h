// A model ready to run on one device as one rank: what it is, its weights, the kernels it uses.
#pragma once

#include <memory>

#include "device/execution.h"
#include "kernels/inference.h"
#include "model/arithmetic.h"
#include "model/decoder_weights.h"
#include "model/rope_table.h"
#include "model/weight_supply.h"

namespace invar {

struct Decoder {
  // `pool` is null on a GPU, where kernels are launched and not shared out. Device, pool and
  // weights must live as long.
  Decoder(const DecoderSpec& spec, const Arithmetic& arithmetic, const Kernels& kernels,
          const DecoderWeights& weights, Device& device, ThreadPool* pool)
      : spec(spec),
        of_parts(std::make_unique<const DecoderSpec>(spec)),
        arithmetic(arithmetic),
        kernels(kernels),
        weights(&weights),
        stream(device.make_stream()),
        execution{.device = &device, .stream = stream.get(), .pool = pool},
        embedding(weights.embedding()),
        ropes(device, spec) {
    for (int layer = 0; layer < spec.all_layers(); ++layer)
      parts.push_back(parts_of({*of_parts, layer, weights.shard()}));
  }

  Device& device() const { return *execution.device; }
  // Runs one operation on the whole team.
  template <typename Params>
  void run(Operation<Params> operation, const Params& params) const {
    execution.run(operation, params);
  }

  DecoderSpec spec;
  std::unique_ptr<const DecoderSpec> of_parts;  // the same, where it stays when a decoder moves
  Arithmetic arithmetic;
  Kernels kernels;
  const DecoderWeights* weights;
  std::unique_ptr<Stream> stream;
  Execution execution;
  Matrix embedding;                // a drafter's may be its target's
  WeightSupply* supply = nullptr;  // null: all weights are there
  RopeTables ropes;
  std::vector<LayerParts> parts;  // by layer
};

}  // namespace invar
