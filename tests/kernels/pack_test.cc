#include "kernels/pack.h"

#include "kernel_check.h"
#include "kernels/block_places.h"
#include "random_blocks.h"

namespace invar {
namespace {

// Packs rows of `n` outputs at an offset and compares with the index functions; nothing else may
// change.
template <typename T>
void check_pack(int64_t n, int64_t k, int64_t stride, PackPlace place, int64_t total, int cuts) {
  constexpr DType kType = sizeof(T) == 2 ? DType::bf16 : DType::f32;
  Random random(n * 31 + k);
  Guarded<T> rows((n - 1) * stride + k);
  for (int64_t i = 0; i < n; ++i) fill_row(random, rows.span().subspan(i * stride, k));
  const int64_t elements = round_up(total, 16) * round_up(k, kLeafPad);
  Guarded<T> packed(elements), expected(elements);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t output = place.step == 1 ? place.output + i : place.output + i / 16 * 32 + i % 16;
    for (int64_t e = 0; e < round_up(k, kLeafPad); ++e)
      expected[kType == DType::bf16 ? packed_index_bf16(output, e, k)
                                    : packed_index_f32(output, e, k)] =
          e < k ? rows[i * stride + e] : T{0};
  }
  for (int c = cuts - 1; c >= 0; --c) {
    const auto [begin, end] = Part{c, cuts}.of(n);
    pack_rows(kType, rows.data() + begin * stride, stride, begin, end - begin, k, place,
              packed.data());
  }
  EXPECT_EQ(std::memcmp(packed.data(), expected.data(), elements * sizeof(T)), 0)
      << "n " << n << " k " << k << " stride " << stride << " output " << place.output << " step "
      << place.step << " cuts " << cuts;
  EXPECT_TRUE(packed.guards_are_intact());
}

// The same into rows: element (output, inner) stands at its place, the padding is zero.
template <typename T>
void check_rows(int64_t n, int64_t k, int64_t stride, int matrix, int matrices, int cuts) {
  constexpr DType kType = sizeof(T) == 2 ? DType::bf16 : DType::f32;
  const Matrix w{.type = kType, .n = n, .k = k, .layout = WeightLayout::rows};
  Random random(n * 31 + k);
  Guarded<T> rows((n - 1) * stride + k);
  for (int64_t i = 0; i < n; ++i) fill_row(random, rows.span().subspan(i * stride, k));
  Guarded<T> packed(matrices * w.elements()), expected(matrices * w.elements());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t e = 0; e < round_up(k, kLeafPad); ++e)
      expected[matrix * w.elements() + i * round_up(k, kLeafPad) + e] =
          e < k ? rows[i * stride + e] : T{0};
  for (int c = cuts - 1; c >= 0; --c) {
    const auto [begin, end] = Part{c, cuts}.of(n);
    pack_rows(w, rows.data() + begin * stride, stride, begin, end - begin,
              {.output = matrix * 16, .step = matrices}, packed.data());
  }
  EXPECT_EQ(std::memcmp(packed.data(), expected.data(), packed.span().size_bytes()), 0)
      << "n " << n << " k " << k << " stride " << stride << " matrix " << matrix;
  EXPECT_TRUE(packed.guards_are_intact());
}

template <typename T>
void check_all() {
  for (const int64_t k : {1, 8, 31, 32, 100})
    for (const int64_t n : {1, 8, 17}) {
      check_rows<T>(n, k, k, 0, 1, 1);
      check_rows<T>(n, k, k + 3, 0, 2, 2);
      check_rows<T>(n, k, k, 1, 2, 3);
    }
  for (const int64_t k : {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 129})
    for (const int64_t n : {1, 5, 15, 16, 17, 32, 40, 64}) {
      check_pack<T>(n, k, k, {}, n, 1);
      check_pack<T>(n, k, k + 3, {}, n, 3);  // columns of a wider matrix
      for (const int64_t at : {1, 7, 16, 19}) check_pack<T>(n, k, k, {at, 1}, n + at + 5, 2);
      check_pack<T>(n, k, k, {0, 2}, 2 * round_up(n, 16), 2);
      check_pack<T>(n, k, k, {16, 2}, 2 * round_up(n, 16), 3);
    }
}

