// A made EAGLE drafter, and the published algorithm of its layer written for reading: one row after
// the other, one number at a time, from the tensors by their names.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "drafters/eagle_checkpoint.h"
#include "model/rope_table.h"
#include "support/scalar_math.h"
#include "target_tables.h"

namespace invar {

using Numbers = std::vector<double>;

// A safetensors file of tensors of any type.
class TensorsFile {
 public:
  void add(const std::string& name, const char* type, const std::string& shape,
           const std::string& bytes) {
    header_ += (header_.empty() ? "" : ",") + ("\"" + name + "\":{\"dtype\":\"" + type) +
               "\",\"shape\":[" + shape + "],\"data_offsets\":[" + std::to_string(data_.size()) +
               "," + std::to_string(data_.size() + bytes.size()) + "]}";
    data_ += bytes;
  }
  void write(const std::string& path) const {
    std::string header = "{" + header_ + "}";
    header.append((8 - header.size() % 8) % 8, ' ');
    const uint64_t size = header.size();
    std::string all(reinterpret_cast<const char*>(&size), sizeof size);
    write_file_atomically(path, all + header + data_);
  }

 private:
  std::string header_, data_;
};

inline double rounded(double x) {
  return bf16_to_f32(f32_to_bf16(static_cast<float>(x)));
}

// What some published drafters have and others do not.
struct DrafterTraits {
  bool residual_is_normed = false;  // of eagle3: norm_before_residual
  double logit_scale = 1;
  bool has_biases = false;  // of q, k, v; of fc in an eagle3
  bool is_hass = false;     // two norms more, of eagle
};

// A made drafter of either kind: its tensors by their published names, each as doubles, and the
// directory that holds them.
struct Checkpoint {
  EagleKind kind;
  int d, heads = 4, kv_heads = 2, e = 16, ffn = 48, vocab = 512, draft_vocab;
  int target_width;
  std::map<std::string, Numbers> tensors;
  std::vector<int64_t> offsets;  // d2t
  DrafterTraits traits;

  Checkpoint(EagleKind kind, const DecoderSpec& target, const TargetTables& tables,
             const DrafterTraits& traits = {})
      : kind(kind),
        d(kind == EagleKind::eagle3 ? 64 : target.hidden),
        vocab(target.vocab),
        draft_vocab(kind == EagleKind::eagle3 ? 150 : target.vocab),
        target_width(target.hidden),
        traits(traits) {
    const bool is_3 = kind == EagleKind::eagle3;
    const std::string at = is_3 ? "midlayer." : "layers.0.";
    make("fc.weight", d, is_3 ? 3 * target_width : d + target_width);
    const int inner = is_3 ? 2 * d : d;
    make(at + "self_attn.q_proj.weight", heads * e, inner);
    make(at + "self_attn.k_proj.weight", kv_heads * e, inner);
    make(at + "self_attn.v_proj.weight", kv_heads * e, inner);
    make(at + "self_attn.o_proj.weight", d, heads * e);
    make(at + "mlp.gate_proj.weight", ffn, d);
    make(at + "mlp.up_proj.weight", ffn, d);
    make(at + "mlp.down_proj.weight", d, ffn);
    make_norm(at + "post_attention_layernorm.weight");
    make_traits(at, is_3);
    if (is_3) {
      make_norm(at + "input_layernorm.weight");
      make_norm(at + "hidden_norm.weight");
      make_norm("norm.weight");
      make("embed_tokens.weight", vocab, d);
      make("lm_head.weight", draft_vocab, d);
      for (int i = 0; i < draft_vocab; ++i) offsets.push_back(2 * i + 1);  // ids 1, 4, 7, ...
    } else {
      make("fc.bias", d, 1);
      Numbers& embedding = inherited["embed_tokens.weight"];
      std::vector<float> row(static_cast<size_t>(d));
      for (int token = 0; token < vocab; ++token) {
        tables.embed(token, row.data());
        embedding.insert(embedding.end(), row.begin(), row.end());
      }
      for (const bf16_t x : tables.head()) inherited["lm_head.weight"].push_back(bf16_to_f32(x));
    }
  }

