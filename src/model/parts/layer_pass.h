// What a part's forward computes with, of one layer in one step.
#pragma once

#include "kv/kv_storage.h"
#include "model/hooks.h"
#include "model/operations.h"

namespace invar {

struct LayerPass {
  int layer;
  const DecoderSpec& model;
  LayerSpec spec;
  const Shard& shard;
  const LayerWeights& w;
  const LayerActivations& at;
  KvLayer kv;
  float* hidden;          // [T][D], the residual stream
  const float* features;  // [T][features] of another decoder, or null
  int64_t rows;
  Operations& ops;
  const Hooks& hooks;

  template <typename Values>
  void trace(std::string_view name, const Values& x, int64_t width) const {
    hooks.trace(name, layer, x, width, rows);
  }
};

}  // namespace invar
