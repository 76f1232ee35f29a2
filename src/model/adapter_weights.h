// One adapter's matrices on one rank, as kernels read them, and which of them stand beside which of
// the model's matrices (numerics 2.4).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/adapters.h"
#include "model/adapter_user.h"
#include "model/decoder.h"
#include "weights/lora_adapter.h"

namespace invar {

// The most tensors of one product: queries, keys, values and gates of heads with a state.
constexpr int kMostTensorsBeside = 4;

// Throws Error naming the module, where one is not of a matrix that can have an adapter in this
// model, or is of another shape.
void expect_fits(const LoraAdapter& adapter, const DecoderSpec& spec, AdapterUser user);

// The modules of a model that can have an adapter, with their sizes alone.
std::vector<AdapterModule> adaptable_modules(const DecoderSpec& spec, AdapterUser user);

// Those that the trainer can give one to, and that names mean as PEFT's target_modules does;
// kAllLinear: all matrices of the layers. Throws Error naming what can have no adapter, or a name
// that means nothing.
inline constexpr std::string_view kAllLinear = "all-linear";
std::vector<AdapterModule> target_modules(const DecoderSpec& spec,
                                          const std::vector<std::string>& names);

// Bytes that one adapter of this rank beside all these matrices takes at most on a rank, those of
// experts aside.
int64_t most_adapter_bytes(const DecoderSpec& spec, AdapterUser user, DType type, int64_t rank);

class AdapterWeights {
 public:
  // Reads and packs this rank's share. Throws Error as expect_fits does.
  AdapterWeights(const Decoder& decoder, const LoraAdapter& adapter);

  struct Product {
    Matrix w;  // that it stands beside
    Matrix a;
    std::vector<AdapterOutputs> outputs;
    std::vector<std::string> modules;  // of each of the outputs
    // Which row of the module's B an output is, of all that there are; empty: the same.
    std::vector<std::function<int64_t(int64_t)>> rows;
  };
  // Takes over other numbers of the same modules; the addresses stay. No step may be under way.
  void reload(const Decoder& decoder, const LoraAdapter& adapter);

  // The adapters' product beside a matrix of the decoder's weights, or null.
  const Product* beside(const Matrix& w) const;
  // By where the matrix's elements are.
  const std::map<const void*, Product>& products() const { return products_; }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  friend class AdapterPacker;
  std::map<const void*, Product> products_;
  DeviceArray<std::byte> memory_;
};

}  // namespace invar
