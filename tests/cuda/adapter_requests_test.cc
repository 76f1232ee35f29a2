// Requests with adapters on a GPU against the CPU, in both orders and several weight modes.
#include <filesystem>

#include "../engine/answers.h"
#include "../support/adapter_files.h"
#include "../weights/model_files.h"
#include "cuda_check.h"
#include "model/adapter_weights.h"
#include "model/families/presets.h"
#include "model/families/quantised_checkpoint.h"
#include "weights/lora_adapter.h"

namespace invar {
namespace {

using testing_engine::Record;

std::shared_ptr<const RequestAdapter> made_adapter(const DecoderSpec& spec, uint32_t number,
                                                   int rank) {
  std::vector<testing_adapter::Module> modules;
  for (const AdapterModule& module : adaptable_modules(spec, AdapterUser::gpu))
    if (number != 2 || module.name.ends_with("q_proj") || module.name.ends_with("v_proj"))
      modules.push_back({module.name, module.outputs, module.inputs});
  const auto directory =
      std::filesystem::path(::testing::TempDir()) /
      ("cuda_adapters_" + std::to_string(::getpid()) + "_" + std::to_string(number));
  testing_adapter::write(directory, modules, {.seed = number, .rank = rank});
  const LoraAdapter read(directory.string());
  ThreadPool pool(1);
  return std::make_shared<const RequestAdapter>(
      RequestAdapter{std::to_string(number), directory.string(), rank, read.digest(pool)});
}

// Two requests with each of three adapters and two without, at the same time.
std::map<int64_t, Record::Answer> answers(const ModelOptions& options) {
  Model model(options);
  Engine engine(model, {.kv_bytes = 16 << 20, .adapters = {.most = 4, .most_rank = 64}});
  const std::shared_ptr<const RequestAdapter> adapters[] = {
      nullptr, made_adapter(model.spec(), 1, 16), made_adapter(model.spec(), 2, 3),
      made_adapter(model.spec(), 3, 40)};
  for (int i = 0; i < 8; ++i) {
    Request request;
    request.id = i;
    for (int t = 0; t < 60 + 20 * (i / 4); ++t) request.prompt.edit().push_back((5 + t * 7) % 500);
    request.params.max_tokens = 24;
    request.params.temperature = 0.8F;
    request.params.seed = 11;
    request.adapter = adapters[i % 4];
    engine.add(std::move(request));
  }
  Record record;
  while (engine.has_work()) engine.step(record);
  EXPECT_EQ(engine.check_integrity(), "");
  for (int i = 1; i < 4; ++i) EXPECT_NE(record.answers[i].hashes, record.answers[0].hashes);
  return record.answers;
}

using RequestsWithAdapters = CudaTest;

void expect_the_cpus(ModelOptions options) {
  options.device = "cpu";
  const auto expected = answers(options);
  options.device = "cuda";
  const std::string what = options.model + " " + options.arithmetic + " " + options.weights;
  EXPECT_EQ(answers(options), expected) << what;
  options.ranks = 2;
  EXPECT_EQ(answers(options), expected) << what << " on 2 ranks";
}

TEST_F(RequestsWithAdapters, RequestsHaveTheCpusBits) {
  for (const char* arithmetic : {"portable", "hopper"})
    expect_the_cpus({.model = "tiny", .load_format = "dummy:7", .arithmetic = arithmetic});
  expect_the_cpus(
      {.model = "tiny", .load_format = "dummy:7", .arithmetic = "portable", .weights = "exact"});
}

TEST_F(RequestsWithAdapters, RequestsOfModelsIn8BitsHaveTheCpusBits) {
  const TempDirectory files;
  ThreadPool pool(2);
  make_model(files / "bf16", {.spec = preset_spec("tiny")}, 7, pool);
  write_w8a8(files / "bf16", files / "int8", pool);
  write_fp8(files / "bf16", files / "fp8", pool);
  for (const char* arithmetic : {"portable", "hopper"})
    expect_the_cpus({.model = files / "int8", .arithmetic = arithmetic});
  expect_the_cpus({.model = files / "fp8", .arithmetic = "hopper", .weights = "fp8"});
}

// An adapter whose files are gone when its slot is filled fails its requests and no others.
TEST_F(RequestsWithAdapters, ABrokenAdapterFailsItsRequestsAlone) {
  for (const char* device : {"cpu", "cuda"}) {
    Model model({.model = "tiny", .load_format = "dummy:7", .device = device});
    Engine engine(model, {.kv_bytes = 16 << 20, .adapters = {.most = 4, .most_rank = 64}});
    const auto good = made_adapter(model.spec(), 1, 16), broken = made_adapter(model.spec(), 4, 16);
    std::filesystem::remove_all(broken->directory);
    for (int i = 0; i < 3; ++i) {
      Request request;
      request.id = i;
      for (int t = 0; t < 60; ++t) request.prompt.edit().push_back((5 + t * 7) % 500);
      request.params.max_tokens = 8;
      request.adapter = i == 0 ? good : i == 1 ? broken : nullptr;
      engine.add(std::move(request));
    }
    Record record;
    while (engine.has_work()) engine.step(record);
    EXPECT_EQ(record.answers[0].tokens.size(), 8U) << device;
    EXPECT_NE(record.answers[1].error, "") << device;
    EXPECT_EQ(record.answers[2].tokens.size(), 8U) << device;
  }
}

}  // namespace
}  // namespace invar
