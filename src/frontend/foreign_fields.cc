#include "frontend/foreign_fields.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace invar::openai {

namespace {

constexpr ForeignField kFields[] = {
    // OpenAI
    {"best_of", "1", "all n answers are given"},
    {"functions", "[]", "ask for \"tools\""},
    {"function_call", "\"none\"|\"auto\"", "ask for \"tool_choice\""},
    {"audio", ""},
    {"modalities", "[]|[\"text\"]"},
    {"web_search_options", ""},
    {"verbosity", "\"medium\""},
    // vLLM
    {"use_beam_search", "false"},
    {"length_penalty", "1"},
    {"early_stopping", "false"},
    {"logits_processors", "[]"},
    {"logits_processor", "[]"},
    {"prompt_embeds", "[]", "give \"prompt\""},
    {"chat_template", "", "the server's own is used"},
    {"documents", "[]"},
    {"mm_processor_kwargs", "{}"},
    {"spaces_between_special_tokens", "true"},
    {"detokenize", "true", "ask for \"return_token_ids\""},
    {"logprob_token_ids", "[]"},
    {"repetition_detection", ""},
    {"structural_tag", ""},
    {"guided_whitespace_pattern", ""},
    {"vllm_xargs", "{}"},
    {"kv_transfer_params", "{}"},
    // SGLang
    {"regex", "", "ask for \"guided_regex\""},
    {"ebnf", ""},
    {"stop_regex", "[]|\"\""},
    {"no_stop_trim", "false", "ask for \"include_stop_str_in_output\""},
    {"max_new_tokens", "", "ask for \"max_tokens\""},
    {"min_new_tokens", "0", "ask for \"min_tokens\""},
    {"sampling_seed", "", "ask for \"seed\""},
    {"custom_logit_processor", "\"\""},
    {"custom_params", "{}"},
    {"lora_path", ""},
    {"session_params", "{}"},
    {"input_ids", "", "give \"prompt\""},
    {"input_embeds", "[]", "give \"prompt\""},
    {"image_data", "[]"},
    {"return_hidden_states", "false"},
    // llama.cpp
    {"n_predict", "", "ask for \"max_tokens\""},
    {"n_keep", "0"},
    {"n_discard", "0"},
    {"n_indent", "0"},
    {"n_probs", "0", "ask for \"logprobs\""},
    {"post_sampling_probs", "false"},
    {"min_keep", "0"},
    {"typical_p", "1"},
    {"typ_p", "1"},
    {"top_n_sigma", "-1|0"},
    {"xtc_probability", "0"},
    {"xtc_threshold", "0.1"},
    {"dynatemp_range", "0"},
    {"dynatemp_exponent", "1"},
    {"mirostat", "0"},
    {"mirostat_tau", "5"},
    {"mirostat_eta", "0.1"},
    {"repeat_penalty", "1", "ask for \"repetition_penalty\""},
    {"repeat_last_n", "-1", "all tokens are penalised"},
    {"penalize_nl", "false"},
    {"penalty_prompt", ""},
    {"dry_multiplier", "0"},
    {"dry_base", "1.75"},
    {"dry_allowed_length", "2"},
    {"dry_penalty_last_n", "-1|0"},
    {"dry_sequence_breakers", R"(["\n", ":", "\"", "*"])"},
    {"grammar", "\"\""},
    {"grammar_lazy", "false"},
    {"grammar_triggers", "[]"},
    {"json_schema", "", "ask for \"response_format\""},
    {"t_max_predict_ms", "-1|0", "send X-Request-Timeout"},
    {"lora", "[]"},
    {"input_prefix", "\"\""},
    {"input_suffix", "\"\"", "give all of the text as \"prompt\""},
    {"input_extra", "[]"},
    // Text Generation Inference, Transformers and others
    {"do_sample", "true", "ask for \"temperature\" 0"},
    {"num_beams", "1"},
    {"num_beam_groups", "1"},
    {"diversity_penalty", "0"},
    {"no_repeat_ngram_size", "0"},
    {"encoder_repetition_penalty", "1"},
    {"bad_words_ids", "[]", "ask for \"bad_words\""},
    {"force_words_ids", "[]"},
    {"suppress_tokens", "[]", "ask for \"logit_bias\""},
    {"max_length", "", "ask for \"max_tokens\""},
    {"min_length", "0", "ask for \"min_tokens\""},
    {"max_time", "", "send X-Request-Timeout"},
    {"truncate", "", "ask for \"truncate_prompt_tokens\""},
    {"guidance_scale", "1"},
    {"negative_prompt", "\"\""},
    {"watermark", "false"},
    {"penalty_alpha", "0"},
    {"epsilon_cutoff", "0"},
    {"eta_cutoff", "0"},
    {"top_a", "0"},
    {"tfs", "1"},
    {"tfs_z", "1"},
    {"smoothing_factor", "0"},
    {"smoothing_curve", "1"},
    {"nsigma", "0"},
    {"skew", "0"},
    {"temperature_last", "false"},
    {"token_healing", "false"},
};

// Numbers are equal whatever they are written as: 1 and 1.0.
bool is_equal(const json::Value& a, const json::Value& b) {
  if (a.is_number() && b.is_number()) return a.as_number() == b.as_number();
  return a == b;
}

bool asks_for_nothing(const json::Value& value, std::string_view neutral) {
  while (!neutral.empty()) {
    const size_t end = std::min(neutral.find('|'), neutral.size());
    if (is_equal(value, json::parse(neutral.substr(0, end), "a field's value"))) return true;
    neutral.remove_prefix(std::min(end + 1, neutral.size()));
  }
  return value.is_null();
}

std::string expectation(const ForeignField& field) {
  std::string text(field.neutral);
  for (size_t at; (at = text.find('|')) != text.npos;) text.replace(at, 1, ", ");
  return text.empty() ? "no such field" : text + " or no such field";
}

}  // namespace

std::span<const ForeignField> foreign_fields() {
  return kFields;
}

const ForeignField* find_field(std::span<const ForeignField> fields, std::string_view name) {
  const auto at = std::ranges::find(fields, name, &ForeignField::name);
  return at == fields.end() ? nullptr : &*at;
}

void refuse_fields(const json::Value& body, std::span<const ForeignField> fields) {
  for (const auto& [name, value] : body.as_object()) {
    const ForeignField* field = find_field(fields, name);
    if (!field || asks_for_nothing(value, field->neutral)) continue;
    fail_usage("the field {} is not supported: expected {}, found {}{}{}", json::quoted(name),
               expectation(*field), json::excerpt(value), field->instead.empty() ? "" : "; ",
               field->instead);
  }
}

}  // namespace invar::openai
