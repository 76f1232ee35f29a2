// The checks of the arguments of both devices' operators.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "numerics/curves.h"
#include "numerics/orders.h"

namespace invar::python {

inline Order order_of(const std::string& name) {
  if (name == "portable") return Order::portable;
  if (name == "hopper") return Order::hopper;
  fail_usage("expected the order portable or hopper, found \"{}\"", name);
}

inline void expect_rows(int64_t rows) {
  if (rows < 1 || rows > (int64_t{1} << 24))
    fail_usage("expected 1 to {} rows, found {}", int64_t{1} << 24, rows);
}

// Runs of a product are whole leaves.
inline void expect_runs(int runs, int64_t k) {
  constexpr int kLeaf = 32;
  const bool is_power = runs == 1 || runs == 2 || runs == 4 || runs == 8;
  if (!is_power || (runs > 1 && k % (int64_t{runs} * kLeaf) != 0))
    fail_usage("expected 1, 2, 4 or 8 runs of whole leaves of {}, found {} of {}", kLeaf, runs, k);
}

inline void expect_heads(int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t window) {
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0 || heads > 1024 || head_dim < 2 ||
      head_dim > 512 || head_dim % 2 != 0 || window < 0)
    fail_usage(
        "expected heads, key/value heads that divide them, an even head size and a window, "
        "found {}, {}, {} and {}",
        heads, kv_heads, head_dim, window);
}

inline void expect_block_size(int32_t slots) {
  if (slots != 32 && slots != 64 && slots != 128)
    fail_usage("expected blocks of 32, 64 or 128 slots, found {}", slots);
}

inline Nonlinearity curve_of(const std::string& name) {
  if (name == "silu") return Nonlinearity::silu;
  if (name == "gelu_tanh") return Nonlinearity::gelu_tanh;
  fail_usage("expected the curve silu or gelu_tanh, found \"{}\"", name);
}

}  // namespace invar::python
