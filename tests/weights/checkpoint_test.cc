#include <algorithm>
#include <map>

#include "blocks_source.h"
#include "model_files.h"
#include "weights/checkpoint_writer.h"
#include "weights/dummy_source.h"
#include "weights/hf_directory.h"
#include "weights/safetensors.h"
#include "weights/weights_digest.h"

namespace invar {
namespace {

// Tensors of every type with values counted from a start.
class CountingSource : public TensorSource {
 public:
  CountingSource() {
    infos_ = {{"a.half", {DType::f16, {3, 5}}},
              {"b.odd", {DType::bf16, {7}}},
              {"c.wide", {DType::f32, {100, 90}}},
              {"d.empty", {DType::bf16, {0, 4}}},
              {"e.number", {DType::f32, {}}}};
    for (const auto& [name, info] : infos_) names_.push_back(name);
  }
  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override { return infos_.contains(std::string(name)); }
  const TensorInfo& info(std::string_view name) const override {
    return infos_.at(std::string(name));
  }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    if (name == failing) fail("{} cannot be read", name);
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(first + i + 1);
      if (as == DType::f32)
        static_cast<float*>(out)[i] = value;
      else
        static_cast<uint16_t*>(out)[i] = as == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
    }
  }
  std::string where(std::string_view name) const override { return std::string(name); }

  std::string failing;

 private:
  std::map<std::string, TensorInfo> infos_;
  std::vector<std::string> names_;
};

void expect_same(const TensorSource& a, const TensorSource& b) {
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) {
    ASSERT_EQ(a.info(name), b.info(name));
    const int64_t count = a.info(name).elements();
    std::vector<float> x(count), y(count);
    a.read(name, 0, count, DType::f32, x.data());
    b.read(name, 0, count, DType::f32, y.data());
    if (a.info(name).dtype == DType::f16) continue;  // CountingSource does not convert
    EXPECT_EQ(x, y) << name;
  }
}

int files_in(const std::string& directory) {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

TEST(CheckpointWriter, WritesWhatItWasGiven) {
  const TempDirectory directory;
  const CountingSource source;
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const std::string path = directory / fmt::format("new/{}", threads);
    int64_t done = 0, total = 0;
    write_checkpoint(path, source, pool, {.progress = [&](int64_t now, int64_t all) {
                       EXPECT_GE(now, done);
                       done = now;
                       total = all;
                     }});
    EXPECT_EQ(total, 3 * 5 * 2 + 7 * 2 + 9000 * 4 + 4);
    EXPECT_EQ(done, total);
    expect_same(source, *open_checkpoint(path));
    EXPECT_EQ(files_in(path), 1);
  }
  EXPECT_EQ(read_file(directory / "new/1/model.safetensors"),
            read_file(directory / "new/3/model.safetensors"));
}

TEST(CheckpointWriter, BlocksAreBytesWithTheirTypeInTheMetadata) {
  const TempDirectory directory;
  ThreadPool pool(2);
  const auto source = [](const char* changed) {
    return InBlocks(std::make_unique<DummySource>(
                        std::vector<DummyTensor>{{"a", {3, 64}, 0, 1}, {"b", {5}, 0, 1}}, 1),
                    {.changed = changed});
  };
  const InBlocks stored = source("");
  write_checkpoint(directory / "stored", stored, pool);
  const auto opened = open_checkpoint(directory / "stored");
  EXPECT_EQ(opened->info("a"), (TensorInfo{DType::q8_0, {3, 64}}));
  EXPECT_EQ(opened->info("b").dtype, DType::bf16);
  expect_same(stored, *opened);
  std::vector<uint8_t> expected(3 * 68), found(3 * 68);
  stored.read("a", 0, 192, DType::q8_0, expected.data());
  opened->read("a", 0, 192, DType::q8_0, found.data());
  EXPECT_EQ(found, expected);
  const SafetensorsFile file(directory / "stored/model.safetensors");
  const SafetensorsTensor& bytes = file.tensors()[1];  // 16-bit ones come first
  EXPECT_EQ(bytes.name + " " + bytes.dtype, "a U8");
  EXPECT_EQ(bytes.shape, (std::vector<int64_t>{3, 68}));
  EXPECT_EQ(file.header().metadata.back(),
            (std::pair<std::string, std::string>("storage:a", "q8_0")));

  // The digest is of what is stored.
  const auto digest = [&](const TensorSource& of) { return weights_digest(of, {"a"}, pool); };
  EXPECT_EQ(digest(stored), digest(*opened));
  EXPECT_NE(digest(stored), digest(source("a")));
}

