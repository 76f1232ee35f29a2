// The memory of a step: activations on the device, and the step's row tables. Allocated once for
// the largest step, so that a warm step allocates nothing.
#pragma once

#include <span>
#include <vector>

#include "device/execution.h"
#include "kernels/inference.h"
#include "model/batch.h"
#include "model/control.h"
#include "model/decoder.h"
#include "model/step_tables.h"

namespace invar {

class Workspace {
 public:
  // For steps of up to `max_rows` rows of which up to `max_logit_rows` want logits and which keep
  // up to `max_taps` layers' hidden states.
  Workspace(const Decoder& decoder, int max_rows, int max_logit_rows, int max_taps = 0);

  int max_rows() const { return max_rows_; }
  int max_logit_rows() const { return max_logit_rows_; }
  size_t bytes() const;  // of device memory

 private:
  friend class ForwardPass;
  // The first `count` floats of a device array as the host sees them once the stream is waited for.
  static std::span<float> fetch(const Execution& on, const DeviceArray<float>& from,
                                const PinnedArray<float>& copy, int64_t count);

  int max_rows_, max_logit_rows_, max_taps_;
  // Device memory.
  DeviceArray<float> hidden_, qkv_, partial_, rank_logits_, logits_;
  DeviceArray<float> embedded_;  // of a module that predicts further, as joined_
  DeviceArray<std::byte> joined_;
  DeviceArray<bf16_t> q_;
  DeviceArray<std::byte> normed_, attended_, gated_;
  DeviceArray<bool> non_finite_;
  StepTableBuilder tables_;
  control::Attention control_;  // of the foil only
  // Host copies of results; unused where the host reads the device's memory itself.
  PinnedArray<float> host_logits_, host_hidden_, host_taps_;
  PinnedArray<bool> host_non_finite_;
};

}  // namespace invar
