// DeepSeek-V3.2 and GLM 5: DeepSeek-V3 with an indexer that chooses which positions a row attends
// to. In GLM 5.2 most layers attend to what a layer before them chose.
#include "base/error.h"
#include "model/families/hybrid.h"
#include "model/families/latent.h"

namespace invar {

namespace {

// Ends of GLM's lists: its layers have their own index, or that of the last one that has.
constexpr std::string_view kIndexers[] = {"full", "shared"};

IndexerSpec read_indexer(ConfigReader& reader, int heads, bool is_interleaved) {
  IndexerSpec indexer;
  indexer.heads = read_size(reader, "index_n_heads", kMaxHeads, heads);
  indexer.size = read_size(reader, "index_head_dim", kMaxWidth, 128);
  indexer.most = read_size(reader, "index_topk", kMaxPositions, 2048);
  indexer.is_interleaved = reader.boolean("indexer_rope_interleave", is_interleaved);
  return indexer;
}

void set_indexer(DecoderSpec& spec, const IndexerSpec& indexer) {
  change_layers(spec, [&](LayerSpec& layer) { layer.attention()->latent->indexer = indexer; });
}

// Every layer attends to what an indexer chose: by its newer name, and the older one.
void check_layer_types(ConfigReader& reader, const DecoderSpec& spec) {
  constexpr std::string_view kKinds[] = {"indexed_attention", "deepseek_sparse_attention"};
  read_kinds(reader, "layer_types", spec.layers, kKinds);
}

void read_v32(ConfigReader& reader, DecoderSpec& spec) {
  read_latent_experts(reader, spec);
  check_layer_types(reader, spec);
  set_indexer(spec, read_indexer(reader, 64, false));
}

// A letter for each layer: F has its own index, S shares one.
std::vector<bool> read_pattern(ConfigReader& reader, std::string_view key, int layers) {
  const std::string pattern = reader.text(key, "");
  if (pattern.empty()) return {};
  if (std::ssize(pattern) != layers || pattern.find_first_not_of("FS") != std::string::npos)
    fail("{}: \"{}\": expected {} letters, F or S, found {}", reader.where(), key, layers,
         json::quoted(pattern));
  std::vector<bool> shared;
  for (const char letter : pattern) shared.push_back(letter == 'S');
  return shared;
}

// The layers that share an index, by a list of names, a pattern, or how many layers come to one
// that has its own.
std::vector<bool> read_shared(ConfigReader& reader, int layers) {
  const std::vector<size_t> kinds = read_kinds(reader, "indexer_types", layers, kIndexers);
  std::vector<bool> shared = read_pattern(reader, "index_topk_pattern", layers);
  const int64_t every = reader.integer("index_topk_freq", 1, kMaxLayers, 1);
  const int64_t first = reader.integer("index_skip_topk_offset", 0, kMaxLayers, 2);
  if (shared.empty())
    for (int64_t i = 0; i < layers; ++i)
      shared.push_back(std::max<int64_t>(i - first + 1, 0) % every != 0);
  if (!kinds.empty()) shared.assign(kinds.begin(), kinds.end());
  return shared;
}

void read_glm(ConfigReader& reader, DecoderSpec& spec) {
  read_latent_experts(reader, spec);
  check_layer_types(reader, spec);
  // How drafts of more than one step would be made; and the type of a router's sums.
  constexpr std::string_view kHarmless[] = {"index_share_for_mtp_iteration", "moe_router_dtype"};
  reader.ignore(kHarmless);
  set_indexer(spec, read_indexer(reader, 32, true));
  const std::vector<bool> shared = read_shared(reader, spec.layers);
  for (size_t i = 0; i < shared.size(); ++i)
    spec.layer_specs[i].attention()->latent->indexer->is_shared = shared[i];
}

void write_indexer(const DecoderSpec& spec, json::Value& config) {
  write_latent_experts(spec, config);
  const IndexerSpec& indexer = *find_indexer(spec);
  config.set("index_n_heads", indexer.heads);
  config.set("index_head_dim", indexer.size);
  config.set("index_topk", indexer.most);
  config.set("indexer_rope_interleave", indexer.is_interleaved);
}

void write_glm(const DecoderSpec& spec, json::Value& config) {
  write_indexer(spec, config);
  json::Array types;
  for (const LayerSpec& layer : spec.layer_specs)
    types.push_back(kIndexers[layer.indexer()->is_shared ? 1 : 0]);
  config.set("indexer_types", std::move(types));
}

// Where a spec of another family becomes this: few positions, so that short texts have a choice.
constexpr IndexerSpec kSmall{.heads = 4, .size = 32, .most = 48};

void imply_v32(DecoderSpec& spec) {
  imply_latent_experts(spec);
  change_layers(spec, [](LayerSpec& layer) {
    if (!layer.indexer()) layer.attention()->latent->indexer = kSmall;
  });
}

// The last three of four layers share what the first chose.
void imply_glm(DecoderSpec& spec) {
  imply_latent_experts(spec);
  for (int i = 0; i < spec.layers; ++i) {
    LayerSpec& layer = spec.layer_specs[static_cast<size_t>(i)];
    if (layer.indexer()) continue;
    IndexerSpec indexer = kSmall;
    indexer.is_interleaved = true;
    indexer.is_shared = i % 4 != 0;
    layer.attention()->latent->indexer = indexer;
  }
}

}  // namespace

extern const Family kDeepseekV32{.name = "deepseek_v32",
                                 .architecture = "DeepseekV32ForCausalLM",
                                 .has_layer_kinds = true,
                                 .module_reads_output = true,
                                 .read_sizes = read_latent_sizes,
                                 .read = read_v32,
                                 .write = write_indexer,
                                 .stored = stored_latent_experts,
                                 .imply = imply_v32};

extern const Family kGlmMoeDsa{.name = "glm_moe_dsa",
                               .architecture = "GlmMoeDsaForCausalLM",
                               .has_layer_kinds = true,
                               .module_reads_output = true,
                               .read_sizes = read_latent_sizes,
                               .read = read_glm,
                               .write = write_glm,
                               .stored = stored_latent_experts,
                               .imply = imply_glm};

}  // namespace invar
