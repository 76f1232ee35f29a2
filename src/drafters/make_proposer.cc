#include "drafters/make_proposer.h"

#include "base/error.h"
#include "drafters/eagle.h"
#include "drafters/early_exit.h"
#include "drafters/layer_search.h"
#include "drafters/medusa.h"
#include "drafters/mtp_drafter.h"
#include "drafters/vocabulary.h"
#include "speculative/adaptive.h"
#include "speculative/lookahead.h"
#include "speculative/prompt_lookup.h"
#include "speculative/suffix_lookup.h"

namespace invar {

namespace {

// A drafter's model, on the first of the target's devices. Its own threads only load it.
std::shared_ptr<Model> load_drafter(const SpeculativeConfig& config, Model& target) {
  const ModelOptions& of = target.options();
  ModelOptions options{.model = config.model,
                       .arithmetic = of.arithmetic,
                       .weights = of.weights,
                       .device = of.device,
                       .instruction_set = of.instruction_set,
                       .threads = 1,
                       .context = of.context,
                       .ignored_config_keys = of.ignored_config_keys};
  if (config.model.starts_with("dummy:")) {
    options.model = of.model;
    options.load_format = config.model;
  }
  auto drafter = std::make_shared<Model>(options);
  const int found = drafter->spec().vocab, expected = target.spec().vocab;
  if (found != expected)
    fail_usage("expected a drafter of the target's vocabulary of {} tokens, found {} in {}",
               expected, found, config.model);
  expect_same_vocabulary(of.model, options.model);
  if (sees_ahead(drafter->spec()))
    fail_usage(
        "expected a drafter whose attention looks back, found {}, whose attention looks in both "
        "directions",
        config.model);
  return drafter;
}

TreeShape shape_of(const SpeculativeConfig& config, int32_t tokens) {
  if (!config.tree.empty()) return config.tree;
  return chain_shape(config.num_speculative_tokens > 0 ? config.num_speculative_tokens : tokens);
}

int exit_layer_of(const SpeculativeConfig& config, const DecoderSpec& spec) {
  const int layer = config.exit_layer > 0 ? config.exit_layer : spec.layers / 2;
  if (layer < 1 || layer >= spec.layers)
    fail_usage("expected an exit_layer from 1 to {}, one before the target's last, found {}",
               spec.layers - 1, layer);
  return layer;
}

std::vector<int> layers_to_skip(const SpeculativeConfig& config, Model& target,
                                ThreadPool* threads) {
  const int last = target.spec().layers - 1;
  if (last < 2)
    fail_usage("the method swift skips inner layers, and the target has {} layers", last + 1);
  if (config.skip_layers.empty()) return search_layers_to_skip(target, threads);
  if (config.skip_layers.back() >= last)
    fail_usage("expected skip_layers from 1 to {}, before the target's last, found {}", last - 1,
               config.skip_layers.back());
  for (const int layer : config.skip_layers)
    if (target.spec().is_shared(layer))
      fail_usage(
          "expected skip_layers of whose keys, values and indexes no later layer reads any, found "
          "{}",
          layer);
  return {config.skip_layers.begin(), config.skip_layers.end()};
}

// A chain as long as num_speculative_tokens, or a tree of so many nodes.
EagleOptions eagle_options(const SpeculativeConfig& config, const DrafterRoom& room) {
  const bool is_chain = config.eagle_topk == 1;
  const int32_t said = config.num_speculative_tokens, nodes = said > 0 ? said : is_chain ? 3 : 24;
  return {
      .kind = config.method == DraftMethod::eagle ? EagleKind::eagle : EagleKind::eagle3,
      .num_speculative_tokens = nodes,
      .topk = config.eagle_topk,
      .depth = is_chain ? nodes : config.eagle_depth,
      .confidence = config.draft_confidence,
      .room = room,
  };
}

// Whether the first layer from `layer` on that reads an index has one of its own. Else the layers
// before must be computed beside it, for all of its rows.
bool has_own_index_from(const DecoderSpec& spec, int layer) {
  for (; layer < spec.layers; ++layer) {
    const LayerSpec& of = spec.layer_specs[static_cast<size_t>(layer)];
    if (const IndexerSpec* indexer = of.indexer()) return !indexer->is_shared;
  }
  return true;
}

// Drafting by some of the target's layers.
std::unique_ptr<Proposer> make_of_layers(const SpeculativeConfig& config, Model& target,
                                         const DrafterRoom& room, ThreadPool* threads) {
  const std::shared_ptr<Model> itself(std::shared_ptr<Model>(), &target);  // it owns nothing
  ModelDrafterOptions options{
      .shape = shape_of(config, 4), .confidence = config.draft_confidence, .room = room};
  if (config.method == DraftMethod::swift) {
    options.skipped_layers = layers_to_skip(config, target, threads);
    return std::make_unique<ModelDrafter>(itself, options, threads);
  }
  const int32_t length = config.num_speculative_tokens > 0 ? config.num_speculative_tokens : 3;
  options.exit_layer = exit_layer_of(config, target.spec());
  options.shape = shape_of(config, length);
  if (config.tree.empty() && target.device().is_host() &&
      has_own_index_from(target.spec(), options.exit_layer))
    return std::make_unique<EarlyExit>(target, options.exit_layer, length, config.draft_confidence,
                                       room.max_sequences, *threads);
  return std::make_unique<ModelDrafter>(itself, options, threads);
}

std::unique_ptr<Proposer> make_method(const SpeculativeConfig& config, Model& target,
                                      const DrafterRoom& room, ThreadPool* threads) {
  const auto tokens = [&](int32_t otherwise) {
    return config.num_speculative_tokens > 0 ? config.num_speculative_tokens : otherwise;
  };
  switch (config.method) {
    case DraftMethod::none:
      return nullptr;
    case DraftMethod::ngram:
      return std::make_unique<PromptLookup>(
          PromptLookupOptions{.num_speculative_tokens = tokens(5),
                              .prompt_lookup_min = config.prompt_lookup_min,
                              .prompt_lookup_max = config.prompt_lookup_max});
    case DraftMethod::suffix:
      return std::make_unique<SuffixLookup>(
          SuffixLookupOptions{.num_speculative_tokens = tokens(24),
                              .max_spec_factor = config.suffix_decoding_max_spec_factor,
                              .corpus_tokens = config.suffix_decoding_corpus_tokens});
    case DraftMethod::lookahead:
      return std::make_unique<Lookahead>(LookaheadOptions{.window = config.lookahead_window,
                                                          .ngram = config.lookahead_ngram,
                                                          .guesses = config.lookahead_guesses});
    case DraftMethod::draft_model:
      return std::make_unique<ModelDrafter>(
          load_drafter(config, target),
          ModelDrafterOptions{
              .shape = shape_of(config, 4), .confidence = config.draft_confidence, .room = room},
          threads);
    case DraftMethod::early_exit:
    case DraftMethod::swift:
      return make_of_layers(config, target, room, threads);
    case DraftMethod::mtp:
      return std::make_unique<MtpDrafter>(target,
                                          MtpDrafterOptions{.num_speculative_tokens = tokens(3),
                                                            .confidence = config.draft_confidence,
                                                            .room = room},
                                          threads);
    case DraftMethod::medusa:
      return std::make_unique<Medusa>(config.model, shape_of(config, 0), target, *threads);
    case DraftMethod::eagle:
    case DraftMethod::eagle3:
      return std::make_unique<Eagle>(config.model, eagle_options(config, room), target, *threads);
  }
  fail_usage("the method {} is not there yet", name_of(config.method));
}

}  // namespace

ModelOptions with_drafter(ModelOptions options, const SpeculativeConfig& config) {
  options.mtp_module = config.method == DraftMethod::mtp;
  options.rejection = config.rejection;
  return options;
}

std::unique_ptr<Proposer> make_drafter(const SpeculativeConfig& config, Model& target,
                                       const DrafterRoom& room, ThreadPool* threads) {
  return make_method(config, target, room, threads ? threads : &target.pool());
}

std::unique_ptr<Proposer> with_lengths(std::unique_ptr<Proposer> proposer,
                                       const SpeculativeConfig& config) {
  if (!proposer || (!config.adaptive && config.disable_by_batch_size == 0)) return proposer;
  return std::make_unique<Adaptive>(
      std::move(proposer), AdaptiveOptions{.adapts = config.adaptive,
                                           .disable_by_batch_size = config.disable_by_batch_size,
                                           .undrafted_slowdown = config.undrafted_slowdown});
}

std::unique_ptr<Proposer> make_proposer(const SpeculativeConfig& config, Model& target,
                                        const DrafterRoom& room, ThreadPool* threads) {
  return with_lengths(make_drafter(config, target, room, threads), config);
}

}  // namespace invar
