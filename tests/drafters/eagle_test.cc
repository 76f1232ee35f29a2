// EAGLE's layer: what is published is read, drafts are those of the published algorithm, and no
// answer changes.
#include "drafters/eagle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "base/atomic_file.h"
#include "base/error.h"
#include "drafters/make_proposer.h"
#include "engine/engine.h"

namespace invar {
namespace {

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

double rounded(double x) {
  return bf16_to_f32(f32_to_bf16(static_cast<float>(x)));
}

// A made drafter of either kind: its tensors by their published names, each as doubles, and the
// directory that holds them.
struct Checkpoint {
  EagleKind kind;
  int d, heads = 4, kv_heads = 2, e = 16, ffn = 48, vocab = 512, draft_vocab;
  int target_width;
  std::map<std::string, Numbers> tensors;
  std::vector<int64_t> offsets;  // d2t

  Checkpoint(EagleKind kind, const DecoderSpec& target, const TargetTables& tables)
      : kind(kind),
        d(kind == EagleKind::eagle3 ? 40 : target.hidden),
        vocab(target.vocab),
        draft_vocab(kind == EagleKind::eagle3 ? 150 : target.vocab),
        target_width(target.hidden) {
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
      const int64_t rows = rows_of.at(name);
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
              ", \"eagle_config\": {\"use_aux_hidden_state\": true, "
              "\"eagle_aux_hidden_state_layer_ids\": [1, 2, 4]}}";
    write_file_atomically(directory + "/config.json", config);
  }

 private:
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

// The published algorithm, one row after the other from the first, in doubles. What meets a matrix
// is rounded to bf16, as the engine's products do.
class Published {
 public:
  explicit Published(const Checkpoint& checkpoint)
      : w_(checkpoint),
        is_3_(checkpoint.kind == EagleKind::eagle3),
        at_(is_3_ ? "midlayer." : "layers.0.") {}

  // Logits by the draft's token after `path`: features[i] belongs to tokens[i], i = 0 .. n - 2.
  Numbers logits(std::span<const int32_t> tokens, const std::vector<Numbers>& features,
                 std::span<const int32_t> path) {
    if (!std::ranges::equal(tokens, tokens_)) {
      tokens_.assign(tokens.begin(), tokens.end());
      keys_.clear();
      values_.clear();
      for (size_t i = 0; i + 1 < tokens.size(); ++i)
        last_ = row(tokens[i + 1], is_3_ ? product("fc.weight", features[i], w_.d) : features[i]);
    }
    keys_.resize(tokens.size() - 1);  // without the path before
    values_.resize(tokens.size() - 1);
    Numbers out = last_;
    for (const int32_t token : path) out = row(token, out);
    return product("lm_head.weight", is_3_ ? norm(out, "norm.weight") : out, w_.draft_vocab);
  }

