// OLMo 2 and 3, EXAONE 4: norms stand behind attention and the feed-forward network. OLMo's q/k
// norm is one of all heads.
#include "model/families/family.h"

namespace invar {

namespace {

void put_norms_behind(DecoderSpec& spec) {
  change_layers(spec, [](LayerSpec& layer) {
    layer.attention()->norms = layer.ffn()->norms = NormPlace::after;
  });
}

void imply_olmo(DecoderSpec& spec) {
  spec.joint_qk_norm = true;
  put_norms_behind(spec);
}

// Where some layers have windows, the others do not rotate.
void read_exaone(ConfigReader&, DecoderSpec& spec) {
  bool has_window = false;
  for (const LayerSpec& layer : spec.layer_specs) has_window |= layer.attention()->window > 0;
  if (has_window)
    change_layers(spec, [](LayerSpec& layer) {
      if (layer.attention()->window == 0) layer.attention()->rope = std::nullopt;
    });
}

}  // namespace

extern const Family kOlmo2{.name = "olmo2",
                           .architecture = "Olmo2ForCausalLM",
                           .qk_norm = true,
                           .has_attention_bias = true,
                           .imply = imply_olmo};

extern const Family kOlmo3{.name = "olmo3",
                           .architecture = "Olmo3ForCausalLM",
                           .qk_norm = true,
                           .has_attention_bias = true,
                           .windows = WindowRule::pattern,
                           .pattern = 4,
                           .theta = 500000,
                           .local_theta = 500000,
                           .imply = imply_olmo};

extern const Family kExaone4{.name = "exaone4",
                             .architecture = "Exaone4ForCausalLM",
                             .qk_norm = true,
                             .windows = WindowRule::pattern,
                             .pattern = 4,
                             .read = read_exaone,
                             .imply = put_norms_behind};

}  // namespace invar
