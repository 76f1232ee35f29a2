#include "served.h"

#include <algorithm>

#include "base/error.h"
#include "engine/model_size.h"
#include "frontend/body_fields.h"
#include "session/adapter.h"
#include "session/sampling_defaults.h"
#include "session/verify.h"
#include "weights/gguf.h"

namespace invar::cli {

namespace {

ToolFormat tool_format(const std::string& parser, const ChatTemplate& chat) {
  return parser == "auto" ? chat.tool_format() : tool_format_named(parser);
}

ThoughtFormat thought_format(const std::string& parser, const ChatTemplate& chat) {
  return parser == "auto" ? thought_format_of(chat.source()) : thought_format_named(parser);
}

// gpt-oss's calls are messages, which only its thoughts' reader tells apart.
void check_formats(const server::ServedModel& model) {
  if (model.tool_format == ToolFormat::gpt_oss && model.thought_format != ThoughtFormat::gpt_oss)
    fail_usage(
        "the tool-call-parser gpt_oss needs the reasoning-parser gpt_oss, found {}",
        model.thought_format == ThoughtFormat::none ? "none" : style_of(model.thought_format).name);
}

// The values that requests leave open: the model's or its family's, or with "vllm" vLLM's.
SamplingDefaults model_defaults(const ServeFlags& flags, const ModelOptions& model) {
  if (flags.generation_config == "vllm") return {{}, "vllm"};
  if (flags.generation_config != "auto")
    fail_usage("expected a generation-config of auto or vllm, found \"{}\"",
               flags.generation_config);
  return find_sampling_defaults(model);
}

// The same with what the flags say; throws UsageError for what no request may say.
SamplingDefaults sampling_defaults(const ServeFlags& flags, const ModelOptions& model) {
  SamplingDefaults defaults = model_defaults(flags, model);
  SamplingParams& params = defaults.params;
  const BodyFields fields(flags.sampling);
  for_each_field<&FieldFacts::of_model>(params, [&](const auto& field, auto& value) {
    if constexpr (std::is_same_v<decltype(value), double&>)
      fields.read_number(field.name, value);
    else
      fields.read_integer(field.name, value, static_cast<int64_t>(field.facts.low));
  });
  checked(params, INT32_MAX);
  if (!flags.sampling.as_object().empty()) defaults.from += ", and flags";
  return defaults;
}

}  // namespace

server::ModelCard card_of(const ModelOptions& options) {
  const ModelConfig config = read_model_config(options);
  const ModelSize size = size_of(*open_weights(options, config));
  const DecoderSpec& spec = config.spec;
  return {.family = spec.family,
          .format = is_gguf(options.model) ? "gguf" : "safetensors",
          .weights = std::string(name_of(size.most())),
          .parameters = size.parameters,
          .bytes = size.bytes,
          .layers = spec.layers,
          .hidden = spec.hidden,
          .heads = spec.heads,
          .kv_heads = spec.kv_heads};
}

Served::Served(const ServeFlags& flags, const ModelOptions& options, const Tokenizer& tokenizer) {
  model_.names = flags.names;
  model_.card = card_of(options);
  model_.tokenizer = &tokenizer;
  if (options.load_format == "auto") model_.directory = options.model;
  const SamplingDefaults defaults = sampling_defaults(flags, options);
  model_.defaults = defaults.params;
  model_.defaults_from = defaults.from;
  model_.defaults.logprobs_mode = logprobs_mode_of(flags.logprobs_mode);
  model_.numbers = open_number_form(options);
  model_.max_logprobs = flags.max_logprobs < 0 ? kMostLogprobs : flags.max_logprobs;
  model_.clamps_length = flags.clamp_max_tokens;
  model_.shares_prefixes = flags.share_prefixes || flags.server.keys.client.size() < 2;
  open_chat(flags, options);
  model_.texts = receipt_texts(options, flags.template_file);
  model_.texts.defaults = defaults_digest(model_.defaults);
  if (!flags.receipt_key.empty())
    model_.receipt_key = &receipt_key_.emplace(open_receipt_key(flags.receipt_key));
  open_adapters(flags, options);
  // Without a key whoever has the model can sign.
  const auto& texts = model_.texts;
  model_.seal = &seal_.emplace(receipt_key_ ? receipt_key_->secret("thoughts")
                                            : texts.tokenizer + texts.chat_template);
}
void Served::open_adapters(const ServeFlags& flags, const ModelOptions& options) {
  if (!flags.has_adapters && flags.adapters.empty()) return;
  model_.adapters = &adapters_.emplace(
      [spec = read_model_config(options).spec, user = options.adapter_user(),
       limits = flags.adapter_limits](const std::string& name, const std::string& directory) {
        auto adapter = open_adapter(name, directory, spec, user);
        AdapterSlots(limits).expect_possible(*adapter);
        return adapter;
      });
  for (const std::string& one : flags.adapters) {
    const size_t sign = one.find('=');
    if (sign == one.npos)
      fail_usage("expected NAME=PATH as --lora-modules, found {}", json::quoted(one));
    const std::string name = one.substr(0, sign);
    if (std::ranges::count(flags.names, name) > 0)
      fail_usage("{} is the name of the model and of an adapter", json::quoted(name));
    if (adapters_->find(name))
      fail_usage("{} is the name of two adapters in --lora-modules", json::quoted(name));
    adapters_->load(name, one.substr(sign + 1), false);
  }
}

void Served::open_chat(const ServeFlags& flags, const ModelOptions& options) {
  try {
    chat_ = open_chat_template(options, flags.template_file);
    model_.chat = &*chat_;
    model_.tool_format = tool_format(flags.tool_parser, *chat_);
    model_.thought_format = thought_format(flags.thought_parser, *chat_);
    check_formats(model_);
  } catch (const Error& error) {
    if (!flags.template_file.empty()) throw;
    model_.no_chat = error.what();
  }
}

}  // namespace invar::cli
