#include "model/decoder_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "kernels/pack.h"
#include "model/families/tensors.h"

namespace invar {

Shard make_shard(const DecoderSpec& spec, int rank, int size) {
  const int o_runs = attention_output_runs(spec), d_runs = down_runs(spec);
  if (size < 1 || (size & (size - 1)) != 0 || o_runs % size != 0 || d_runs % size != 0)
    fail_usage(
        "{} ranks were asked for; this model can be cut into 1 to {} (powers of two), since its "
        "row-parallel "
        "products have {} and {} runs",
        size, std::min(o_runs, d_runs), o_runs, d_runs);
  Shard shard{.rank = rank, .size = size};
  shard.heads = spec.heads / size;
  shard.first_head = rank * shard.heads;
  const int heads_per_kv = spec.heads / spec.kv_heads;
  shard.first_kv_head = shard.first_head / heads_per_kv;
  shard.kv_heads = (shard.first_head + shard.heads - 1) / heads_per_kv - shard.first_kv_head + 1;
  if (shard.heads % shard.kv_heads != 0 ||
      (shard.kv_heads > 1 && shard.heads / shard.kv_heads != heads_per_kv))
    fail_usage("{} ranks do not share out {} query heads over {} key/value heads evenly", size,
               spec.heads, spec.kv_heads);
  shard.ffn = spec.ffn / size;
  shard.first_ffn = rank * shard.ffn;
  shard.vocab_stride = static_cast<int>(round_up((spec.vocab + size - 1) / size, kPanelWidth));
  shard.first_vocab = std::min(spec.vocab, rank * shard.vocab_stride);
  shard.vocab = std::min(shard.vocab_stride, spec.vocab - shard.first_vocab);
  shard.o_runs = o_runs / size;
  shard.down_runs = d_runs / size;
  return shard;
}

// Rows [first_row, first_row + rows) and columns [first_column, first_column + columns) of a
// tensor, as outputs of a packed matrix, whose inner size is `columns`.
struct PackedPart {
  std::string tensor;
  int64_t first_row, rows, first_column, columns;
  PackPlace place;
};

class WeightLoader {
 public:
  WeightLoader(DecoderWeights& weights, const DecoderSpec& spec, const TensorSource& source,
               DType type, Device& device, ThreadPool& pool, const LoadProgress& progress)
      : out_(weights),
        spec_(spec),
        shard_(weights.shard_),
        source_(source),
        type_(type),
        device_(device),
        pool_(pool),
        progress_(progress) {}

  void load() {
    total_bytes_ = 0;
    for (const std::string& name : source_.names()) {
      const TensorInfo info = source_.info(name);
      total_bytes_ += info.elements() * size_of(info.dtype);
    }
    out_.layers_.clear();
    load_embedding_and_head();
    for (int i = 0; i < spec_.all_layers(); ++i) out_.layers_.push_back(load_layer(i));
    out_.final_norm_ = vector(tensor_name(TensorRole::final_norm), spec_.hidden);
    if (spec_.mtp_layers > 0) load_mtp_module();
  }

 private:
  void load_mtp_module() {
    const int64_t d = spec_.hidden;
    const auto name = [&](TensorRole role) { return tensor_name(role, spec_.layers); };
    using enum TensorRole;
    out_.mtp_.embedding_norm = vector(name(mtp_embedding_norm), d);
    out_.mtp_.hidden_norm = vector(name(mtp_hidden_norm), d);
    out_.mtp_.projection = matrix(d, 2 * d, {{name(mtp_projection), 0, d, 0, 2 * d}});
    out_.mtp_.head_norm = vector(name(mtp_head_norm), d);
  }

