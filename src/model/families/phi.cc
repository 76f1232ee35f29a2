// Phi-3, 3.5, 4 and 4-mini: q, k and v are one tensor, gate and up another one.
#include "model/families/family.h"

namespace invar {

namespace {

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const auto behind = [](int64_t first, const std::function<int64_t(int64_t)>& row) {
    return [=](int64_t i) { return first + (row ? row(i) : i); };
  };
  const std::string qkv = renamed(
      tensor.name, {{"q_proj", "qkv_proj"}, {"k_proj", "qkv_proj"}, {"v_proj", "qkv_proj"}});
  const std::string pair =
      renamed(tensor.name, {{"gate_proj", "gate_up_proj"}, {"up_proj", "gate_up_proj"}});
  const auto turning = rotation_rows(spec, false);
  switch (tensor.role) {
    case q:
      return {qkv, turning};
    case k:
      return {qkv, behind(spec.query_width(), turning)};
    case v:
      return {qkv, behind(spec.query_width() + spec.kv_width(), {})};
    case gate:
      return {pair, behind(0, {})};
    case up:
      return {pair, behind(spec.layer(tensor.layer).ffn()->width, {})};
    default:
      return {tensor.name};
  }
}

}  // namespace

extern const Family kPhi3{.name = "phi3",
                          .architecture = "Phi3ForCausalLM",
                          .windows = WindowRule::all_layers,
                          .has_rotated_share = true,
                          .stored = stored};

}  // namespace invar
