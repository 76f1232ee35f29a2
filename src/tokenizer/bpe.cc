#include "tokenizer/bpe.h"

#include <bit>
#include <queue>
#include <unordered_set>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace invar::tokenizer {

namespace {

// Below this many symbols looking at every pair for each merge is faster than keeping a heap.
constexpr size_t kScanned = 48;

void merge_by_scanning(const MergeTable& table, std::vector<int32_t>& symbols) {
  MergeTable::Target pairs[kScanned];  // pairs[i]: what symbols[i] and symbols[i + 1] become
  size_t count = symbols.size() - 1;
  for (size_t i = 0; i < count; ++i) pairs[i] = table.find(symbols[i], symbols[i + 1]);
  while (count > 0) {
    size_t best = 0;
    for (size_t i = 1; i < count; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == MergeTable::kNone) break;
    symbols[best] = pairs[best].result;
    symbols.erase(symbols.begin() + best + 1);
    --count;
    for (size_t i = best; i < count; ++i) pairs[i] = pairs[i + 1];
    if (best > 0) pairs[best - 1] = table.find(symbols[best - 1], symbols[best]);
    if (best < count) pairs[best] = table.find(symbols[best], symbols[best + 1]);
  }
}

// The same with a heap of (rank, place) over a linked list.
class HeapMerger {
 public:
  HeapMerger(const MergeTable& table, std::vector<int32_t>& symbols)
      : table_(table), symbols_(symbols), nodes_(symbols.size()) {}

  void run() {
    const auto size = static_cast<int32_t>(symbols_.size());
    for (int32_t i = 0; i < size; ++i) nodes_[i] = {i - 1, i + 1 < size ? i + 1 : -1, {}};
    std::vector<uint64_t> first;
    for (int32_t i = 0; i + 1 < size; ++i) {
      nodes_[i].pair = table_.find(symbols_[i], symbols_[i + 1]);
      if (nodes_[i].pair.rank != MergeTable::kNone) first.push_back(entry(i));
    }
    heap_ = Heap(std::greater<>(), std::move(first));
    while (!heap_.empty()) {
      const uint64_t top = heap_.top();
      heap_.pop();
      const auto at = static_cast<int32_t>(top & UINT32_MAX);
      if (entry(at) == top) merge_at(at);  // otherwise the pair has changed since
    }
    compact();
  }

 private:
  using Heap = std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>>;
  struct Node {
    int32_t previous, next;
    MergeTable::Target pair;  // what this symbol and the next become
  };

  uint64_t entry(int32_t at) const {
    return static_cast<uint64_t>(nodes_[at].pair.rank) << 32 | static_cast<uint32_t>(at);
  }

  void merge_at(int32_t at) {
    const int32_t gone = nodes_[at].next;
    symbols_[at] = nodes_[at].pair.result;
    nodes_[gone].pair = {};
    nodes_[at].next = nodes_[gone].next;
    if (nodes_[at].next >= 0) nodes_[nodes_[at].next].previous = at;
    update(at);
    if (nodes_[at].previous >= 0) update(nodes_[at].previous);
  }

  void update(int32_t at) {
    const int32_t next = nodes_[at].next;
    nodes_[at].pair = next < 0 ? MergeTable::Target{} : table_.find(symbols_[at], symbols_[next]);
    if (nodes_[at].pair.rank != MergeTable::kNone) heap_.push(entry(at));
  }

  void compact() {
    size_t kept = 0;
    for (int32_t at = 0; at >= 0; at = nodes_[at].next) symbols_[kept++] = symbols_[at];
    symbols_.resize(kept);
  }

  const MergeTable& table_;
  std::vector<int32_t>& symbols_;
  std::vector<Node> nodes_;
  Heap heap_;
};

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges)
    : slots_(std::bit_ceil(merges.size() * 3 / 2 + 2)),
      shift_(64 - std::countr_zero(slots_.size())) {
  for (const Merge& merge : merges) {
    const uint64_t key = key_of(merge.left, merge.right);
    size_t at = slot_of(key);
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {key, {merge.rank, merge.result}};
  }
}

