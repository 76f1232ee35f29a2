// Weights of products as panels, kept from call to call. Whether they are still those of the
// caller's tensors is asked of the elements themselves, by a hash of 128 bits: a write by whatever
// name (torch's .data, numpy's view of it) is noticed, as is memory that another tensor has now.
#pragma once

#include <xxhash.h>

#include <functional>
#include <list>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "kernels/matrix.h"

namespace invar::python {

class PackedWeights {
 public:
  // Bytes of all panels; those that were used longest ago go.
  static constexpr size_t kMostBytes = size_t{4} << 30;

  // The rows [n][k] of each weight of a product.
  struct Rows {
    const float* w = nullptr;
    int64_t n = 0;
    bool operator==(const Rows&) const = default;
  };
  // Makes the matrix in `memory`.
  using Pack = std::function<Matrix(DeviceArray<bf16_t>& memory)>;

  // The matrix of these weights; `pack` makes it where it is not here. It stands until the next
  // call.
  const Matrix& of(const std::vector<Rows>& weights, int64_t k, bool is_pair, ThreadPool& pool,
                   const Pack& pack);
  // How often one was made.
  int64_t made() const { return made_; }

 private:
  using Hash = std::vector<XXH128_hash_t>;
  struct Entry {
    std::vector<Rows> weights;
    int64_t k = 0;
    bool is_pair = false;
    Hash hash;
    DeviceArray<bf16_t> memory;
    Matrix matrix;
  };

  std::list<Entry> entries_;  // the last used first
  size_t bytes_ = 0;
  int64_t made_ = 0;
};

}  // namespace invar::python
