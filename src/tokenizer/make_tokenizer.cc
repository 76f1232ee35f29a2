#include "tokenizer/make_tokenizer.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "tokenizer/description.h"
#include "tokenizer/write_tokenizer.h"

namespace invar {

namespace {

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

 private:
  uint64_t state_;
};

void shuffle(std::vector<int32_t>& ids, Random& random) {
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.next() % i]);
}

bool is_lower(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

// Adds tokens made of a word with its space and a word without: " light" + "house".
class PairedWords {
 public:
  PairedWords(TrainedBpe& bpe, uint64_t seed)
      : bpe_(bpe), known_(bpe.tokens.begin(), bpe.tokens.end()) {
    for (size_t i = 256; i < bpe.tokens.size(); ++i) {
      const std::string_view token = bpe.tokens[i];
      if (token.size() >= 4 && token[0] == ' ' && is_lower(token.substr(1))) {
        fronts_.push_back(static_cast<int32_t>(i));
      } else if (token.size() >= 3 && is_lower(token)) {
        backs_.push_back(static_cast<int32_t>(i));
      }
    }
    Random random(seed);
    shuffle(fronts_, random);
    shuffle(backs_, random);
  }

  void fill(size_t vocab_size) {
    while (bpe_.tokens.size() < vocab_size) {
      const auto first = static_cast<int32_t>(bpe_.tokens.size());
      for (size_t step = 0; step < backs_.size(); ++step)
        for (size_t i = 0; i < fronts_.size() && bpe_.tokens.size() < vocab_size; ++i)
          add(fronts_[i], backs_[(i + step) % backs_.size()]);
      fronts_.clear();  // every pair is taken: make longer ones
      for (auto id = first; id < static_cast<int32_t>(bpe_.tokens.size()); ++id)
        fronts_.push_back(id);
    }
  }

 private:
  void add(int32_t left, int32_t right) {
    std::string bytes = bpe_.tokens[left] + bpe_.tokens[right];
    if (!known_.insert(bytes).second) return;
    const auto id = static_cast<int32_t>(bpe_.tokens.size());
    bpe_.tokens.push_back(std::move(bytes));
    bpe_.merges.push_back({left, right, id, static_cast<uint32_t>(bpe_.merges.size())});
  }

  TrainedBpe& bpe_;
  std::unordered_set<std::string> known_;
  std::vector<int32_t> fronts_, backs_;
};

}  // namespace

MadeTokenizer make_tokenizer(int32_t vocab_size, uint64_t seed) {
  const SpecialTokens special = chatml_tokens();
  const auto specials = static_cast<int32_t>(special.names.size());
  if (vocab_size < 256 + specials || vocab_size > tokenizer::kMaxVocabulary)
    fail_usage("expected a vocabulary of {} to {} tokens, found {}", 256 + specials,
               tokenizer::kMaxVocabulary, vocab_size);
  WordCounter counter(kQwen2Pattern);
  counter.add(built_in_text());
  const int32_t size = vocab_size - specials;
  TrainedBpe bpe = train_bpe(counter.counts(), size, 1);
  if (bpe.tokens.size() < static_cast<size_t>(size)) PairedWords(bpe, seed).fill(size);
  const auto id_of = [&](const std::string& name) {
    const auto place = std::find(special.names.begin(), special.names.end(), name);
    return size + static_cast<int32_t>(place - special.names.begin());
  };
  return {write_tokenizer(bpe, special), id_of(special.bos), id_of(special.eos),
          id_of(special.pad)};
}

}  // namespace invar