 private:
  Numbers product(const std::string& name, const Numbers& x, int outputs) const {
    const Numbers& w = w_[name];
    Numbers y(outputs);
    for (int n = 0; n < outputs; ++n)
      for (size_t k = 0; k < x.size(); ++k) y[n] += w[n * x.size() + k] * rounded(x[k]);
    return y;
  }
  Numbers norm(Numbers x, const std::string& name) const {
    double sum = 0;
    for (const double value : x) sum += value * value;
    for (size_t i = 0; i < x.size(); ++i)
      x[i] *= w_[name][i] / std::sqrt(sum / static_cast<double>(x.size()) + 1e-5);
    return x;
  }
  void rotate(Numbers& x, int position) const {
    for (size_t head = 0; head < x.size(); head += w_.e)
      for (int i = 0; i < w_.e / 2; ++i) {
        const double angle = position * std::pow(10000.0, -2.0 * i / w_.e);
        const double a = x[head + i], b = x[head + i + w_.e / 2];
        x[head + i] = a * std::cos(angle) - b * std::sin(angle);
        x[head + i + w_.e / 2] = b * std::cos(angle) + a * std::sin(angle);
      }
  }
  Numbers row(int32_t token, const Numbers& feature) {
    const auto begin = w_["embed_tokens.weight"].begin() + int64_t{token} * w_.d;
    const Numbers embedding(begin, begin + w_.d);
    Numbers joined = is_3_ ? norm(embedding, at_ + "input_layernorm.weight") : embedding;
    const Numbers second = is_3_ ? norm(feature, at_ + "hidden_norm.weight") : feature;
    joined.insert(joined.end(), second.begin(), second.end());
    Numbers residual = feature;
    if (!is_3_) {
      residual = product("fc.weight", joined, w_.d);
      for (int i = 0; i < w_.d; ++i) residual[i] += w_["fc.bias"][i];
      joined = residual;
    }
    const int position = static_cast<int>(keys_.size());
    Numbers q = product(at_ + "self_attn.q_proj.weight", joined, w_.heads * w_.e);
    keys_.push_back(product(at_ + "self_attn.k_proj.weight", joined, w_.kv_heads * w_.e));
    values_.push_back(product(at_ + "self_attn.v_proj.weight", joined, w_.kv_heads * w_.e));
    rotate(q, position);
    rotate(keys_.back(), position);
    add(residual, product(at_ + "self_attn.o_proj.weight", attention(q), w_.d));
    const Numbers normed = norm(residual, at_ + "post_attention_layernorm.weight");
    Numbers gate = product(at_ + "mlp.gate_proj.weight", normed, w_.ffn);
    const Numbers up = product(at_ + "mlp.up_proj.weight", normed, w_.ffn);
    for (int i = 0; i < w_.ffn; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    add(residual, product(at_ + "mlp.down_proj.weight", gate, w_.d));
    return residual;
  }
  Numbers attention(const Numbers& q) const {
    Numbers out(q.size());
    for (int h = 0; h < w_.heads; ++h) {
      const int at = h / (w_.heads / w_.kv_heads) * w_.e;
      Numbers weights;
      double sum = 0;
      for (const Numbers& key : keys_) {
        double score = 0;
        for (int e = 0; e < w_.e; ++e) score += q[h * w_.e + e] * key[at + e];
        sum += weights.emplace_back(std::exp(score / std::sqrt(w_.e)));
      }
      for (size_t j = 0; j < keys_.size(); ++j)
        for (int e = 0; e < w_.e; ++e) out[h * w_.e + e] += weights[j] / sum * values_[j][at + e];
    }
    return out;
  }
  static void add(Numbers& y, const Numbers& x) {
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }

  const Checkpoint& w_;
  const bool is_3_;
  const std::string at_;
  std::vector<int32_t> tokens_;         // whose rows are computed
  std::vector<Numbers> keys_, values_;  // theirs, then the path's
  Numbers last_;                        // the layer's output for the last of them
};

struct Counts {
  int64_t drafts = 0, compared = 0;
};

// Compares every draft with that of the published algorithm, from the hidden states that it saw:
// they are known by the tokens that they depend on.
class Comparer final : public Proposer {
 public:
  Comparer(std::unique_ptr<Eagle> inner, const Checkpoint& checkpoint, const EagleOptions& options,
           std::vector<float> final_norm, Counts& counts)
      : inner_(std::move(inner)),
        checkpoint_(checkpoint),
        published_(checkpoint),
        options_(options),
        final_norm_(std::move(final_norm)),
        counts_(counts) {}