TEST(CheckpointWriter, BlocksThatAreNotWholeOrNotFiniteAreRefused) {
  const TempDirectory directory;
  const auto write = [&](const char* name, int bytes) {
    const std::string header = fmt::format(
        R"({{"__metadata__":{{"storage:a":"q8_0"}},"a":{{"dtype":"U8","shape":[1,{0}],"data_offsets":[0,{0}]}}}})",
        bytes);
    write_file(directory / name + "/model.safetensors",
               safetensors(header, std::string(bytes, '\x7f')));
    return directory / name;
  };
  expect_message(error_of([&] { open_checkpoint(write("odd", 35)); }),
                 "expected rows of whole q8_0 blocks of 34 bytes, found rows of 35");
  ThreadPool pool(1);
  const auto source = open_checkpoint(write("nan", 68));
  expect_message(error_of([&] { check_finite(*source, "a", pool); }),
                 "expected finite weights, found nan in row 0, column 0");
}

TEST(CheckpointWriter, TensorsBeginAligned) {
  const TempDirectory directory;
  ThreadPool pool(1);
  write_checkpoint(directory.path(), CountingSource(), pool);
  const SafetensorsFile file(directory / "model.safetensors");
  EXPECT_EQ(file.tensors()[0].begin % 64, 0);
  for (const SafetensorsTensor& tensor : file.tensors())
    EXPECT_EQ(tensor.begin % (tensor.dtype == "F32" ? 4 : 2), 0) << tensor.name;
}

TEST(CheckpointWriter, IntegersStandInFront) {
  const TempDirectory directory;
  ThreadPool pool(1);
  const std::vector<int64_t> values = {-1, 0, int64_t{1} << 40};
  write_checkpoint(directory.path(), CountingSource(), pool, {.integers = {{"d2t", values}}});
  const SafetensorsFile file(directory / "model.safetensors");
  const SafetensorsTensor& first = file.tensors()[0];
  EXPECT_EQ(first.name + " " + first.dtype, "d2t I64");
  EXPECT_EQ(first.shape, std::vector<int64_t>{3});
  std::vector<int64_t> read(3);
  file.read(first, 0, std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, values);
  EXPECT_EQ(file.tensors().size(), CountingSource().names().size() + 1);
}

TEST(CheckpointWriter, CutsIntoShards) {
  const TempDirectory directory;
  ThreadPool pool(2);
  const DummySource source({{"a", {100}, 0, 1},
                            {"b", {150}, 0, 1},
                            {"c", {50}, 0, 1},
                            {"d", {1000}, 0, 1},
                            {"e", {1}, 0, 1}},
                           1);
  write_checkpoint(directory.path(), source, pool, {.max_shard_bytes = 500});
  EXPECT_EQ(files_in(directory.path()), 5);  // and the index
  const SafetensorsFile first(directory / "model-00001-of-00004.safetensors");
  EXPECT_EQ(first.tensors().size(), 2u);  // exactly 500 bytes
  const json::Value index = json::parse_file(directory / "model.safetensors.index.json");
  EXPECT_EQ(index.find("metadata")->find("total_size")->as_integer(), 2602);
  expect_same(source, *open_checkpoint(directory.path()));
}

