// Logits of a model's directory at every position of a text, for whoever compares them with another
// implementation's: family_logits DIRECTORY TOKENS OUT [ORDER [CHUNK [INSTRUCTION_SET [CONTEXT
// [ADAPTER [MODULE]]]]]].
// TOKENS is a file of int32, OUT becomes one of f32 [position][vocabulary], and MODULE one of those
// of the module of multi-token prediction, one position less.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "kernels/select.h"
#include "model/families/families.h"
#include "model/families/family_source.h"
#include "model/families/tensors.h"
#include "model/forward.h"
#include "weights/hf_directory.h"
#include "weights/lora_adapter.h"
#include "weights/mxfp4_source.h"

namespace invar {
namespace {

struct Options {
  std::string directory, tokens, out;
  Order order = Order::portable;
  bool is_exact = false;  // computed in f32 throughout
  int chunk = 1 << 20;
  std::string set = "auto";
  int context = 0;
  std::string adapter;  // a directory as PEFT saves it
  std::string module;   // where its logits go
};

std::vector<int32_t> read_tokens(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<int32_t> tokens(static_cast<size_t>(file.tellg()) / sizeof(int32_t));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(tokens.data()),
            static_cast<std::streamsize>(tokens.size() * sizeof(int32_t)));
  return tokens;
}

// Reads hidden states behind the final norm, as a published module of Qwen's does.
void write_module(const std::string& path, Decoder& decoder, std::span<const int32_t> tokens,
                  std::vector<float> hidden) {
  const DecoderSpec& spec = decoder.spec;
  const int rows = static_cast<int>(tokens.size()) - 1, blocks = (rows + 63) / 64;
  std::vector<float> normed(hidden.size());
  decoder.kernels.rms_norm({.x = hidden.data(),
                            .x_stride = spec.hidden,
                            .rows_of = nullptr,
                            .weight = decoder.weights->final_norm(),
                            .eps = spec.norm_eps,
                            .rows = rows,
                            .width = spec.hidden,
                            .out = {normed.data(), DType::f32, spec.hidden}},
                           decoder.execution);
  SequenceStore kv(decoder.device(), states_of(spec, {}, {spec.layers, spec.layers + 1}),
                   {.blocks = blocks, .block_size = 64, .first_layer = spec.layers});
  Workspace workspace(decoder, rows, rows);
  Batch batch{.features = normed, .layer_begin = spec.layers, .layer_end = spec.layers + 1};
  batch.sequences.resize(1);
  for (int i = 0; i < blocks; ++i) batch.sequences[0].blocks.push_back(i);
  for (int i = 0; i < rows; ++i) {
    batch.logit_rows.push_back(i);
    batch.rows.push_back(
        {.token = tokens[static_cast<size_t>(i) + 1], .position = i, .features = i});
  }
  ForwardIo io;
  forward(decoder, batch, kv, workspace, solo_group(), io);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(io.logits.data()),
             static_cast<std::streamsize>(io.logits.size_bytes()));
}

int run(const Options& o) {
  const ScopedFlushToZero flush;
  const HfDirectory files = open_hf_directory(o.directory);
  ModelConfig config = parse_model_config(files.config, files.generation_config, o.directory);
  if (o.context > 0) set_context(config.spec, o.context);
  auto stored = open_checkpoint(o.directory);
  if (is_mxfp4(config.quantization, o.directory)) stored = mxfp4_tensors(std::move(stored));
  const auto source = decoder_tensors(config.spec, std::move(stored));
  const DecoderSpec spec = spec_of_stored(config.spec, *source);
  check_tensors(spec, *source);
  const CacheType cache = o.is_exact ? CacheType::f32 : CacheType::bf16;
  const Arithmetic arithmetic{.order = o.order,
                              .weights = o.is_exact ? DType::f32 : product_type(spec, *source),
                              .is_exact = o.is_exact,
                              .cache = cache};
  const Kernels kernels = select_kernels(o.order, o.set);
  const auto device = make_host_device();
  ThreadPool pool(1);
  const DecoderWeights weights(spec, arithmetic, make_shard(spec, 0, 1), *source, *device, pool);
  Decoder decoder(spec, arithmetic, kernels, weights, *device, &pool);
  const std::vector<int32_t> tokens = read_tokens(o.tokens);
  const int rows = static_cast<int>(tokens.size()), chunk = std::min(o.chunk, rows);
  SequenceStore kv(*device, states_of(spec, {}, {0, spec.all_layers()}),
                   {.blocks = (rows + 63) / 64,
                    .block_size = 64,
                    .cells = has_states(spec),
                    .scratch = {.chunks = chunk / kBoundary + 2},
                    .type = cache});
  Workspace workspace(decoder, chunk, chunk, 1);
  std::ofstream out(o.out, std::ios::binary);
  std::vector<float> hidden;
  for (int done = 0; done < rows; done += chunk) {
    Batch batch;
    batch.sequences.push_back({.cell = 0});
    if (!o.adapter.empty()) {
      const LoraAdapter adapter(o.adapter);
      batch.sequences[0].adapter = 0;
      batch.adapters = {
          {0, static_cast<int32_t>(adapter.most_rank()), o.adapter, to_hex(adapter.digest(pool))}};
    }
    for (int i = 0; i < (rows + 63) / 64; ++i) batch.sequences[0].blocks.push_back(i);
    for (int i = done; i < std::min(done + chunk, rows); ++i) {
      batch.logit_rows.push_back(static_cast<int32_t>(batch.rows.size()));
      batch.rows.push_back({.token = tokens[static_cast<size_t>(i)], .position = i});
    }
    batch.aux_layers = {spec.layers - 1};
    ForwardIo io;
    forward(decoder, batch, kv, workspace, solo_group(), io);
    hidden.insert(hidden.end(), io.aux_hidden.begin(), io.aux_hidden.end());
    out.write(reinterpret_cast<const char*>(io.logits.data()),
              static_cast<std::streamsize>(io.logits.size_bytes()));
  }
  if (!o.module.empty()) write_module(o.module, decoder, tokens, std::move(hidden));
  fmt::print("{}\n", identity(arithmetic, spec));
  return 0;
}

}  // namespace
}  // namespace invar

int main(int argc, char** argv) {
  invar::Options o;
  if (argc < 4) return 2;
  o.directory = argv[1], o.tokens = argv[2], o.out = argv[3];
  if (argc > 4 && std::string(argv[4]) == "hopper") o.order = invar::Order::hopper;
  o.is_exact = argc > 4 && std::string(argv[4]) == "exact";
  if (argc > 5) o.chunk = std::stoi(argv[5]);
  if (argc > 6) o.set = argv[6];
  if (argc > 7) o.context = std::stoi(argv[7]);
  if (argc > 8) o.adapter = argv[8];
  if (argc > 9) o.module = argv[9];
  try {
    return invar::run(o);
  } catch (const invar::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
