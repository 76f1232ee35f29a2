#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention_tile.h"
// in this order
#include "kernels/cpu/vec16_avx2.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/attention_inl.h"
// after it
#include "kernels/cpu/attention_vector_inl.h"
// after it
#include "kernels/cpu/indexer_inl.h"

namespace invar::cpu {

void attend_avx2(const TileSource& tiles) {
  attend<VectorProducts<2>>(tiles);
}
void attend_pair_avx2(const TileSource& tiles) {
  attend<VectorProducts<2, uint16_t, true>>(tiles);
}

void add_index_scores_avx2(const AttentionTile& tile, const float* weights, float* scores) {
  add_index_scores<VectorProducts<2>>(tile, weights, scores);
}
void add_pair_index_scores_avx2(const AttentionTile& tile, const float* weights, float* scores) {
  add_index_scores<VectorProducts<2, uint16_t, true>>(tile, weights, scores);
}

}  // namespace invar::cpu
