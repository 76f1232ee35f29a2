// Draws on a GPU from logits that stay there: the tokens that Sampler gives. Only for rows without
// masks, biases, penalties and filters, which need the host.
#pragma once

#include <span>
#include <vector>

#include "device/device.h"
#include "sampling/sampler.h"

namespace invar {

namespace cuda {

// What a draw depends on beside the logits; temperature 0 is greedy.
struct DrawRow {
  uint64_t seed;
  uint32_t position, choice;
  float temperature;
};

constexpr int32_t kDrewNotANumber = -1, kDrewNothingAllowed = -2;

// tokens[i] = the token drawn from logits[i * vocab ...], or one of the numbers above. Device
// addresses; launches on the calling thread's GPU and returns.
void draw(const float* logits, int64_t vocab, const DrawRow* rows, int64_t count, int32_t* tokens);

}  // namespace cuda

class DeviceSampler {
 public:
  explicit DeviceSampler(Device& gpu) : gpu_(gpu) {}

  // Whether this row can be drawn here; its logits are not read.
  static bool can(const SampleInput& input);
  // One token for each row of `logits`, [rows][vocab] on the device. Valid until the next call.
  std::span<const Drawn> sample(const float* logits, int64_t vocab,
                                std::span<const SampleInput> rows);

 private:
  Device& gpu_;
  DeviceArray<cuda::DrawRow> rows_;
  DeviceArray<int32_t> tokens_;
  std::vector<cuda::DrawRow> host_rows_;
  std::vector<int32_t> host_tokens_;
  std::vector<Drawn> drawn_;
};

}  // namespace invar
