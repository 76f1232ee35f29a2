#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "device/cuda/gpu.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/hopper_sample.h"
#include "kernels/cuda/int8.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/stored_slots.h"
#include "kernels/cuda/training_operations.h"

namespace invar::cuda {

std::span<const ProductSchedule> hopper_product_schedules();
std::span<const ProductSchedule> portable_product_schedules();

std::span<const ProductSchedule> product_schedules(Order order) {
  return order == Order::hopper ? hopper_product_schedules() : portable_product_schedules();
}

const ProductSchedule& chosen_schedule(Order order, const ProductShape& shape) {
  const ProductSchedule* best = nullptr;
  double lowest = 0;
  for (const ProductSchedule& s : product_schedules(order)) {
    if (!s.can(shape)) continue;
    const double cost = s.cost(shape);
    if (!best || cost < lowest) best = &s, lowest = cost;
  }
  CHECK(best, "no schedule for a product");
  return *best;
}

namespace {

void check_types(const Activation& x, const Matrix& w, Order order) {
  CHECK(x.type == storage_of(w.type).element, "activations and weights of a product have one type");
  CHECK(order == Order::portable || x.type == DType::bf16, "the order hopper is defined for bf16");
}

template <Order order>
void matmul_of_blocks(const MatmulParams& p, const Execution& on);
template <Order order>
void gated_matmul_of_blocks(const GatedMatmulParams& p, const Execution& on);

template <Order order>
void matmul(const MatmulParams& p, const Execution& on) {
  check_types(p.x, p.w, order);
  if (p.rows == 0) return;
  if (storage_of(p.w.type).has_blocks()) return matmul_of_blocks<order>(p, on);
  chosen_schedule(order, {p.rows, p.w.n, p.w.k, p.split_k, 1, gpu_of(on).multiprocessors()})
      .matmul(p, on);
}

// Some outputs after the others.
template <Order order>
void matmul_of_blocks(const MatmulParams& p, const Execution& on) {
  if (order == Order::hopper && reads_blocks(p.w, p.rows, p.split_k))
    return matmul_by_blocks(p, on);
  const int64_t most = outputs_at_once(p.w, p.rows);
  for (int64_t first = 0; first < p.w.n; first += most) {
    MatmulParams part = p;
    part.w = expand(p.w, first, std::min(most, p.w.n - first), p.scratch, on);
    part.bias = p.bias ? p.bias + first : nullptr;
    part.y = p.y + first;
    matmul<order>(part, on);
  }
}

template <Order order>
void gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  check_types(p.x, p.gate_up, order);
  CHECK(p.curve != Nonlinearity::gelu, "a curve of gated products");
  if (p.rows == 0) return;
  if (storage_of(p.gate_up.type).has_blocks()) return gated_matmul_of_blocks<order>(p, on);
  chosen_schedule(order, {p.rows, p.gate_up.n, p.gate_up.k, 1, 2, gpu_of(on).multiprocessors()})
      .gated_matmul(p, on);
}

template <Order order>
void gated_matmul_of_blocks(const GatedMatmulParams& p, const Execution& on) {
  if (order == Order::hopper && reads_blocks(p.gate_up, p.rows, 1))
    return gated_matmul_by_blocks(p, on);
  const int64_t most = outputs_at_once(p.gate_up, p.rows);
  for (int64_t first = 0; first < p.gate_up.n; first += most) {
    GatedMatmulParams part = p;
    part.gate_up = expand(p.gate_up, first, std::min(most, p.gate_up.n - first), p.scratch, on);
    part.gate_bias = p.gate_bias ? p.gate_bias + first : nullptr;
    part.up_bias = p.up_bias ? p.up_bias + first : nullptr;
    part.out.data = static_cast<char*>(p.out.data) + first * size_of(p.out.type);
    gated_matmul<order>(part, on);
  }
}

template <Order order>
void attention(const AttentionParams& p, const Execution& on) {
  if (p.rows == 0) return;
  for (const AttentionSchedule& s : attention_schedules(order))
    if (p.rows <= s.max_rows && s.can(p)) return s.attention(p, on);
  CHECK(false, "no schedule for attention");
}

// With what a tape keeps.
template <Order order>
void partial_attention(const PartialAttentionParams& p, const Execution& on) {
  if (order == Order::hopper && p.max && tiles_keep_sums(p.of)) return attend_with_sums(p, on);
  attention<order>(p.of, on);
  attention_sums<order>(p, SumsOf::all_rows, on);
}

template <Order order>
Kernels table() {
  return {.name = "cuda",
          .order = order,
          .weights = order == Order::hopper ? WeightLayout::rows : WeightLayout::panels,
          .cache = order == Order::hopper ? CacheLayout::rows : CacheLayout::panels,
          .attention_scratch = order == Order::hopper ? kAttentionScratch : 0,
          .blocks_scratch = kBlocksScratch,
          .embed = embed,
          .rms_norm = rms_norm,
          .layer_norm = layer_norm,
          .matmul = matmul<order>,
          .gated_matmul = gated_matmul<order>,
          .quantise = quantise,
          .makes_integers = makes_integers,
          .int8_matmul = int8_matmul,
          .int8_gated_matmul = int8_gated_matmul,
          .quantise_fp8 = order == Order::hopper ? quantise_fp8 : nullptr,
          .fp8_matmul = order == Order::hopper ? fp8_matmul : nullptr,
          .fp8_gated_matmul = order == Order::hopper ? fp8_gated_matmul : nullptr,
          .curve = curve,
          .rotate_heads = rotate_heads,
          .gate_output = gate_output,
          .qkv = qkv,
          .qkv_product = nullptr,
          .attention = attention<order>,
          .rotated_attention = order == Order::hopper ? rotated_attention : nullptr,
          .partial_attention = partial_attention<order>,
          .round = round,
          .add = add,
          .add_norm = add_norm,
          .add_silu = add_silu,
          .scale_logits = scale_logits,
          .copy_slots = copy_slots,
          .store_slots = store_slots,
          .load_slots = order == Order::hopper ? load_slots_of_many_rows : load_slots,
          .copy_stored = copy_stored,
          .log_sum_exp = log_sum_exp,
          .heads_matmul = order == Order::hopper ? hopper_heads_matmul : portable_heads_matmul,
          .place_latent = place_latent,
          .route = route,
          .sort_rows = sort_rows,
          .gather_rows = gather_rows,
          .gate_inputs = gate_inputs,
          .scale_rows = scale_rows,
          .expert_matmul = order == Order::hopper ? hopper_expert_matmul : portable_expert_matmul,
          .expert_gated_matmul =
              order == Order::hopper ? hopper_expert_gated_matmul : portable_expert_gated_matmul,
          .combine = combine,
          .choose_experts = choose_experts,
          .combine_norm = combine_norm,
          .sample = sample,
          .hash_logits = hash_logits,
          .copy_cells = copy_cells,
          .short_conv = short_conv,
          .recurrent_gates = recurrent_gates,
          .recurrent_keys = recurrent_keys,
          .recurrence = recurrence<order>,
          .gated_norm = gated_norm,
          .adapter_shrink = adapter_shrink<order>,
          .adapter_expand = adapter_expand<order>,
          .add_bias = add_bias,
          .gate_pairs = gate_pairs<order>};
}

}  // namespace

