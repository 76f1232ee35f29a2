#include "tokenizer/train_bpe.h"

#include <algorithm>
#include <queue>

#include "base/check.h"
#include "base/error.h"
#include "tokenizer/utf8.h"

namespace invar {

using tokenizer::Merge;

WordCounter::WordCounter(std::string_view pattern) : pattern_(pattern, "the pattern of words") {}

void WordCounter::add(std::string_view text) {
  if (const size_t at = utf8::find_invalid(text); at != std::string_view::npos)
    fail_usage("expected UTF-8 text, found byte {:#04x} at offset {}",
               static_cast<unsigned char>(text[at]), at);
  tokenizer::Regex::Search search(pattern_);
  tokenizer::Span match;
  std::string word;
  while (match.end < text.size() && search.next(text, match.end, match)) {
    word = match.of(text);
    ++counts_[word];
  }
}

std::vector<WordCount> WordCounter::counts() const {
  std::vector<WordCount> out;
  out.reserve(counts_.size());
  for (const auto& [word, count] : counts_) out.push_back({word, count});
  std::sort(out.begin(), out.end(),
            [](const WordCount& a, const WordCount& b) { return a.word < b.word; });
  return out;
}

namespace {

// Two neighbouring ids as one number; its order is that of the ids.
uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

class Trainer {
 public:
  Trainer(const std::vector<WordCount>& words, int64_t min_count) : min_count_(min_count) {
    for (int byte = 0; byte < 256; ++byte) add_token(std::string(1, static_cast<char>(byte)));
    words_.reserve(words.size());
    for (const auto& [word, count] : words) {
      Word w{{}, count};
      for (const char byte : word) w.symbols.push_back(static_cast<unsigned char>(byte));
      words_.push_back(std::move(w));
    }
    for (size_t i = 0; i < words_.size(); ++i) {
      touched_.assign(words_[i].symbols.size(), kBegins);
      count_pairs(static_cast<uint32_t>(i), +1);
    }
    for (const auto& [pair, info] : pairs_) queue(pair, info);
  }

  TrainedBpe run(size_t vocab_size) {
    while (result_.tokens.size() < vocab_size && !heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      const PairInfo& info = pairs_[best.pair];
      if (info.count != best.count) {  // it has become rarer since
        queue(best.pair, info);
        continue;
      }
      merge(best.pair);
    }
    return std::move(result_);
  }

 private:
  struct Word {
    std::vector<int32_t> symbols;
    int64_t count;
  };
  struct PairInfo {
    int64_t count = 0;
    std::vector<uint32_t> words;  // that hold it, or once did
  };
  struct Candidate {
    int64_t count;
    uint64_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  int32_t add_token(std::string bytes) {
    const auto [place, is_new] =
        ids_.try_emplace(bytes, static_cast<int32_t>(result_.tokens.size()));
    if (is_new) result_.tokens.push_back(std::move(bytes));
    return place->second;
  }

  void queue(uint64_t pair, const PairInfo& info) {
    if (info.count >= min_count_) heap_.push({info.count, pair});
  }

  // Adds to the counts of a word's pairs (sign +1) or takes away (-1), of those that hold a touched
  // symbol.
  void count_pairs(uint32_t word, int sign) {
    const auto& [symbols, count] = words_[word];
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (!touched_[i] && !touched_[i + 1]) continue;
      const uint64_t pair = pair_of(symbols[i], symbols[i + 1]);
      PairInfo& info = pairs_[pair];
      info.count += sign * count;
      if (sign < 0) continue;
      if (info.words.empty() || info.words.back() != word) info.words.push_back(word);
      grown_.push_back(pair);
    }
  }

  void merge(uint64_t pair) {
    const auto left = static_cast<int32_t>(pair >> 32), right = static_cast<int32_t>(pair);
    const int32_t result = add_token(result_.tokens[left] + result_.tokens[right]);
    result_.merges.push_back({left, right, result, static_cast<uint32_t>(result_.merges.size())});
    const std::vector<uint32_t> words = std::move(pairs_[pair].words);
    grown_.clear();
    for (const uint32_t word : words) {
      auto& symbols = words_[word].symbols;
      if (!touch(symbols, left, right)) continue;
      count_pairs(word, -1);
      size_t kept = 0;
      for (size_t i = 0; i < symbols.size(); ++i) {
        const bool found = touched_[i] == kBegins;
        symbols[kept] = found ? result : symbols[i];
        touched_[kept++] = found;
        i += found;
      }
      symbols.resize(kept);
      count_pairs(word, +1);
    }
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const uint64_t p : grown_) queue(p, pairs_[p]);
  }

  // Marks where the pair stands, from left to right without overlap; says whether it stands
  // anywhere.
  bool touch(const std::vector<int32_t>& symbols, int32_t left, int32_t right) {
    touched_.assign(symbols.size(), 0);
    bool any = false;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (symbols[i] != left || symbols[i + 1] != right) continue;
      touched_[i] = kBegins;
      touched_[++i] = kEnds;
      any = true;
    }
    return any;
  }

  static constexpr char kBegins = 1, kEnds = 2;

  int64_t min_count_;
  TrainedBpe result_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Word> words_;
  std::vector<char> touched_;    // by place in the word at hand; not 0 where something changes
  std::vector<uint64_t> grown_;  // the pairs that have become more frequent
  std::unordered_map<uint64_t, PairInfo> pairs_;
  std::priority_queue<Candidate> heap_;
};

}  // namespace

TrainedBpe train_bpe(const std::vector<WordCount>& words, int32_t vocab_size, int64_t min_count) {
  if (vocab_size < 256) fail_usage("expected a vocabulary of at least 256, found {}", vocab_size);
  CHECK(min_count > 0, "a pair that never occurs cannot be merged");
  return Trainer(words, min_count).run(static_cast<size_t>(vocab_size));
}

}  // namespace invar
