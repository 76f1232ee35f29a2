#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention_tile.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/attention_inl.h"
// after it
#include "kernels/cpu/attention_vector_inl.h"
// after it
#include "kernels/cpu/indexer_inl.h"

namespace invar::cpu {

void attend_avx512(const TileSource& tiles) {
  attend<VectorProducts<8>>(tiles);
}
void attend_pair_avx512(const TileSource& tiles) {
  attend<VectorProducts<8, uint16_t, true>>(tiles);
}

void add_index_scores_avx512(const AttentionTile& tile, const float* weights, float* scores) {
  add_index_scores<VectorProducts<8>>(tile, weights, scores);
}
void add_pair_index_scores_avx512(const AttentionTile& tile, const float* weights, float* scores) {
  add_index_scores<VectorProducts<8, uint16_t, true>>(tile, weights, scores);
}

}  // namespace invar::cpu
