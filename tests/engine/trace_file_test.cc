// Recordings of runs: schedules do not show in them, and a changed weight is found where it is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/trace_file.h"
#include "kernels/select.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "numerics/dtype.h"

namespace invar {
namespace {

class TraceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "invar-trace-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string operator/(const std::string& name) const { return directory_ + "/" + name; }

  std::string directory_;
};

constexpr int kPromptSize = 41;

ModelOptions tiny() {
  return {.model = "tiny", .load_format = "dummy:7", .threads = 1};
}

EngineOptions small_engine() {
  EngineOptions options;
  options.scheduler.max_model_len = 128;
  options.kv_bytes = 16 << 20;
  return options;
}

std::vector<int32_t> prompt(int request) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < kPromptSize; ++i) tokens.push_back((17 * i + 5 * request + i * i) % 500);
  return tokens;
}

// Two requests of kPromptSize tokens, six tokens of answer each.
TraceFile record(const std::string& path, const ModelOptions& model_options,
                 const EngineOptions& engine_options = small_engine(),
                 int64_t max_value_bytes = 1 << 30) {
  struct : OutputSink {
    void on_token(const TokenOutput&) override {}
  } sink;
  Model model(model_options);
  Engine engine(model, engine_options);
  json::Value about;
  about.set("ranks", model.ranks());
  TraceWriter trace(path, about, max_value_bytes);
  engine.set_trace(&trace);
  for (const int request : {1, 2})
    engine.add(
        {.id = request, .prompt = prompt(request), .params = {.temperature = 0, .max_tokens = 6}});
  while (engine.step(sink)) {
  }
  trace.finish();
  return TraceFile(path);
}

int64_t rows_of(const TraceFile& file, std::string_view op) {
  int64_t count = 0;
  for (const TraceRecord& r : file.records()) count += file.ops()[r.op].name == op;
  return count;
}

TEST_F(TraceTest, SchedulesThreadsAndInstructionSetsDoNotShow) {
  const TraceFile plain = record(*this / "plain", tiny());
  // All rows but the last token's; logits where a token was drawn.
  EXPECT_EQ(rows_of(plain, "embed"), 2 * (kPromptSize + 5));
  EXPECT_EQ(rows_of(plain, "qkv"), 4 * 2 * (kPromptSize + 5));
  EXPECT_EQ(rows_of(plain, "logits"), 2 * 6);
  const auto expect_equal = [&](const TraceFile& other, const std::string& what) {
    const TraceComparison result = compare(plain, other);
    EXPECT_FALSE(result.first) << what;
    EXPECT_EQ(result.equal, std::ssize(plain.records())) << what;
  };
  EngineOptions chunks = small_engine();
  chunks.scheduler.max_num_batched_tokens = 7;
  chunks.scheduler.max_num_seqs = 2;
  expect_equal(record(*this / "chunks", tiny(), chunks), "chunks of 7 rows");
  EngineOptions blocks = small_engine();
  blocks.block_size = 32;
  blocks.scheduler.max_num_seqs = 1;
  ModelOptions threads = tiny();
  threads.threads = 3;
  expect_equal(record(*this / "threads", threads, blocks), "3 threads, alone, blocks of 32");
  for (const std::string& set : instruction_sets()) {
    ModelOptions options = tiny();
    options.instruction_set = set;
    if (is_supported(set))
      expect_equal(record(*this / set, options), set);
    else
      std::printf("not run: %s is not available on this machine\n", set.c_str());
  }
  ModelOptions cuts = tiny();
  cuts.layer_cuts = {1, 3};
  expect_equal(record(*this / "cuts", cuts), "layer cuts");
}

TEST_F(TraceTest, RanksShareOutSomeOperationsAndAgreeInTheOthers) {
  const TraceFile one = record(*this / "one", tiny());
  ModelOptions options = tiny();
  options.ranks = 2;
  const TraceFile two = record(*this / "two", options);
  const TraceComparison result = compare(one, two);
  EXPECT_FALSE(result.first);
  EXPECT_EQ(result.not_comparable, 4 * 4 * 2 * (kPromptSize + 5));  // qkv, rope, attention, gated
  EXPECT_EQ(result.equal + result.not_comparable, std::ssize(one.records()));
}

