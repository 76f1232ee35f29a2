// Weights that are taken tensor by tensor are those that are taken together: a matrix or a vector
// that several tensors make keeps what came of the others before.
#include <gtest/gtest.h>

#include "../weights/blocks_source.h"
#include "model/decoder_weights.h"
#include "model/families/families.h"
#include "model/families/make_model.h"
#include "support/deferred_device.h"
#include "weights/source_bases.h"

namespace invar {
namespace {

DecoderSpec spec_of(const char* config) {
  return parse_model_config(json::parse(config, "the test"), {}, "the test").spec;
}

// q, k and v have biases, and are one product with them; gate and up are a pair.
DecoderSpec dense() {
  return spec_of(R"({"model_type": "qwen2", "hidden_size": 128, "intermediate_size": 192,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "vocab_size": 96, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 64,
      "tie_word_embeddings": true})");
}

// Every expert has biases.
DecoderSpec of_experts() {
  return spec_of(R"({"model_type": "gpt_oss", "hidden_size": 128, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
      "vocab_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
      "rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 4096,
      "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
      "truncate": false, "original_max_position_embeddings": 128}})");
}

// Projections of integers, with scales.
class InIntegers final : public SourceOver {
 public:
  explicit InIntegers(std::unique_ptr<TensorSource> base) : SourceOver(std::move(base)) {
    for (const std::string& name : names()) {
      infos_[name] = base_.info(name);
      if (name.ends_with("_proj.weight")) infos_[name].dtype = DType::i8;
    }
  }
  const TensorInfo& info(std::string_view name) const override { return infos_.find(name)->second; }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    if (info(name).dtype != DType::i8) return base_.read(name, first, count, as, out);
    std::vector<uint16_t> values(static_cast<size_t>(count));
    base_.read(name, first, count, DType::bf16, values.data());
    for (int64_t i = 0; i < count; ++i)
      static_cast<int8_t*>(out)[i] = static_cast<int8_t>(values[static_cast<size_t>(i)] & 127);
  }
  void read_row_scales(std::string_view name, int64_t first_row, int64_t rows,
                       float* out) const override {
    const int64_t width = info(name).row_elements();
    for (int64_t i = 0; i < rows; ++i)
      base_.read(name, (first_row + i) * width, 1, DType::f32, out + i);
  }

 private:
  std::map<std::string, TensorInfo, std::less<>> infos_;
};

// One tensor of other weights, over a checkpoint that knows nothing of those that came before.
class OneChanged final : public SourceOver {
 public:
  OneChanged(const TensorSource& loaded, const TensorSource& others, std::string name,
             bool is_partial)
      : SourceOver(loaded), others_(others), name_(std::move(name)), is_partial_(is_partial) {}
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    source(name).read(name, first, count, as, out);
  }
  void read_row_scales(std::string_view name, int64_t first_row, int64_t rows,
                       float* out) const override {
    source(name).read_row_scales(name, first_row, rows, out);
  }
  bool stays(std::string_view name) const override { return is_partial_ && name != name_; }

 private:
  const TensorSource& source(std::string_view name) const {
    return name == name_ ? others_ : base_;
  }

  const TensorSource& others_;
  const std::string name_;
  const bool is_partial_;
};

struct Case {
  const char* name;
  DecoderSpec (*spec)();
  Arithmetic arithmetic;
  std::unique_ptr<TensorSource> (*source)(const DecoderSpec& spec, uint64_t seed);
};

template <typename Source, typename... Rest>
std::unique_ptr<TensorSource> made_of(const DecoderSpec& spec, uint64_t seed) {
  return std::make_unique<Source>(dummy_weights(spec, seed), Rest()...);
}

const Case kCases[] = {
    {"bf16", dense, {}, dummy_weights},
    {"f32", dense, {.weights = DType::f32}, dummy_weights},
    {"experts", of_experts, {}, dummy_weights},
    {"blocks", dense, {}, made_of<InBlocks, Form>},
    {"W8A8", dense, {.quantised = DType::i8}, made_of<InIntegers>},
};

std::vector<std::byte> bytes_of(const DecoderWeights& weights) {
  std::vector<std::byte> bytes;
  for (const auto& array : weights.memory())
    bytes.insert(bytes.end(), array.data(), array.data() + array.size());
  return bytes;
}

void check(const Case& c, Device& device, WeightLayout layout) {
  const DecoderSpec spec = c.spec();
  const auto first = c.source(spec, 3), second = c.source(spec, 4);
  ThreadPool pool(2);
  const auto load = [&](const TensorSource& source) {
    return DecoderWeights(spec, c.arithmetic, make_shard(spec, 0, 1), source, device, pool, layout);
  };
  const auto wanted = bytes_of(load(*second));
  for (const bool is_partial : {true, false}) {
    DecoderWeights weights = load(*first);
    for (const std::string& name : first->names()) {
      EXPECT_FALSE(bytes_of(weights) == wanted) << "the control: before " << name;
      weights.reload(spec, OneChanged(*first, *second, name, is_partial), device, pool);
    }
    EXPECT_EQ(bytes_of(weights) == wanted, is_partial) << "the control reads the rest again";
  }
}

TEST(PartialReload, KeepsWhatCameBefore) {
  const auto host = make_host_device(), gpu = make_deferred_device();
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    check(c, *host, WeightLayout::panels);
    check(c, *gpu, WeightLayout::panels);
    check(c, *gpu, WeightLayout::rows);
  }
}

}  // namespace
}  // namespace invar