  const Numbers& operator[](const std::string& name) const {
    const auto found = tensors.find(name);
    return found != tensors.end() ? found->second : inherited.at(name);
  }
  int32_t target_id(int token) const {
    return offsets.empty() ? token : static_cast<int32_t>(token + offsets[token]);
  }
  void write(const std::string& directory, const std::string& left_out = "") const {
    std::filesystem::create_directories(directory);
    TensorsFile file;
    for (const auto& [name, values] : tensors) {
      if (name == left_out) continue;
      std::string bytes;
      for (const double value : values) {
        const bf16_t x = f32_to_bf16(static_cast<float>(value));
        bytes.append(reinterpret_cast<const char*>(&x), sizeof x);
      }
      const auto known = rows_of.find(name);
      const int64_t rows = known != rows_of.end() ? known->second : std::ssize(values);
      const int64_t columns = std::ssize(values) / rows;
      file.add(name, "BF16",
               columns == 1 ? std::to_string(rows)
                            : std::to_string(rows) + "," + std::to_string(columns),
               bytes);
    }
    if (!offsets.empty()) {
      const size_t size = offsets.size() * sizeof(int64_t);
      file.add("d2t", "I64", std::to_string(offsets.size()),
               std::string(reinterpret_cast<const char*>(offsets.data()), size));
      file.add("t2d", "BOOL", std::to_string(vocab), std::string(vocab, '\1'));
    }
    file.write(directory + "/model.safetensors");
    const auto number = [](const char* key, int value) {
      return std::string(", \"") + key + "\": " + std::to_string(value);
    };
    std::string config = "{\"architectures\": [\"LlamaForCausalLMEagle3\"], \"rms_norm_eps\": 1e-5";
    config += number("hidden_size", d) + number("intermediate_size", ffn) +
              number("num_attention_heads", heads) + number("num_key_value_heads", kv_heads) +
              number("head_dim", e) + number("vocab_size", vocab) +
              number("draft_vocab_size", draft_vocab) + number("target_hidden_size", target_width) +
              number("max_position_embeddings", 2048) + number("num_hidden_layers", 1) +
              ", \"logit_scale\": " + std::to_string(traits.logit_scale) +
              ", \"norm_before_residual\": " + (traits.residual_is_normed ? "true" : "false") +
              ", \"eagle_config\": {\"use_aux_hidden_state\": true, "
              "\"eagle_aux_hidden_state_layer_ids\": [1, 2, 4]}}";
    write_file_atomically(directory + "/config.json", config);
  }

  bool has(const std::string& name) const { return tensors.contains(name); }

 private:
  void make_traits(const std::string& at, bool is_3) {
    if (traits.is_hass) {
      make_norm("embedding_layernorm.weight");
      make_norm("hidden_states_layernorm.weight");
    }
    if (!traits.has_biases) return;
    make(at + "self_attn.q_proj.bias", heads * e, 1);
    make(at + "self_attn.k_proj.bias", kv_heads * e, 1);
    make(at + "self_attn.v_proj.bias", kv_heads * e, 1);
    if (is_3) make("fc.bias", d, 1);
  }
  void make(const std::string& name, int rows, int columns) {
    const double scale = columns == 1 ? 0.3 : 2.2 / std::sqrt(columns);
    for (int i = 0; i < rows * columns; ++i)
      tensors[name].push_back(
          rounded((static_cast<double>(random_() % 2001) - 1000) / 1000 * scale));
    rows_of[name] = rows;
  }
  void make_norm(const std::string& name) {
    for (int i = 0; i < d; ++i)
      tensors[name].push_back(rounded(0.6 + static_cast<double>(random_() % 100) / 100));
    rows_of[name] = d;
  }

  std::mt19937 random_{5};
  std::map<std::string, Numbers> inherited;  // of the target
  std::map<std::string, int> rows_of;
};

// The published algorithm, one row after the other from the first, in the engine's arithmetic.
class Published {
 public:
  using Floats = scalar::Floats;
  using Halves = scalar::Halves;

  explicit Published(const Checkpoint& checkpoint)
      : w_(checkpoint),
        is_3_(checkpoint.kind == EagleKind::eagle3),
        at_(is_3_ ? "midlayer." : "layers.0."),
        frequencies_(rotary_frequencies(RopeSpec{}, checkpoint.e)) {}