TEST_F(TraceTest, AnotherSeedDiffersFromTheEmbeddingOn) {
  const TraceFile a = record(*this / "a", tiny());
  ModelOptions options = tiny();
  options.load_format = "dummy:8";
  const TraceFile b = record(*this / "b", options);
  const TraceComparison result = compare(a, b);
  ASSERT_TRUE(result.first);
  EXPECT_EQ(result.first->a->position, 0);
  EXPECT_EQ(a.ops()[result.first->a->op], (TraceOp{"embed", -1}));
  EXPECT_GT(result.different, result.equal);
}

// Changes the first element of a tensor in a model directory of one file.
void perturb(const std::string& directory, const std::string& tensor, int64_t element = 0) {
  std::fstream file(directory + "/model.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(size));
  const json::Value parsed = json::parse(header, "header");
  const json::Value* entry = parsed.find(tensor);
  ASSERT_NE(entry, nullptr) << tensor;
  ASSERT_EQ(entry->find("dtype")->as_string(), "BF16");
  const int64_t at = static_cast<int64_t>(8 + size) +
                     entry->find("data_offsets")->as_array()[0].as_integer() + 2 * element;
  bf16_t value = 0;
  file.seekg(at);
  file.read(reinterpret_cast<char*>(&value), sizeof value);
  value = f32_to_bf16(bf16_to_f32(value) + 0.5f);
  file.seekp(at);
  file.write(reinterpret_cast<const char*>(&value), sizeof value);
  ASSERT_TRUE(file.good());
}

TEST_F(TraceTest, AChangedWeightIsFoundInItsLayerAndOperation) {
  const std::string model = *this / "model";
  ModelConfig config;
  config.spec = preset_spec("tiny");
  ThreadPool pool(1);
  make_model(model, config, 7, pool);
  const ModelOptions options{.model = model, .threads = 1};
  const TraceFile original = record(*this / "original", options);
  EXPECT_FALSE(compare(record(*this / "dummy", tiny()), original).first);

  struct Case {
    std::string tensor;
    TraceOp op;
    int position = 0;
    int64_t element = 0;
  };
  const int64_t hidden = config.spec.hidden;
  const std::vector<Case> cases = {
      {"model.embed_tokens.weight", {"embed", -1}, 3, prompt(1)[3] * hidden},
      {"model.layers.0.input_layernorm.weight", {"attention_norm", 0}},
      {"model.layers.2.self_attn.k_proj.weight", {"qkv", 2}},
      {"model.layers.1.self_attn.q_norm.weight", {"rope", 1}},
      {"model.layers.3.self_attn.o_proj.weight", {"o", 3}},
      {"model.layers.1.post_attention_layernorm.weight", {"ffn_norm", 1}},
      {"model.layers.2.mlp.up_proj.weight", {"gated", 2}},
      {"model.layers.3.mlp.down_proj.weight", {"down", 3}},
      {"model.norm.weight", {"final_norm", -1}, kPromptSize - 1},
      {"lm_head.weight", {"logits", -1}, kPromptSize - 1},
  };
  for (const Case& c : cases) {
    const std::string changed = *this / "changed";
    std::filesystem::remove_all(changed);
    std::filesystem::copy(model, changed, std::filesystem::copy_options::recursive);
    perturb(changed, c.tensor, c.element);
    const TraceFile other = record(*this / "other", {.model = changed, .threads = 1});
    const TraceComparison result = compare(original, other);
    ASSERT_TRUE(result.first) << c.tensor;
    const TraceDifference& first = *result.first;
    EXPECT_EQ(original.ops()[first.a->op], c.op) << c.tensor;
    EXPECT_EQ(first.a->request, 1) << c.tensor;
    EXPECT_EQ(first.a->position, c.position) << c.tensor;
    ASSERT_TRUE(first.has_values);
    EXPECT_GE(first.differing_values, 1);
    EXPECT_NE(first.a->values[first.index], first.b->values[first.index]);
    for (int64_t i = 0; i < first.index; ++i)
      EXPECT_EQ(first.a->values[i], first.b->values[i]) << c.tensor;
  }
}

TEST_F(TraceTest, PastTheLimitHashesAloneStillFindTheDifference) {
  ModelOptions other = tiny();
  other.load_format = "dummy:8";
  const TraceFile a = record(*this / "a", tiny(), small_engine(), 0);
  const TraceFile b = record(*this / "b", other, small_engine(), 1000);
  const TraceFile c = record(*this / "c", tiny(), small_engine(), 1 << 20);
  const TraceComparison result = compare(a, b);
  ASSERT_TRUE(result.first);
  EXPECT_FALSE(result.first->has_values);
  EXPECT_EQ(a.ops()[result.first->a->op].name, "embed");
  EXPECT_FALSE(compare(a, c).first);
  const auto size = [&](const char* name) { return std::filesystem::file_size(*this / name); };
  EXPECT_GT(size("c"), size("a") + (1 << 19));
  EXPECT_LE(size("c"), size("a") + (1 << 20));
}

TEST_F(TraceTest, OtherTokensAndShorterRunsAreDifferences) {
  const auto write = [&](const char* name, std::vector<TracedRow> rows, float value) {
    TraceWriter trace(*this / name, json::Object{}, 1 << 20);
    trace.begin_step(rows);
    const std::vector<float> values(2 * rows.size(), value);
    trace.record({"x", 0, values.data(), std::ssize(rows), 2, 2, nullptr});
    trace.finish();
    return TraceFile(*this / name);
  };
  const TraceFile a = write("a", {{1, 0, 5}, {1, 1, 6}}, 1);
  EXPECT_EQ(compare(a, write("b", {{1, 0, 5}, {1, 1, 7}}, 1)).first->a->op, 0);
  const TraceFile shorter = write("c", {{1, 0, 5}}, 1);
  const TraceComparison only = compare(a, shorter);
  EXPECT_EQ(only.equal, 2);
  EXPECT_EQ(only.only_a, 2);
  EXPECT_EQ(only.first->b, nullptr);
  EXPECT_EQ(compare(shorter, a).only_b, 2);
  // -0 is +0 and every NaN is the same NaN.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(compare(write("z", {{1, 0, 5}}, 0.0f), write("nz", {{1, 0, 5}}, -0.0f)).first);
  EXPECT_FALSE(compare(write("n", {{1, 0, 5}}, nan), write("nn", {{1, 0, 5}}, -nan)).first);
  EXPECT_TRUE(compare(write("n", {{1, 0, 5}}, nan), write("z", {{1, 0, 5}}, 0)).first);
}

TEST_F(TraceTest, BrokenRecordingsAreRefused) {
  {
    TraceWriter trace(*this / "good", json::Object{}, 1 << 20);
    trace.begin_step(std::vector<TracedRow>{{1, 0, 5}});
    trace.finish();
  }
  std::string good(std::filesystem::file_size(*this / "good"), ' ');
  std::ifstream(*this / "good", std::ios::binary).read(good.data(), std::ssize(good));
  const auto read = [&](std::string_view bytes) {
    std::ofstream(*this / "bad", std::ios::binary) << bytes;
    return TraceFile(*this / "bad");
  };
  EXPECT_EQ(read(good).records().size(), 1u);
  const size_t header = 8 + 8 + 8;  // the description {} takes one word
  for (size_t n = 0; n < good.size(); ++n) {
    if (n == header) continue;  // a recording of no steps
    EXPECT_THROW(read(std::string_view(good).substr(0, n)), Error) << n;
  }
  std::string wide = good;
  wide[header + 24 + 4 + 4 + 7] = 0x7f;  // the highest byte of the width
  EXPECT_THROW(read(wide), Error);
  EXPECT_THROW(TraceFile(*this / "none"), Error);
  EXPECT_THROW(TraceWriter(*this / "no/such/directory", {}, 0), Error);
}

TEST(UlpDistance, CountsValuesBetween) {
  EXPECT_EQ(ulp_distance(1.0f, 1.0f), 0u);
  EXPECT_EQ(ulp_distance(0.0f, -0.0f), 0u);
  EXPECT_EQ(ulp_distance(1.0f, std::nextafter(1.0f, 2.0f)), 1u);
  EXPECT_EQ(ulp_distance(2.0f, std::nextafter(2.0f, 0.0f)), 1u);
  EXPECT_EQ(ulp_distance(1.0f, 2.0f), 1u << 23);
  EXPECT_EQ(ulp_distance(-1.0f, 1.0f), 2u * 0x3f800000);
  EXPECT_EQ(ulp_distance(std::numeric_limits<float>::quiet_NaN(), 1.0f), std::nullopt);
}

}  // namespace
}  // namespace invar
