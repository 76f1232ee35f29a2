// A user's settings of speculative decoding: vLLM's JSON of --speculative-config, checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "speculative/tree_shape.h"

namespace invar {

enum class DraftMethod {
  none,
  ngram,        // prompt_lookup.h
  suffix,       // suffix_lookup.h
  lookahead,    // lookahead.h
  draft_model,  // drafters/model_drafter.h
  early_exit,   // the same
  swift,        // the same
  mtp,          // drafters/mtp_drafter.h
  medusa,       // drafters/medusa.h
  eagle,        // drafters/eagle.h
  eagle3,       // the same
};

// The name in the JSON.
std::string_view name_of(DraftMethod method);

struct SpeculativeConfig {
  DraftMethod method = DraftMethod::none;
  std::string model;  // a directory; of methods that have weights of their own
  // Tokens of a draft; 0: the method's own number.
  int32_t num_speculative_tokens = 0;
  TreeShape tree;  // empty: a chain of so many

  int32_t prompt_lookup_min = 5, prompt_lookup_max = 5;  // of ngram
  double suffix_decoding_max_spec_factor = 1.0;          // of suffix
  int64_t suffix_decoding_corpus_tokens = int64_t{1} << 20;
  int32_t lookahead_window = 7, lookahead_ngram = 5, lookahead_guesses = 7;  // W, N, G
  // Drafters with a model end a draft where its likeliest token has less than this share.
  double draft_confidence = 0;
  int32_t exit_layer = 0;            // of early_exit: layers that draft; 0: half of them
  std::vector<int32_t> skip_layers;  // of swift: layers that do not draft; empty: searched
  // For eagle and eagle3: nodes of a level that are expanded (1: a chain), levels of such a tree.
  int32_t eagle_topk = 1, eagle_depth = 5;

  // Drafts are accepted by rejection (rejection.h) and not as the target's own samples.
  bool rejection = false;
  // No drafts in a step that so many sequences or more decode in; 0: always.
  int32_t disable_by_batch_size = 0;
  // Drafts are as long as pays, by what was accepted and what steps cost so far.
  bool adaptive = true;
  // Then: by what share drafts may lengthen a step for sequences that get none.
  double undrafted_slowdown = 0.05;

  bool is_on() const { return method != DraftMethod::none; }
  bool operator==(const SpeculativeConfig&) const = default;
};

// Keys and meanings are vLLM's; `exit_layer`, `skip_layers`, `lookahead_*`, `eagle_*`,
// `draft_confidence`, `adaptive` and `undrafted_slowdown` are Invar's. Throws UsageError with one
// sentence for JSON that is none, an unknown key, a value out of range, a key of another method,
// and what would change answers (typical acceptance, a quantized drafter).
SpeculativeConfig parse_speculative_config(std::string_view json);

// Takes over what is not said in `config` from the short flags of vLLM (--spec-method,
// --spec-model, --spec-tokens); empty and 0 say nothing. Throws UsageError as above, and when both
// say it.
SpeculativeConfig with_short_flags(std::string_view json, const std::string& method,
                                   const std::string& model, int32_t tokens);

}  // namespace invar
