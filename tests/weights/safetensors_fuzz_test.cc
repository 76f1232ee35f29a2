// Mutated safetensors files: whatever the bytes, reading ends with a header that fits the file or
// with an Error. (tests/fuzz has the same target for libFuzzer.)
#include <random>

#include "model_files.h"
#include "weights/safetensors.h"

namespace invar {
namespace {

std::string valid_file() {
  return safetensors(
      R"({"__metadata__":{"format":"pt","note":"\u00e9"},)"
      R"("model.embed_tokens.weight":{"dtype":"BF16","shape":[8,4],"data_offsets":[0,64]},)"
      R"("model.norm.weight":{"dtype":"F32","shape":[4],"data_offsets":[64,80]},)"
      R"("scalar":{"dtype":"I64","shape":[],"data_offsets":[80,88]},)"
      R"("empty":{"dtype":"F16","shape":[0,3],"data_offsets":[88,88]},)"
      R"("lm_head.weight":{"dtype":"U8","shape":[2,2,3],"data_offsets":[88,100]}}   )",
      std::string(100, 'x'));
}

SafetensorsHeader parse(std::span<const std::byte> file) {
  return parse_safetensors_header(file, std::ssize(file), "f");
}

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  // A few random edits, most of them inside the header.
  void mutate(std::string& file) {
    for (int edits = 1 + below(3); edits > 0 && !file.empty(); --edits) mutate_once(file);
  }

 private:
  int below(size_t limit) { return static_cast<int>(random_() % limit); }

  void mutate_once(std::string& file) {
    static constexpr const char* kPieces[] = {"-1",
                                              "0",
                                              "1",
                                              "4",
                                              "18446744073709551615",
                                              "9223372036854775807",
                                              "4294967296",
                                              "1e3",
                                              "null",
                                              "[]",
                                              "{}",
                                              "\"",
                                              ",",
                                              ":",
                                              "}",
                                              "]",
                                              "[",
                                              "{",
                                              "\\u0000",
                                              "BF16",
                                              "F4",
                                              "\xff",
                                              "\"__metadata__\":{},",
                                              "\"dtype\":\"F64\",",
                                              "[0,64]",
                                              "[64,80]"};
    const size_t place = below(file.size());
    switch (below(7)) {
      case 0:
        file[place] = static_cast<char>(below(256));
        break;
      case 1:
        file[place] ^= static_cast<char>(1 << below(8));
        break;
      case 2:
        file.erase(place, 1 + below(8));
        break;
      case 3:
        file.insert(place, kPieces[below(std::size(kPieces))]);
        break;
      case 4:
        file.replace(place, 1 + below(4), kPieces[below(std::size(kPieces))]);
        break;
      case 5:  // the header's size
        file[below(std::min<size_t>(8, file.size()))] = static_cast<char>(below(256));
        break;
      case 6: {  // a piece of it moved elsewhere
        const std::string piece = file.substr(place, 1 + below(40));
        file.insert(below(file.size()), piece);
        break;
      }
    }
    if (below(4)) repair_size(file);
  }

  // Lets the edit reach the JSON parser: the size says where the buffer of 100 bytes begins.
  static void repair_size(std::string& file) {
    if (file.size() < 108) return;
    const uint64_t size = file.size() - 108;
    std::memcpy(file.data(), &size, sizeof size);
  }

  std::mt19937 random_;
};

void expect_sound(const SafetensorsHeader& header, size_t file_size) {
  int64_t next = -1;
  for (const SafetensorsTensor& tensor : header.tensors) {
    ASSERT_LE(0, tensor.begin);
    ASSERT_LE(tensor.begin, tensor.end);
    ASSERT_LE(tensor.end, static_cast<int64_t>(file_size));
    if (next >= 0) {
      ASSERT_EQ(tensor.begin, next);
    }
    next = tensor.end;
    for (const int64_t size : tensor.shape) ASSERT_GE(size, 0);
  }
}

TEST(SafetensorsFuzz, MutatedFilesAreReadOrRefused) {
  const std::string valid = valid_file();
  ASSERT_EQ(parse(std::as_bytes(std::span(valid))).tensors.size(), 5u);
  int read = 0, refused = 0;
  for (uint32_t seed = 0; seed < 20000; ++seed) {
    std::string file = valid;
    Mutator(seed).mutate(file);
    // An allocation of just its size, so that sanitizers see a read past the end.
    const std::vector<std::byte> bytes(
        reinterpret_cast<const std::byte*>(file.data()),
        reinterpret_cast<const std::byte*>(file.data()) + file.size());
    try {
      expect_sound(parse(bytes), file.size());
      ++read;
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(std::string_view(error.what()).substr(0, 3), "f: ") << seed;
    }
  }
  EXPECT_GT(read, 500);  // edits of names and of the buffer
  EXPECT_GT(refused, 5000);
}

TEST(SafetensorsFuzz, EveryTruncationIsRefused) {
  const std::string valid = valid_file();
  for (size_t size = 0; size < valid.size(); ++size) {
    const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(valid.data()),
                                       reinterpret_cast<const std::byte*>(valid.data()) + size);
    EXPECT_THROW(parse(bytes), Error) << size;
  }
}

}  // namespace
}  // namespace invar
