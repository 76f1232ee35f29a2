// Every key of every golden configuration with every hostile value: the result is an Error or a
// specification that can be computed.
#include "../weights/model_files.h"
#include "model/families/families.h"
#include "weights/hf_directory.h"

namespace invar {
namespace {

std::vector<json::Value> hostile_values() {
  std::vector<json::Value> values = {nullptr,
                                     true,
                                     false,
                                     0,
                                     1,
                                     -1,
                                     2,
                                     7,
                                     1 << 20,
                                     INT64_MAX,
                                     INT64_MIN,
                                     0.0,
                                     -0.5,
                                     1e-300,
                                     1e300,
                                     "",
                                     "silu",
                                     "llama",
                                     "yarn",
                                     json::Array{},
                                     json::Array{1},
                                     json::Array{"full_attention"},
                                     json::Object{},
                                     json::Object{{"rope_type", 1}},
                                     json::Object{{"type", "linear"}}};
  for (const char* type : {"linear", "llama3", "default"})
    for (const double factor : {-1.0, 0.0, 1.0, 1e300})
      values.push_back(json::Object{{"rope_type", type},
                                    {"factor", factor},
                                    {"low_freq_factor", factor},
                                    {"high_freq_factor", 4},
                                    {"original_max_position_embeddings", factor}});
  return values;
}

const char* const kMoreKeys[] = {"rope_theta",          "rope_scaling", "torch_dtype", "clip_qkv",
                                 "quantization_config", "no_such_key",  "head_dim"};

TEST(ConfigFuzz, HostileValuesAreReadSafelyOrRefused) {
  const std::vector<json::Value> values = hostile_values();
  int read = 0, refused = 0;
  for (const char* name :
       {"llama-gqa", "llama3-rope-tied", "mistral-window", "qwen2-bias", "qwen3-qknorm"}) {
    const json::Value golden =
        open_hf_directory(std::string(INVAR_SOURCE_DIR) + "/tests/data/golden/" + name).config;
    std::vector<std::string> keys(std::begin(kMoreKeys), std::end(kMoreKeys));
    for (const auto& [key, value] : golden.as_object()) keys.push_back(key);
    for (const std::string& key : keys)
      for (const json::Value& value : values) {
        json::Value config = golden;
        config.set(key, value);
        try {
          const DecoderSpec spec = parse_model_config(config, {}, "m").spec;
          EXPECT_NO_THROW(check_spec(spec, "m"));
          ++read;
        } catch (const Error& error) {
          expect_message(error.what(), "m/config.json: ");
          ++refused;
        }
      }
  }
  EXPECT_GT(read, 500);
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace invar