  LayerWeights load_layer(int index) {
    const auto name = [index](TensorRole role) { return tensor_name(role, index); };
    using enum TensorRole;
    const int64_t e = spec_.head_dim, d = spec_.hidden;
    const int64_t q_rows = shard_.heads * e, kv = shard_.kv_heads * e,
                  first_q = shard_.first_head * e, first_kv = shard_.first_kv_head * e;
    LayerWeights w;
    w.attention_norm = vector(name(input_norm), d);
    w.ffn_norm = vector(name(post_norm), d);
    if (spec_.qk_norm) {
      w.q_norm = vector(name(q_norm), e);
      w.k_norm = vector(name(k_norm), e);
    }
    w.qkv = matrix(q_rows + 2 * kv, d,
                   {{name(q), first_q, q_rows, 0, d, {0}},
                    {name(k), first_kv, kv, 0, d, {q_rows}},
                    {name(v), first_kv, kv, 0, d, {q_rows + kv}}});
    w.o = matrix(d, q_rows, {{name(o), 0, d, first_q, q_rows}});
    w.gate_up = matrix(shard_.ffn, d,
                       {{name(gate), shard_.first_ffn, shard_.ffn, 0, d, {0, 2}},
                        {name(up), shard_.first_ffn, shard_.ffn, 0, d, {16, 2}}},
                       2);
    w.down = matrix(d, shard_.ffn, {{name(down), 0, d, shard_.first_ffn, shard_.ffn}});
    if (spec_.qkv_bias)
      w.qkv_bias = vector({{name(q_bias), first_q, q_rows},
                           {name(k_bias), first_kv, kv},
                           {name(v_bias), first_kv, kv}});
    if (spec_.o_bias) w.o_bias = vector(name(o_bias), d);
    if (spec_.mlp_bias) {
      w.gate_bias = vector({{name(gate_bias), shard_.first_ffn, shard_.ffn}});
      w.up_bias = vector({{name(up_bias), shard_.first_ffn, shard_.ffn}});
      w.down_bias = vector(name(down_bias), d);
    }
    return w;
  }

  void load_embedding_and_head() {
    const std::string embedding = tensor_name(TensorRole::embedding);
    const std::string head = spec_.tied_head ? embedding : tensor_name(TensorRole::head);
    // A tied head on one rank holds the whole embedding: rows are read from its panels.
    out_.embedding_is_packed_ = spec_.tied_head && shard_.size == 1;
    if (!out_.embedding_is_packed_) out_.embedding_ = rows(embedding, spec_.vocab, spec_.hidden);
    out_.head_ = matrix(shard_.vocab, spec_.hidden,
                        {{head, shard_.first_vocab, shard_.vocab, 0, spec_.hidden}});
    if (out_.embedding_is_packed_) out_.embedding_ = out_.head_.data;
  }

  // A packed matrix of `n` outputs and inner size `k`, put together from parts of tensors;
  // `matrices` 2 for a gated pair.
  PackedWeight matrix(int64_t n, int64_t k, const std::vector<PackedPart>& parts,
                      int matrices = 1) {
    PackedWeight w{.type = type_, .n = n, .k = k};
    std::byte* target = allocate(matrices * w.elements() * size_of(type_));
    w.data = target;
    // A device that the host cannot write gets the panels by way of a staging copy.
    std::vector<std::byte> staging(device_.is_host() ? 0
                                                     : matrices * w.elements() * size_of(type_));
    std::byte* host = device_.is_host() ? target : staging.data();
    for (const PackedPart& part : parts) pack(part, host);
    if (!device_.is_host()) device_.upload(target, host, staging.size());
    return w;
  }

  void pack(const PackedPart& part, std::byte* target) {
    constexpr int64_t kBlock = 16;  // rows read at a time
    const int64_t width = source_.info(part.tensor).shape.at(1);
    run_or_throw(pool_, [&](Part share) {
      std::vector<std::byte> block(kBlock * width * size_of(type_));
      const auto [begin, end] = share.of(part.rows, kBlock);
      for (int64_t row = begin; row < end; row += kBlock) {
        const int64_t count = std::min(kBlock, end - row);
        read(part.tensor, part.first_row + row, count, width, block.data());
        pack_rows(type_, block.data() + part.first_column * size_of(type_), width, row, count,
                  part.columns, part.place, target);
      }
    });
    finish(part.tensor);
  }