  // Logits by the draft's token after `path`: features[i] belongs to tokens[i], i = 0 .. n - 2.
  Numbers logits(std::span<const int32_t> tokens, const std::vector<Numbers>& features,
                 std::span<const int32_t> path) {
    const ScopedFlushToZero flush;
    if (!std::ranges::equal(tokens, tokens_)) {
      tokens_.assign(tokens.begin(), tokens.end());
      keys_.clear();
      values_.clear();
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        const Floats feature(features[i].begin(), features[i].end());
        last_ = row(tokens[i + 1], is_3_ ? product("fc", feature) : feature);
      }
    }
    keys_.resize(tokens.size() - 1);  // without the path before
    values_.resize(tokens.size() - 1);
    Floats out = last_;
    for (const int32_t token : path) out = row(token, out);
    Numbers logits;
    for (const float logit : product("lm_head", is_3_ ? norm(out, "norm.weight") : out))
      logits.push_back(logit * static_cast<float>(w_.traits.logit_scale));
    return logits;
  }

 private:
  // x * w (+ bias), its inputs rounded.
  Floats product(const std::string& name, const Floats& x, int runs = 1) {
    const std::string weight = name + ".weight", bias = name + ".bias";
    Halves& packed = halves_[weight];
    if (packed.empty())
      for (const double value : w_[weight])
        packed.push_back(f32_to_bf16(static_cast<float>(value)));
    return scalar::product(Order::portable, packed, scalar::rounded(x),
                           w_.has(bias) ? floats(bias) : Floats(), runs);
  }
  Floats floats(const std::string& name) const { return {w_[name].begin(), w_[name].end()}; }
  // As it is where there is no such norm.
  Floats norm(const Floats& x, const std::string& name) const {
    return w_.has(name) ? scalar::normed(x, floats(name), 1e-5f) : x;
  }
  // Heads rotated, or not (v), and rounded.
  Halves heads(const Floats& x, int position, bool is_rotated = true) const {
    Halves y;
    for (auto head = x.begin(); head != x.end(); head += w_.e) {
      const Floats one(head, head + w_.e);
      const Floats turned = is_rotated ? scalar::turned(one, position, frequencies_) : one;
      for (const float value : turned) y.push_back(f32_to_bf16(value));
    }
    return y;
  }
  Floats row(int32_t token, const Floats& feature) {
    const auto begin = w_["embed_tokens.weight"].begin() + int64_t{token} * w_.d;
    const Floats embedding(begin, begin + w_.d);
    Floats joined =
        norm(embedding, is_3_ ? at_ + "input_layernorm.weight" : "embedding_layernorm.weight");
    const Floats second =
        norm(feature, is_3_ ? at_ + "hidden_norm.weight" : "hidden_states_layernorm.weight");
    joined.insert(joined.end(), second.begin(), second.end());
    Floats residual = w_.traits.residual_is_normed ? second : feature;
    if (!is_3_) joined = residual = product("fc", joined);
    const int position = static_cast<int>(keys_.size());
    const Halves q = heads(product(at_ + "self_attn.q_proj", joined), position);
    keys_.push_back(heads(product(at_ + "self_attn.k_proj", joined), position));
    values_.push_back(heads(product(at_ + "self_attn.v_proj", joined), position, false));
    Floats attended;
    for (int h = 0; h < w_.heads; ++h) {
      const Floats one = scalar::attend(Order::portable, &q[h * w_.e], keys_, values_, w_.e,
                                        h / (w_.heads / w_.kv_heads) * w_.e, position);
      attended.insert(attended.end(), one.begin(), one.end());
    }
    const int runs = orders::row_parallel_runs(w_.heads * w_.e, w_.heads);
    add(residual, product(at_ + "self_attn.o_proj", attended, runs));
    const Floats x = norm(residual, at_ + "post_attention_layernorm.weight");
    const Floats gated =
        scalar::gated(product(at_ + "mlp.gate_proj", x), product(at_ + "mlp.up_proj", x));
    add(residual,
        product(at_ + "mlp.down_proj", gated, orders::row_parallel_runs(w_.ffn, 1 << 30)));
    return residual;
  }
  static void add(Floats& y, const Floats& x) {
    for (size_t i = 0; i < y.size(); ++i) y[i] = y[i] + x[i];
  }

  const Checkpoint& w_;
  const bool is_3_;
  const std::string at_;
  const std::vector<double> frequencies_;
  std::map<std::string, Halves> halves_;
  std::vector<int32_t> tokens_;        // whose rows are computed
  std::vector<Halves> keys_, values_;  // theirs, then the path's
  Floats last_;                        // the layer's output for the last of them
};

}  // namespace invar
