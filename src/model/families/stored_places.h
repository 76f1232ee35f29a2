// Where the decoder's tensors stand in checkpoints of a family: under which names, fused with which
// others, in which order of rows.
#pragma once

#include <string>
#include <vector>

#include "model/families/family.h"
#include "weights/tensor_source.h"

namespace invar {

// Where the checkpoint has the tensor, or should have it.
StoredAt found_place(const DecoderSpec& spec, const TensorSpec& tensor, const TensorSource& stored);
// Whether a checkpoint's tensor is one that the decoder has no use for: of images, of a module that
// is not read, or a constant.
bool is_left_out(const DecoderSpec& spec, const TensorSource& stored, const std::string& name);

// A model that reads images, too, has its text's part under another name, which tools of different
// ages write differently: the name under which `stored` has a tensor of the text's part, and a
// tensor's or module's name where there is that part alone.
std::string in_tower(const TensorSource& stored, const std::string& name);
std::string without_tower(const std::string& name);
// Whether a family's checkpoints hold other tensors than the decoder's.
bool stores_otherwise(const DecoderSpec& spec);
// Whether they hold the decoder's but for w where the decoder has 1 + w, in its vectors.
bool stores_offsets(const DecoderSpec& spec);
// Whether the numbers that they hold are the decoder's, in whatever places, but for w where the
// decoder has 1 + w, in vectors.
bool stores_decoders_numbers(const DecoderSpec& spec);
// Whether w is stored where the decoder has 1 + w.
bool is_stored_as_offset(const DecoderSpec& spec, const TensorSpec& tensor);

// The tensors of a checkpoint of the family, in the order of computation, each with those of the
// decoder's that it holds.
struct StoredTensor {
  struct Part {
    TensorSpec of;
    StoredAt at;
  };
  std::string name;
  std::vector<int64_t> shape;
  std::vector<Part> parts;
};
std::vector<StoredTensor> stored_tensors(const DecoderSpec& spec);
// The same for a GGUF file.
std::vector<StoredTensor> gguf_tensors(const DecoderSpec& spec);
// The decoder's matrices whose columns stand elsewhere there.
ColumnsOf gguf_columns(const DecoderSpec& spec);

}  // namespace invar