TEST(CheckpointWriter, RefusesWhatItCannotDo) {
  const TempDirectory directory;
  ThreadPool pool(2);
  CountingSource source;
  write_file(directory / "file", "x");
  expect_message(error_of([&] { write_checkpoint(directory / "file", source, pool); }),
                 "file: cannot be created: Not a directory");
  expect_message(error_of([&] { write_checkpoint(directory / "file/x", source, pool); }),
                 "cannot be created: Not a directory");
  write_checkpoint(directory / "twice", source, pool);
  expect_message(error_of([&] { write_checkpoint(directory / "twice", source, pool); }),
                 "expected a directory without weights, found model.safetensors");
  source.failing = "c.wide";
  expect_message(error_of([&] { write_checkpoint(directory / "fails", source, pool); }),
                 "c.wide cannot be read");
  EXPECT_EQ(files_in(directory / "fails"), 0);
  const DummySource huge({{"a", {int64_t{1} << 60}, 0, 1}}, 1);
  expect_message(error_of([&] { write_checkpoint(directory / "huge", huge, pool); }),
                 "cannot be reserved");
  EXPECT_EQ(files_in(directory / "huge"), 0);
}

TEST(WeightsDigest, IsTheSameForFilesShardsAndThreads) {
  const TempDirectory directory;
  const DummySource source({{"a", {100, 100}, 0, 1}, {"b", {4096}, 0, 1}, {"c", {5000}, 0, 1}}, 9);
  ThreadPool one(1), three(3);
  const Digest digest = weights_digest(source, source.names(), one);
  EXPECT_EQ(weights_digest(source, {"c", "a", "b"}, three), digest);
  write_checkpoint(directory / "one", source, one);
  write_checkpoint(directory / "many", source, one, {.max_shard_bytes = 1});
  EXPECT_EQ(weights_digest(*open_checkpoint(directory / "one"), source.names(), three), digest);
  EXPECT_EQ(weights_digest(*open_checkpoint(directory / "many"), source.names(), three), digest);
}

TEST(WeightsDigest, SeesEveryElementNameAndShape) {
  ThreadPool pool(1);
  const auto digest = [&](std::vector<DummyTensor> tensors) {
    const DummySource source(tensors, 1);
    return weights_digest(source, source.names(), pool);
  };
  const Digest base = digest({{"a", {64, 100}, 0, 1}});
  EXPECT_EQ(digest({{"a", {64, 100}, 0, 1}}), base);
  EXPECT_NE(digest({{"a", {100, 64}, 0, 1}}), base);  // the same bytes
  EXPECT_NE(digest({{"b", {64, 100}, 0, 1}}), base);
  EXPECT_NE(digest({{"a", {64, 100}, 0, 1}, {"b", {0}, 0, 1}}), base);

  const TempDirectory directory;
  const std::string header = R"({"a":{"dtype":"F32","shape":[5000],"data_offsets":[0,20000]}})";
  std::string buffer(20000, '\0');
  std::vector<Digest> seen;
  for (const size_t byte : {0, 16383, 16384, 19999}) {
    buffer[byte] ^= 1;
    write_file(directory / "model.safetensors", safetensors(header, buffer));
    seen.push_back(weights_digest(*open_checkpoint(directory.path()), {"a"}, pool));
    EXPECT_EQ(std::count(seen.begin(), seen.end(), seen.back()), 1);
  }
}

// Written out by hand, so that the definition in the header is what is computed.
TEST(WeightsDigest, FollowsItsDefinition) {
  const TempDirectory directory;
  const std::string buffer = "abcdefgh";
  write_file(directory / "model.safetensors",
             safetensors(R"({"w":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}})", buffer));
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  const auto append = [](std::string& out, const Digest& digest) {
    out.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  };
  using namespace std::string_literals;
  const std::string zeros(7, '\0');
  std::string tensor = "\x01"s + zeros + "w" + "\x04" + zeros + "bf16" + "\x02" + zeros + "\x02" +
                       zeros + "\x02" + zeros;
  append(tensor, sha256(bytes(buffer)));
  std::string all;
  append(all, sha256(bytes(tensor)));
  ThreadPool pool(1);
  EXPECT_EQ(weights_digest(*open_checkpoint(directory.path()), {"w"}, pool), sha256(bytes(all)));
}

}  // namespace
}  // namespace invar
