// A decoder's weights as kernels read them, in one device's memory, for one rank of a group.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "device/vacatable.h"
#include "model/parts/part.h"
#include "model/weight_upload.h"
#include "weights/tensor_source.h"

namespace invar {

// The weights of a layer's parts, in their order (model/parts/part.h).
using LayerWeights = std::vector<std::unique_ptr<PartWeights>>;

// Weights of the vectors that tokens bring to each layer; models without such layers have none.
struct LayerInputWeights {
  Matrix embedding;             // [V][layers * P], in rows
  Matrix projection;            // [layers * P][D] of embeddings
  const float* norm = nullptr;  // [P]

  int64_t width() const { return norm ? embedding.k : 0; }  // of all layers
};

// Called with the bytes done and the bytes in all, from the loading thread.
using LoadProgress = std::function<void(int64_t, int64_t)>;

class DecoderWeights {
 public:
  // Reads, checks and packs every tensor of the shard; threads of `pool` work in parallel; source
  // blocks are released after each tensor. Throws Error naming the tensor when one is missing, has
  // another shape, or is not finite.
  // The matrices lie as `layout` says.
  DecoderWeights(const DecoderSpec& spec, const Arithmetic& arithmetic, const Shard& shard,
                 const TensorSource& source, Device& device, ThreadPool& pool,
                 WeightLayout layout = WeightLayout::panels, const LoadProgress& progress = {});

  // Weights of a whole model, none of which is there yet. Its layers share their memory, so that
  // only the last one loaded is there; the embedding and a head of its own share theirs likewise.
  static DecoderWeights in_turn(const DecoderSpec& spec, const Arithmetic& arithmetic,
                                WeightLayout layout = WeightLayout::panels);
  void load_layer(const DecoderSpec& spec, int layer, const TensorSource& source, Device& device,
                  ThreadPool& pool);
  // A tied head is the embedding.
  void load_embedding(const DecoderSpec& spec, const TensorSource& source, Device& device,
                      ThreadPool& pool);
  void load_head(const DecoderSpec& spec, const TensorSource& source, Device& device,
                 ThreadPool& pool);
  // The norm before the head; its address stays from then on.
  void load_final_norm(const DecoderSpec& spec, const TensorSource& source, Device& device,
                       ThreadPool& pool);

  // Takes over other weights of the same model: the addresses stay, whoever holds them sees the new
  // values. Nobody may compute meanwhile. On an Error the weights are of no use.
  // Tensors that stay (TensorSource::stays) are not written.
  void reload(const DecoderSpec& spec, const TensorSource& source, Device& device,
              ThreadPool& pool);
  // The elements of a matrix as they lie in a device's memory, in rows: this shard's part of `out`,
  // which is the whole of it. `source` says what there is.
  void read_back(const DecoderSpec& spec, const TensorSource& source, Device& device,
                 ThreadPool& pool, const std::string& tensor, std::byte* out);

  const Shard& shard() const { return shard_; }
  // By number; those of other stages are empty.
  const std::vector<LayerWeights>& layers() const { return layers_; }
  const float* module_norm() const { return module_norm_; }  // [D] of the module, or null
  const float* final_norm() const { return final_norm_; }
  const float* final_norm_bias() const { return final_norm_bias_; }  // or null
  const Matrix& head() const { return head_; }                       // this rank's rows of the head
  const LayerInputWeights& layer_inputs() const { return layer_inputs_; }
  // The embedding table: in rows, or the head itself (tied, one rank).
  const Matrix& embedding() const { return embedding_; }
  bool embedding_is_shared() const { return embedding_.data == head_.data; }
  bool has_blocks() const { return has_blocks_; }        // some matrix is stored in blocks
  bool has_quantised() const { return has_quantised_; }  // some matrix is i8 or e4m3
  int64_t bytes() const;
  const std::vector<VacatableArray<std::byte>>& memory() const { return memory_; }
  // Gives the memory back, and takes it again, zeroed; its addresses stay.
  void vacate();
  void occupy();

 private:
  friend class WeightLoader;
  using Memory = std::vector<VacatableArray<std::byte>>;
  DecoderWeights(const Arithmetic& arithmetic, const Shard& shard, WeightLayout layout)
      : shard_(shard), arithmetic_(arithmetic), layout_(layout) {}

  Shard shard_;
  Arithmetic arithmetic_;
  WeightLayout layout_;
  std::vector<LayerWeights> layers_;  // the module's block is the last one
  const float* module_norm_ = nullptr;
  const float* final_norm_ = nullptr;
  const float* final_norm_bias_ = nullptr;
  Matrix head_;
  Matrix embedding_;
  LayerInputWeights layer_inputs_;
  bool has_blocks_ = false, has_quantised_ = false;
  Memory memory_;
  WeightUpload::Buffers pinned_;  // for a GPU's weights, from the first reload on
  // In turn: of a layer, of the embedding or head, of the final norm.
  Memory layer_memory_, end_memory_, norm_memory_;
  int last_layer_ = -1;  // the one that is there
};

}  // namespace invar