void merge_all(const MergeTable& table, std::vector<int32_t>& symbols) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kScanned) {
    merge_by_scanning(table, symbols);
  } else {
    HeapMerger(table, symbols).run();
  }
}

Bpe::Bpe(BpeRules rules)
    : rules_(std::move(rules)), table_(rules_.merges), whole_(rules_.tokens.size()) {
  for (const auto& [bytes, id] : rules_.tokens)
    if (!rules_.by_bytes && utf8::length(bytes[0]) == bytes.size()) characters_.insert(bytes, id);
  cut_before_mark_ = may_cut_before_mark();
  std::vector<int32_t> symbols;
  for (const auto& [bytes, id] : rules_.tokens) {
    if (!rules_.ignore_merges) {
      if (start(bytes, symbols) != std::string_view::npos) continue;
      merge_all(table_, symbols);
      if (symbols.size() != 1 || symbols[0] != id) continue;
    }
    whole_.insert(bytes, id);
    longest_ = std::max(longest_, bytes.size());
  }
  rules_.merges = {};
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& symbols,
                 std::vector<int32_t>& out) const {
  if (cut_before_mark_) {
    const std::string_view mark = rules_.space_mark;
    for (size_t at = word.find(mark, 1); at != std::string_view::npos;
         at = word.find(mark, at + mark.size())) {
      if (word.substr(0, at).ends_with(mark)) continue;
      encode_uncut(word.substr(0, at), symbols, out);
      word.remove_prefix(at);
      at = 0;
    }
  }
  encode_uncut(word, symbols, out);
}

void Bpe::encode_uncut(std::string_view word, std::vector<int32_t>& symbols,
                       std::vector<int32_t>& out) const {
  if (word.size() <= longest_) {
    const int32_t id = whole_.find(word);
    if (id >= 0) {
      out.push_back(id);
      return;
    }
  }
  const size_t unknown = start(word, symbols);
  if (unknown != std::string_view::npos && rules_.by_bytes)
    fail_usage("the vocabulary has no token for byte {:#04x}",
               static_cast<unsigned char>(word[unknown]));
  if (unknown != std::string_view::npos)
    fail_usage("the vocabulary has no token for the character \"{}\"",
               word.substr(unknown, utf8::length(word[unknown])));
  merge_all(table_, symbols);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

size_t Bpe::start(std::string_view word, std::vector<int32_t>& symbols) const {
  symbols.clear();
  bool after_unknown = false;
  for (size_t i = 0, length; i < word.size(); i += length) {
    length = rules_.by_bytes ? 1 : utf8::length(word[i]);
    const std::string_view character = word.substr(i, length);
    if (add_known(character, symbols)) {
      after_unknown = false;
      continue;
    }
    if (rules_.unk_id < 0) return i;
    if (!after_unknown || !rules_.fuse_unk) symbols.push_back(rules_.unk_id);
    after_unknown = true;
  }
  return std::string_view::npos;
}

bool Bpe::add_known(std::string_view character, std::vector<int32_t>& symbols) const {
  if (!rules_.by_bytes) {
    const int32_t id = characters_.find(character);
    if (id >= 0) {
      symbols.push_back(id);
      return true;
    }
  }
  if (rules_.byte_ids.empty()) return false;
  const auto id_of = [&](char byte) { return rules_.byte_ids[static_cast<unsigned char>(byte)]; };
  for (const char byte : character)
    if (id_of(byte) < 0) return false;
  for (const char byte : character) symbols.push_back(id_of(byte));
  return true;
}

// When the mark is a token and no merge joins it to a character before it, no merge crosses the
// place between the two, and what lies between such places can be encoded alone.
bool Bpe::may_cut_before_mark() const {
  const std::string& mark = rules_.space_mark;
  if (mark.empty() || rules_.ignore_merges || characters_.find(mark) < 0) return false;
  std::unordered_set<int32_t> results;
  for (const Merge& merge : rules_.merges) results.insert(merge.result);
  for (const auto& [token, id] : rules_.tokens)
    for (size_t at = token.find(mark, 1); at != std::string::npos; at = token.find(mark, at + 1))
      if (results.contains(id) && !std::string_view(token).substr(0, at).ends_with(mark))
        return false;
  return true;
}

}  // namespace invar::tokenizer