Kernels kernels(Order order) {
  return order == Order::hopper ? table<Order::hopper>() : table<Order::portable>();
}

namespace {

// How many outputs of recorded steps this GPU computes otherwise.
template <typename Steps>
unsigned differing_steps(Device& device, std::span<const Steps> sample) {
  const DeviceArray<Steps> cases(device, sample.size(), "recorded steps");
  const DeviceArray<unsigned> count(device, 1, "recorded steps");
  const std::unique_ptr<Stream> stream = device.make_stream();
  device.upload(cases.data(), sample.data(), sample.size_bytes());
  count_differing_steps(cases.data(), sample.size(), count.data(), {&device, stream.get()});
  unsigned different = 0;
  device.download(&different, count.data(), sizeof different);
  return different;
}

}  // namespace

void check_hopper_steps(Device& device) {
  const auto sample = hopper_sample();
  if (const unsigned different = differing_steps(device, sample))
    fail(
        "this GPU's tensor cores do not compute the order hopper: {} of {} recorded outputs "
        "differ; use the arithmetic "
        "portable",
        different, sample.size() * 512);
}

void check_hopper8_steps(Device& device) {
  const auto sample = hopper8_sample();
  if (const unsigned different = differing_steps(device, sample))
    fail(
        "this GPU's tensor cores do not compute the products of e4m3 numbers of the weight mode "
        "fp8: {} of {} recorded outputs differ; use another weight mode",
        different, sample.size() * 512);
}

}  // namespace invar::cuda
