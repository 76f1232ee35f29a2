#include "model/families/config_keys.h"

#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/families/family.h"

namespace invar {

namespace {

// Keys that cannot change a logit: names, training, storage, sampling defaults and the Python side.
constexpr std::string_view kHarmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "_commit_hash",
    "_from_model_config",
    "attention_dropout",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "is_matryoshka",
    "label2id",
    "length_penalty",
    "license",
    "matryoshka_dimensions",
    "max_length",
    "max_sequence_length",
    "min_length",
    "model_max_length",
    "neftune_noise_alpha",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sentence_transformers",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "tf_legacy_loss",
    "temperature",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_flash_attn",
};

// Keys that change the arithmetic unless they have this value (or are null or absent).
struct Neutral {
  std::string_view key;
  json::Value value;
};

const std::vector<Neutral>& neutral_values() {
  static const std::vector<Neutral> values = {
      {"pretraining_tp", 1},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"partial_rotary_factor", 1},
      {"rope_interleaved", false},
      {"use_mrope", false},
      {"add_cross_attention", false},
      {"cross_attention_hidden_size", {}},
      {"is_decoder", false},
      {"is_encoder_decoder", false},
      {"pruned_heads", json::Object{}},
      {"quantization", {}},
      {"compression_config", {}},
      {"attn_logit_softcapping", {}},
      {"final_logit_softcapping", {}},
      {"query_pre_attn_scalar", {}},
      {"attention_multiplier", {}},
      {"embedding_multiplier", 1},
      {"residual_multiplier", 1},
      {"logits_scaling", 1},
      {"logit_scale", 1},
      {"clip_qkv", {}},
      {"use_qk_norm", false},
      {"num_experts", {}},
      {"num_local_experts", {}},
      {"sliding_window_pattern", {}},
      {"dual_chunk_attention_config", {}},
  };
  return values;
}

bool is_same(const json::Value& a, const json::Value& b) {
  return a.is_number() && b.is_number() ? a.as_number() == b.as_number() : a == b;
}

}  // namespace

void check_neutral(ConfigReader& reader, std::string_view key, const json::Value& neutral) {
  const json::Value* value = reader.take(key);
  if (value && !is_same(*value, neutral))
    fail("{}: \"{}\": only {} is implemented, found {}", reader.where(), key, json::dump(neutral),
         json::excerpt(*value));
}

void ignore_harmless(ConfigReader& reader) {
  reader.ignore(kHarmless);
}

void check_neutral_keys(ConfigReader& reader) {
  for (const Neutral& neutral : neutral_values())
    if (!reader.is_known(neutral.key)) check_neutral(reader, neutral.key, neutral.value);
}

}  // namespace invar