  std::string_view name() const override { return "comparer"; }
  int32_t most_nodes() const override { return inner_->most_nodes(); }
  bool makes_branches() const override { return inner_->makes_branches(); }
  std::span<const int32_t> aux_layers() const override { return inner_->aux_layers(); }
  void take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                   int64_t rows) override {
    inner_->take_hidden(kept, hidden, rows);
    for (const KeptRows& k : kept)
      for (size_t i = 0; i < k.rows.size(); ++i) {
        const size_t width = static_cast<size_t>(checkpoint_.target_width);
        Numbers feature;
        for (size_t layer = 0; layer < aux_layers().size(); ++layer) {
          const auto x = hidden.subspan((layer * rows + k.rows[i]) * width, width);
          feature.insert(feature.end(), x.begin(), x.end());
        }
        if (checkpoint_.kind == EagleKind::eagle) normalise(feature);
        const auto end = k.tokens.begin() + k.position + static_cast<int64_t>(i) + 1;
        features_[{k.tokens.begin(), end}] = feature;
      }
  }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    inner_->propose(requests, trees);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (trees[i].empty()) continue;
      ++counts_.drafts;
      if (counts_.drafts % 5 == 0 && requests[i].most == most_nodes())
        compare(requests[i], trees[i]);
    }
  }
  void forget(int64_t id) override { inner_->forget(id); }

 private:
  using Path = std::vector<int32_t>;

  void normalise(Numbers& x) const {
    double sum = 0;
    for (const double value : x) sum += value * value;
    for (size_t i = 0; i < x.size(); ++i)
      x[i] *= final_norm_[i] / std::sqrt(sum / static_cast<double>(x.size()) + 1e-6);
  }

  void compare(const DraftRequest& request, const DraftTree& tree) {
    ++counts_.compared;
    std::vector<Numbers> features;
    for (size_t i = 1; i < request.tokens.size(); ++i) {
      const auto found = features_.find({request.tokens.begin(), request.tokens.begin() + i});
      ASSERT_NE(found, features_.end());
      features.push_back(found->second);
    }
    std::set<Path> drafted;
    for (int32_t node = 0; node < std::ssize(tree); ++node) {
      Path path;
      for (int32_t at = node; at >= 0; at = tree[at].parent)
        path.insert(path.begin(), tree[at].token);
      drafted.insert(path);
    }
    EXPECT_EQ(drafted, published_tree(request, features)) << "request " << request.id;
  }

  // Steps 1 to 3 of EAGLE-2 (chains are the case k = 1). Sampled: the target's noise is added.
  std::set<Path> published_tree(const DraftRequest& request, const std::vector<Numbers>& features) {
    std::vector<std::pair<double, Path>> all, frontier = {{0, {}}};
    for (int level = 0; level < options_.depth; ++level) {
      std::vector<std::pair<double, Path>> next;
      for (const auto& [score, path] : frontier)
        for (auto& [gain, token] : best_children(request, features, path)) {
          Path child = path;
          child.push_back(token);
          next.emplace_back(score + gain, child);
        }
      std::ranges::stable_sort(next, std::greater(), &std::pair<double, Path>::first);
      all.insert(all.end(), next.begin(), next.end());
      next.resize(std::min<size_t>(next.size(), options_.topk));
      frontier = next;
    }
    std::ranges::stable_sort(all, std::greater(), &std::pair<double, Path>::first);
    std::set<Path> tree;
    for (size_t i = 0; i < all.size() && std::ssize(tree) < options_.num_speculative_tokens; ++i)
      tree.insert(all[i].second);
    return tree;
  }

  std::vector<std::pair<double, int32_t>> best_children(const DraftRequest& request,
                                                        const std::vector<Numbers>& features,
                                                        const Path& path) {
    const SamplingParams& p = *request.params;
    const Numbers logits = published_.logits(request.tokens, features, path);
    const auto noise = [&](int32_t id) {
      const NoiseKey key{.seed = p.seed,
                         .position = static_cast<uint32_t>(request.tokens.size() + path.size())};
      return p.is_greedy() ? 0 : gumbel_of(random_bits(key, static_cast<uint32_t>(id)));
    };
    std::vector<std::pair<double, int32_t>> children, likeliest;
    for (int i = 0; i < checkpoint_.draft_vocab; ++i)
      likeliest.emplace_back(p.is_greedy() ? logits[i] : logits[i] / p.temperature,
                             checkpoint_.target_id(i));
    std::ranges::sort(likeliest, std::greater());
    const auto preference = [&](const auto& token) { return token.first + noise(token.second); };
    const auto sample = *std::ranges::max_element(likeliest, {}, preference);
    if (!p.is_greedy()) likeliest.resize(64);  // but for the sample no other is looked at
    if (std::ranges::find(likeliest, sample) == likeliest.end()) likeliest.push_back(sample);
    double sum = 0;
    for (const auto& token : likeliest) {
      children.emplace_back(preference(token), token.second);
      sum += std::exp(preference(token));
    }
    for (auto& [share, id] : children) share -= std::log(sum);
    std::ranges::sort(children, std::greater());
    children.resize(options_.topk);
    return children;
  }