// Rows of blocks, cut anywhere: every byte where BlockPlaces has it, and nothing else.
void check_blocks(DType type, int64_t n, PackPlace place, int64_t total, int cuts) {
  const StorageType& storage = storage_of(type);
  const Matrix w{.type = type, .n = total, .k = 2 * storage.block};
  const int64_t row_bytes = 2 * storage.bytes();
  Random random(n * 31 + cuts);
  Guarded<uint8_t> rows(n * row_bytes), packed(w.bytes()), expected(w.bytes());
  for (uint8_t& byte : rows.span()) byte = static_cast<uint8_t>(random.next());
  const BlockPlaces places(w);
  for (int64_t i = 0; i < n; ++i)
    for (int b = 0; b < 2; ++b)
      places.write(expected.data(),
                   place.step == 1 ? place.output + i : place.output + i / 16 * 32 + i % 16, b,
                   rows.data() + i * row_bytes + b * storage.bytes());
  for (int c = cuts - 1; c >= 0; --c) {
    const auto [begin, end] = Part{c, cuts}.of(n);
    pack_rows(w, rows.data() + begin * row_bytes, w.k, begin, end - begin, place, packed.data());
  }
  EXPECT_EQ(std::memcmp(packed.data(), expected.data(), packed.span().size_bytes()), 0)
      << storage.name << " n " << n << " output " << place.output << " step " << place.step
      << " cuts " << cuts;
  EXPECT_TRUE(packed.guards_are_intact());
}

// The same where each output has a unit for itself; rows of a wider matrix, too.
void check_rows_of_blocks(DType type, int64_t n, int64_t stride_blocks, int matrix, int cuts) {
  const StorageType& storage = storage_of(type);
  const Matrix w{.type = type,
                 .n = n,
                 .k = 3 * storage.block,
                 .layout = WeightLayout::rows,
                 .count = matrix + 1};
  const int64_t row_bytes = stride_blocks * storage.bytes();
  Random random(n * 17 + cuts);
  Guarded<uint8_t> rows(n * row_bytes), packed(w.bytes()), expected(w.bytes());
  for (uint8_t& byte : rows.span()) byte = static_cast<uint8_t>(random.next());
  const BlockPlaces places(w);
  for (int64_t i = 0; i < n; ++i)
    for (int b = 0; b < 3; ++b)
      places.write(expected.data(), matrix * w.all_rows() + i, b,
                   rows.data() + i * row_bytes + b * storage.bytes());
  for (int c = cuts - 1; c >= 0; --c) {
    const auto [begin, end] = Part{c, cuts}.of(n);
    pack_rows(w, rows.data() + begin * row_bytes, stride_blocks * storage.block, begin, end - begin,
              {.output = matrix * kPanelWidth, .step = 2}, packed.data());
  }
  EXPECT_EQ(std::memcmp(packed.data(), expected.data(), packed.span().size_bytes()), 0)
      << storage.name << " n " << n << " matrix " << matrix << " cuts " << cuts;
  EXPECT_TRUE(packed.guards_are_intact());
}

TEST(Pack, RowsOfBlocks) {
  for (const DType type : block_types())
    for (const int64_t n : {1, 8, 37}) {
      check_rows_of_blocks(type, n, 3, 0, 1);
      check_rows_of_blocks(type, n, 3, 1, 3);
      check_rows_of_blocks(type, n, 5, 1, 2);
    }
}

TEST(Pack, Blocks) {
  for (const DType type : block_types())
    for (const int64_t n : {1, 16, 37, 64}) {
      check_blocks(type, n, {}, n, 1);
      check_blocks(type, n, {7, 1}, n + 20, 2);
      check_blocks(type, n, {16, 1}, n + 16, 3);
      check_blocks(type, n, {0, 2}, 2 * round_up(n, 16), 2);
      check_blocks(type, n, {16, 2}, 2 * round_up(n, 16), 1);
    }
}

TEST(Pack, Bf16) {
  check_all<bf16_t>();
}
TEST(Pack, F32) {
  check_all<float>();
}

}  // namespace
}  // namespace invar
