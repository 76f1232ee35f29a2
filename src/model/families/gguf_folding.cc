#include "model/families/gguf_folding.h"

#include "base/error.h"
#include "weights/gguf_hybrid_keys.h"

namespace invar {

GgufFolding folded_for_gguf(const DecoderSpec& spec, DType type, const std::string& where) {
  GgufFolding folding{spec};
  folding.said.mtp_layers = 0;  // modules are not written
  if (!spec.multipliers) return folding;
  folding.said.multipliers = MultiplierSpec{};
  if (spec.embedding_scale == 1 && spec.logits_divisor == 1) return folding;
  if (spec.tied_head)
    fail(
        "{}: expected a head of its own beside multipliers of the embedding and the head, found "
        "tie_word_embeddings",
        where);
  folding.embedding = spec.embedding_scale;
  folding.head = 1 / spec.logits_divisor;
  if (type == DType::bf16) {
    const auto key = [](const char* name, float value) {
      return GgufKey{std::string("falcon-h1.") + name, double{value}, GgufKey::Number::f32};
    };
    folding.keys = {key(kFoldedEmbeddingScale, spec.embedding_scale),
                    key(kFoldedLogitsDivisor, spec.logits_divisor)};
  } else {
    folding.said.embedding_scale = folding.said.logits_divisor = 1;
  }
  return folding;
}

}  // namespace invar