  std::unique_ptr<Eagle> inner_;
  const Checkpoint& checkpoint_;
  Published published_;
  const EagleOptions options_;
  const std::vector<float> final_norm_;
  Counts& counts_;
  std::map<std::vector<int32_t>, Numbers> features_;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<Digest> hashes;
  bool operator==(const Answer&) const = default;
};
using Answers = std::map<int64_t, Answer>;

struct Tally {
  int64_t drafts = 0, preempted = 0, cached = 0;
};

class EagleTest : public testing::Test {
 protected:
  EagleTest() { std::filesystem::remove_all(directory_); }
  ~EagleTest() override { std::filesystem::remove_all(directory_); }

  static ModelOptions tiny() { return {.model = "tiny", .load_format = "dummy:7", .threads = 2}; }
  Checkpoint checkpoint(EagleKind kind) { return {kind, model_.spec(), TargetTables(model_)}; }
  std::unique_ptr<Eagle> eagle(const EagleOptions& options, Model& model) {
    return std::make_unique<Eagle>(directory_, options, model, model.pool());
  }

  // Sampled and greedy requests, twice: the second time the prefix cache has their beginnings.
  static Answers answers(Model& model, std::unique_ptr<Proposer> proposer, Tally* tally = nullptr,
                         int64_t kv_bytes = 16 << 20) {
    struct Keep final : OutputSink {
      void on_token(const TokenOutput& output) override {
        answers[output.request].tokens.push_back(output.token);
        answers[output.request].hashes.push_back(output.logits_hash);
      }
      Answers answers;
    } sink;
    EngineOptions options{.block_size = 32, .kv_bytes = kv_bytes};
    options.scheduler.max_model_len = 192;
    options.scheduler.max_num_seqs = 8;
    options.scheduler.max_num_batched_tokens = 64;
    Engine engine(model, options, nullptr, std::move(proposer));
    for (int round = 0; round < 2; ++round) {
      for (int id = 1; id < 6; ++id) {
        Request request{.id = 10 * round + id};
        for (int i = 0; i < 3 + 13 * id; ++i) request.prompt.push_back((i * 11 + id) % 500);
        request.params.max_tokens = 14;
        request.params.temperature = id % 2 ? 0.0 : 0.9;
        request.params.seed = static_cast<uint64_t>(id);
        engine.add(std::move(request));
      }
      while (engine.step(sink)) {
        if (!tally) continue;
        tally->drafts += engine.last_step().drafts;
        tally->preempted += engine.last_step().preempted;
        tally->cached += engine.last_step().cached;
      }
      EXPECT_EQ(engine.check_integrity(), "");
    }
    return sink.answers;
  }

