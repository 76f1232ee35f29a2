// A family is a row, and functions for what is its own. The rows stand in the files of this folder;
// family_rows.cc lists them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoder_spec.h"
#include "model/families/column_pieces.h"
#include "model/families/config_reader.h"
#include "model/families/tensor_table.h"

namespace invar {

// Which layers see a window only (all the others see every earlier key).
enum class WindowRule {
  none,        // no layer
  all_layers,  // every layer, when sliding_window is a number; absent means 4096
  switched,    // layers from max_window_layers on, when use_sliding_window is true
  pattern,     // all but every `pattern`-th, when sliding_window is a number; absent means 4096
};

// Where a tensor of the decoder stands in a checkpoint.
struct StoredAt {
  std::string tensor;
  std::function<int64_t(int64_t)> row = {};  // where each of its rows does; empty: at its own place
  bool is_plus_one = false;                  // 1 is added to its elements, in f32 (Gemma's norms)
  float scale = 1;                           // its elements are multiplied by it, in f32
  bool is_exponential = false;               // it holds -exp of its elements (GGUF's A)
  std::vector<int64_t> shape = {};           // that it must have; empty: the tensor's own, or rows
  bool is_transposed = false;                // its columns are rows there, from row(0) on
  int64_t column = 0, step = 1;  // then its rows are every step-th column from `column` on
  ColumnPieces pieces = {};      // where its columns stand
};

struct Family {
  std::string_view name;  // model_type
  std::string_view architecture;
  std::string_view other_architecture = {};  // whose class newer files of this model_type name
  std::string_view unread = {};              // tensors of a module that predicts further begin so
  // Whether a tensor is stored that nothing reads, by its name without images; null: none is.
  bool (*is_unread)(const DecoderSpec&, std::string_view) = nullptr;
  bool qkv_bias = false;             // implied
  bool qk_norm = false;              // implied
  bool has_attention_bias = false;   // the key "attention_bias" adds biases to q, k, v and o
  bool has_mlp_bias = false;         // the key "mlp_bias"
  int64_t head_dim = 0;              // when the key is absent; 0: hidden / heads
  bool has_dense_layers = true;      // the key "intermediate_size" has to be there
  bool has_states = false;           // "layer_types" says which layers have states; `read` reads it
  bool has_layer_kinds = false;      // it names kinds of the family's own; `read` reads it
  bool has_image_positions = false;  // its rotations name the parts of an image's positions
  WindowRule windows = WindowRule::none;
  int pattern = 0;           // of WindowRule::pattern
  bool is_tied = false;      // where tie_word_embeddings is absent
  double theta = 10000;      // where rope_theta is
  double local_theta = 0;    // of layers with windows, whose rotation is another one; 0: the same
  double rotated_share = 1;  // of a head, where partial_rotary_factor is absent
  bool has_rotated_share = false;                       // the key "partial_rotary_factor"
  const char* module_key = "num_nextn_predict_layers";  // modules of multi-token prediction
  bool has_unannounced_module = false;  // the key may be absent where the tensors are there
  // A module's tensors begin so (Qwen); empty: it is one more layer (DeepSeek).
  std::string_view module_prefix = {};
  // The module reads hidden states behind the model's final norm, and its own ones behind its own.
  bool module_reads_output = false;
  const char* activation_key = "hidden_act";
  const char* eps_key = "rms_norm_eps";
  Nonlinearity curve = Nonlinearity::silu;
  // Reads the sizes where their keys are others; null: Llama's.
  void (*read_sizes)(ConfigReader&, DecoderSpec&) = nullptr;
  // Reads and sets what is its own, after all that families have in common; null: nothing is.
  void (*read)(ConfigReader&, DecoderSpec&) = nullptr;
  // The same keys, back.
  void (*write)(const DecoderSpec&, json::Value&) = nullptr;
  // Where its tensors stand; null: where Llama's do.
  StoredAt (*stored)(const DecoderSpec&, const TensorSpec&) = nullptr;
  // Where they stand in another form of checkpoints, if there is nothing at the first place; null:
  // there is none.
  StoredAt (*stored_otherwise)(const DecoderSpec&, const TensorSpec&) = nullptr;
  // Sets what it implies whatever the configuration says; null: nothing more than the above.
  void (*imply)(DecoderSpec&) = nullptr;
  // Then gives the layers of what was a model of another family parts of its own; null: they keep
  // attention and a dense network.
  void (*shape)(DecoderSpec&) = nullptr;
};

std::span<const Family* const> all_families();
const Family* find_family(std::string_view Family::*field, std::string_view value);
const Family& family_of(const DecoderSpec& spec);

// Which rows of a tensor of queries or keys stand where, when the first `rotated` elements of a
// head turn: in the decoder element i of them turns with i + E/2. They are stored in pairs of
// neighbours, or as their first half and their second.
std::function<int64_t(int64_t)> rotation_rows(const DecoderSpec& spec, bool are_neighbours);
// The same of heads of `e` elements of which so many pairs turn.
std::function<int64_t(int64_t)> rotation_rows(int64_t e, int64_t turning, bool are_neighbours);

// The name with its beginning, or a part of it, as another library has it.
std::string renamed(std::string name,
                    std::initializer_list<std::pair<std::string_view, std::string_view>> parts);

// ---- For what reads configurations

inline constexpr int64_t kMaxWidth = 1 << 20, kMaxLayers = 4096, kMaxHeads = 1 << 14;
inline constexpr int64_t kMaxVocab = 1 << 24, kMaxPositions = 1 << 27;

// Throws Error unless the key is absent, null or `neutral`: other values change the arithmetic.
void check_neutral(ConfigReader& reader, std::string_view key, const json::Value& neutral);
// Windows of all layers.
void read_windows(ConfigReader& reader, const Family& family, DecoderSpec& spec);
// Back, as read_windows reads them.
void write_windows(const DecoderSpec& spec, WindowRule rule, json::Value& config);
// Rotations of all layers; windows are read.
void read_ropes(ConfigReader& reader, const Family& family, DecoderSpec& spec);
// Rows of all layers see what stands behind them, too; `window_of`: the window, in which a position
// and those up to window - 1 before and behind it are, of a number in the file.
void see_ahead(const ConfigReader& reader, DecoderSpec& spec, int (*window_of)(int));
// Where queries of later positions grow (llama_4_scaling_beta): only the positions of the first
// training stage are served, in which they do not.
void limit_positions(ConfigReader& reader, DecoderSpec& spec);
// Back, as read_ropes reads them.
void write_ropes(const DecoderSpec& spec, const Family& family, json::Value& config);
// Layers without a rotation: those whose number in no_rope_layers is 0, or every so many.
void read_still_layers(ConfigReader& reader, DecoderSpec& spec);
void write_still_layers(const DecoderSpec& spec, json::Value& config);
// The names of a nonlinearity in config.json, the first one as it is written.
std::vector<std::string_view> curve_names(Nonlinearity curve);
// The width of the layers without experts, or, where all have them, of an expert.
int ffn_width_of(const DecoderSpec& spec);
// Changes all layers.
template <typename Change>
void change_layers(DecoderSpec& spec, Change change) {
  for (LayerSpec& layer : spec.layer_specs) change(layer);
}

}  // namespace invar