  // A row-major matrix in the weights' type.
  const void* rows(const std::string& tensor, int64_t count, int64_t width) {
    const int64_t bytes = count * width * size_of(type_);
    std::byte* target = allocate(bytes);
    std::vector<std::byte> staging(device_.is_host() ? 0 : bytes);
    std::byte* host = device_.is_host() ? target : staging.data();
    run_or_throw(pool_, [&](Part share) {
      const auto [begin, end] = share.of(count);
      constexpr int64_t kBlock = 64;
      for (int64_t row = begin; row < end; row += kBlock)
        read(tensor, row, std::min(kBlock, end - row), width, host + row * width * size_of(type_));
    });
    if (!device_.is_host()) device_.upload(target, host, staging.size());
    finish(tensor);
    return target;
  }

  // Part of a one-dimensional tensor.
  struct VectorPart {
    std::string tensor;
    int64_t first, count;
  };

  const float* vector(const std::string& tensor, int64_t count) {
    return vector({{tensor, 0, count}});
  }

  // Norms and biases: f32 whatever the weights' type.
  const float* vector(const std::vector<VectorPart>& parts) {
    std::vector<float> values;
    for (const VectorPart& part : parts) {
      std::vector<float> one(source_.info(part.tensor).shape.at(0));
      source_.read(part.tensor, 0, std::ssize(one), DType::f32, one.data());
      if (const int64_t bad = first_non_finite(one.data(), DType::f32, std::ssize(one)); bad >= 0)
        fail_non_finite(source_, part.tensor, bad);
      values.insert(values.end(), one.begin() + part.first, one.begin() + part.first + part.count);
      finish(part.tensor);
    }
    std::byte* target = allocate(values.size() * sizeof(float));
    device_.upload(target, values.data(), values.size() * sizeof(float));
    return reinterpret_cast<const float*>(target);
  }

  // Rows of a matrix in the weights' type, checked.
  void read(const std::string& tensor, int64_t first, int64_t count, int64_t width,
            std::byte* out) {
    const int64_t elements = count * width;
    source_.read(tensor, first * width, elements, type_, out);
    if (const int64_t bad = first_non_finite(out, type_, elements); bad >= 0)
      fail_non_finite(source_, tensor, first * width + bad);
  }

  void finish(const std::string& tensor) {
    const TensorInfo info = source_.info(tensor);
    done_bytes_ += info.elements() * size_of(info.dtype);
    if (progress_) progress_(std::min(done_bytes_, total_bytes_), total_bytes_);
  }

  // The next array of the weights: loading always asks for the same ones in the same order.
  std::byte* allocate(int64_t bytes) {
    if (arrays_ == out_.memory_.size())
      out_.memory_.emplace_back(device_, static_cast<size_t>(bytes), "the weights");
    CHECK(out_.memory_[arrays_].size() == static_cast<size_t>(bytes), "weights of another shape");
    return out_.memory_[arrays_++].data();
  }

  DecoderWeights& out_;
  const DecoderSpec& spec_;
  const Shard& shard_;
  const TensorSource& source_;
  const DType type_;
  Device& device_;
  ThreadPool& pool_;
  const LoadProgress& progress_;
  int64_t done_bytes_ = 0, total_bytes_ = 0;
  size_t arrays_ = 0;
};

DecoderWeights::DecoderWeights(const DecoderSpec& spec, const Arithmetic& arithmetic,
                               const Shard& shard, const TensorSource& source, Device& device,
                               ThreadPool& pool, const LoadProgress& progress)
    : shard_(shard), type_(arithmetic.type()) {
  WeightLoader(*this, spec, source, type_, device, pool, progress).load();
}

void DecoderWeights::reload(const DecoderSpec& spec, const TensorSource& source, Device& device,
                            ThreadPool& pool) {
  WeightLoader(*this, spec, source, type_, device, pool, {}).load();
}

int64_t DecoderWeights::bytes() const {
  int64_t total = 0;
  for (const auto& array : memory_) total += static_cast<int64_t>(array.size());
  return total;
}

}  // namespace invar
