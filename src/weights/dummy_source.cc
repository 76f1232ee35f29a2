#include "weights/dummy_source.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "numerics/philox.h"

namespace invar {

namespace {

constexpr int kMeanOfBytes = 510;             // of the sum of 4 uniform bytes
constexpr double kVarianceOfBytes = 21845.0;  // 4 * (256^2 - 1) / 12
constexpr int64_t kTogether = 32;             // elements that the vector code makes at once

struct Stream {
  uint64_t seed, hash;
  float mean, scale;
};

int sum_of_bytes(uint32_t x) {
  return static_cast<int>((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24));
}

// The keys of the 10 rounds, in every lane.
struct RoundKeys {
  explicit RoundKeys(uint64_t seed) {
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
      first[round] = _mm256_set1_epi64x(k0);
      second[round] = _mm256_set1_epi64x(k1);
    }
  }
  __m256i first[10], second[10];
};

// Philox of 4 counters, one in each 64-bit lane. Only the low half of a lane counts: the products
// read nothing else, so that what is above needs no clearing.
struct PhiloxLanes {
  PhiloxLanes(int64_t group, uint64_t hash) {
    const __m256i groups =
        _mm256_add_epi64(_mm256_set1_epi64x(group), _mm256_set_epi64x(3, 2, 1, 0));
    c[0] = groups;
    c[1] = _mm256_srli_epi64(groups, 32);
    c[2] = _mm256_set1_epi64x(static_cast<int64_t>(hash));
    c[3] = _mm256_srli_epi64(c[2], 32);
  }

  void round(__m256i k0, __m256i k1) {
    const __m256i p0 = _mm256_mul_epu32(c[0], _mm256_set1_epi64x(0xD2511F53));
    const __m256i p1 = _mm256_mul_epu32(c[2], _mm256_set1_epi64x(0xCD9E8D57));
    c[0] = _mm256_xor_si256(_mm256_xor_si256(high_half(p1), c[1]), k0);
    c[1] = p1;
    c[2] = _mm256_xor_si256(_mm256_xor_si256(high_half(p0), c[3]), k1);
    c[3] = p0;
  }

  // As a shuffle: the shifter's port is busy with the products.
  static __m256i high_half(__m256i x) { return _mm256_shuffle_epi32(x, 0xf5); }

  __m256i c[4];
};

// The bf16 elements, as 32-bit numbers, of 8 random words.
__m256i elements_of(__m256i words, const Stream& stream) {
  const __m256i pairs = _mm256_maddubs_epi16(words, _mm256_set1_epi8(1));
  const __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const __m256 centred =
      _mm256_cvtepi32_ps(_mm256_sub_epi32(sums, _mm256_set1_epi32(kMeanOfBytes)));
  const __m256 value = _mm256_add_ps(_mm256_set1_ps(stream.mean),
                                     _mm256_mul_ps(centred, _mm256_set1_ps(stream.scale)));
  const __m256i bits = _mm256_castps_si256(value);  // finite and normal: f32_to_bf16's last line
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
}

void store_elements(const PhiloxLanes& x, const Stream& stream, bf16_t* out) {
  // Words of one group side by side, then groups in order.
  const __m256i first = _mm256_blend_epi32(x.c[0], _mm256_slli_epi64(x.c[1], 32), 0xaa);
  const __m256i second = _mm256_blend_epi32(x.c[2], _mm256_slli_epi64(x.c[3], 32), 0xaa);
  const __m256i even = _mm256_unpacklo_epi64(first, second);  // groups 0 and 2
  const __m256i odd = _mm256_unpackhi_epi64(first, second);   // groups 1 and 3
  const __m256i low = elements_of(_mm256_permute2x128_si256(even, odd, 0x20), stream);
  const __m256i high = elements_of(_mm256_permute2x128_si256(even, odd, 0x31), stream);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), packed);
}

// Elements [index, index + 32); index is a multiple of 4. Two chains of rounds at a time, since one
// leaves the multiplier waiting.
void make_block(const Stream& stream, const RoundKeys& keys, int64_t index, bf16_t* out) {
  PhiloxLanes a(index / 4, stream.hash), b(index / 4 + 4, stream.hash);
  for (int round = 0; round < 10; ++round) {
    a.round(keys.first[round], keys.second[round]);
    b.round(keys.first[round], keys.second[round]);
  }
  store_elements(a, stream, out);
  store_elements(b, stream, out + 16);
}

void make_elements(const Stream& stream, int64_t first, int64_t count, bf16_t* out) {
  const RoundKeys keys(stream.seed);
  const int64_t end = first + count;
  int64_t i = first;
  for (; i < end && i % 4; ++i)
    *out++ = dummy_element(stream.seed, stream.hash, i, stream.mean, stream.scale);
  for (; i + kTogether <= end; i += kTogether, out += kTogether) make_block(stream, keys, i, out);
  for (; i < end; ++i)
    *out++ = dummy_element(stream.seed, stream.hash, i, stream.mean, stream.scale);
}

}  // namespace

uint64_t hash_of_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

bf16_t dummy_element(uint64_t seed, uint64_t name_hash, int64_t index, float mean, float scale) {
  const uint64_t group = static_cast<uint64_t>(index) / 4;
  const PhiloxCounter words =
      philox4x32({static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                  static_cast<uint32_t>(name_hash), static_cast<uint32_t>(name_hash >> 32)},
                 seed);
  const int centred = sum_of_bytes(words[index % 4]) - kMeanOfBytes;
  return f32_to_bf16(mean + static_cast<float>(centred) * scale);
}

DummySource::DummySource(const std::vector<DummyTensor>& tensors, uint64_t seed) : seed_(seed) {
  for (const DummyTensor& tensor : tensors) {
    CHECK(tensor.deviation == 0 || tensor.deviation >= 1e-20,
          "a deviation makes subnormal weights");
    DummyEntry& entry = entries_[tensor.name];
    entry.info.shape = tensor.shape;
    entry.hash = hash_of_name(tensor.name);
    entry.mean = static_cast<float>(tensor.mean);
    entry.scale = static_cast<float>(tensor.deviation / std::sqrt(kVarianceOfBytes));
  }
  list_names();
}

void DummySource::read(std::string_view name, int64_t first, int64_t count, DType as,
                       void* out) const {
  const DummyEntry& entry = find(name);
  CHECK(first >= 0 && count >= 0 && first + count <= entry.info.elements(),
        "read outside a tensor");
  const Stream stream{seed_, entry.hash, entry.mean, entry.scale};
  constexpr int64_t kStep = 1024;
  bf16_t block[kStep];
  for (int64_t i = 0; i < count; i += kStep) {
    const int64_t n = std::min(kStep, count - i);
    make_elements(stream, first + i, n, block);
    convert_elements(block, DType::bf16, n, as, static_cast<char*>(out) + i * size_of(as));
  }
}

std::string DummySource::where(std::string_view name) const {
  return fmt::format("random weights of seed {}: tensor {}", seed_, json::quoted(name));
}

}  // namespace invar