  const std::string directory_ = testing::TempDir() + "eagle_test_" + std::to_string(getpid());
  Model model_{tiny()};
};

TEST_F(EagleTest, DraftsAreThoseOfThePublishedAlgorithm) {
  const Answers plain = answers(model_, nullptr);
  for (const EagleKind kind : {EagleKind::eagle3, EagleKind::eagle})
    for (const bool is_tree : {false, true}) {
      const Checkpoint made = checkpoint(kind);
      made.write(directory_);
      const EagleOptions options{.kind = kind,
                                 .num_speculative_tokens = is_tree ? 12 : 4,
                                 .topk = is_tree ? 4 : 1,
                                 .depth = is_tree ? 3 : 4};
      Counts counts;
      Tally tally;
      EXPECT_EQ(answers(model_,
                        std::make_unique<Comparer>(eagle(options, model_), made, options,
                                                   final_norm_of(model_, model_.pool()), counts),
                        &tally),
                plain);
      EXPECT_GT(counts.compared, 8);
      EXPECT_EQ(tally.cached, 4 * 32);
    }
}

TEST_F(EagleTest, NoneShowsInAnAnswer) {
  checkpoint(EagleKind::eagle3).write(directory_);
  const std::string config = R"({"method":"eagle3","model":")" + directory_ + "\"";
  const auto proposer = [&](Model& model, const std::string& more, DrafterRoom room = {}) {
    return make_proposer(parse_speculative_config(config + more + "}"), model, room);
  };
  const Answers plain = answers(model_, nullptr);
  const std::string tree = R"(,"num_speculative_tokens":9,"eagle_topk":3)";
  EXPECT_EQ(answers(model_, proposer(model_, "")), plain);
  EXPECT_EQ(answers(model_, proposer(model_, tree)), plain);
  EXPECT_EQ(answers(model_, proposer(model_, tree + R"(,"adaptive":true)")), plain);
  Tally tight;  // they take each other's blocks
  EXPECT_EQ(answers(model_, proposer(model_, tree), &tight, 24 * (64 << 10)), plain);
  EXPECT_GT(tight.preempted, 0);
  EXPECT_GT(tight.drafts, 0);
  ModelOptions ranks = tiny(), stages = tiny();
  ranks.ranks = 2;
  stages.layer_cuts = {1, 3};
  for (const ModelOptions& options : {ranks, stages}) {
    Model other(options);
    Tally tally;
    EXPECT_EQ(answers(other, proposer(other, tree), &tally), plain);
    EXPECT_GT(tally.drafts, 60);
  }
  // The control: where rows depend on their neighbours, drafts show.
  ModelOptions control = tiny();
  control.arithmetic = "control";
  Model baseline(control);
  EXPECT_NE(answers(baseline, proposer(baseline, tree)), answers(baseline, nullptr));
}

TEST_F(EagleTest, MissingHistoryMeansNoDraft) {
  checkpoint(EagleKind::eagle3).write(directory_);
  const Answers plain = answers(model_, nullptr);
  Tally roomy, tight;
  EXPECT_EQ(answers(model_, eagle({}, model_), &roomy), plain);
  EagleOptions options;
  options.room.kv_bytes = 3 * 2 * 32 * 32 * 4;  // three blocks
  EXPECT_EQ(answers(model_, eagle(options, model_), &tight), plain);
  EXPECT_GT(tight.drafts, 0);
  EXPECT_LT(tight.drafts, roomy.drafts / 2);
}

TEST_F(EagleTest, WhatDoesNotFitIsRefused) {
  const auto refusal = [&]() -> std::string {
    try {
      eagle({}, model_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  std::filesystem::create_directories(directory_);
  write_file_atomically(directory_ + "/pytorch_model.bin", "x");
  EXPECT_NE(refusal().find("pytorch_model.bin, a pickle, which can run code and is not read; in "
                           "Python, safetensors.torch.save_file("),
            std::string::npos);
  Checkpoint made = checkpoint(EagleKind::eagle3);
  made.write(directory_, "midlayer.hidden_norm.weight");
  EXPECT_NE(refusal().find("the tensor \"midlayer.hidden_norm.weight\" is missing"),
            std::string::npos);
  made.offsets[7] = made.offsets[6] - 1;  // two tokens of one id
  made.write(directory_);
  EXPECT_NE(refusal().find("expected a token of its own from 0 to 511 for the draft's token 7"),
            std::string::npos);
  made.offsets[7] = 15;
  made.write(directory_);
  EXPECT_EQ(refusal(), "");
  made.vocab = 300;
  made.offsets.resize(100);
  made.write(directory_);
  EXPECT_NE(
      refusal().find("expected a drafter of the target's vocabulary of 512 tokens, found 300"),
      std::string::npos);
}

}  // namespace
}  // namespace invar
