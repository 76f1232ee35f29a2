#include "sampling/grammar/language.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace invar::grammar {

Language::Language(std::shared_ptr<Budget> budget) : budget_(std::move(budget)) {
  nodes_.push_back({.kind = Kind::nothing});
  nodes_.push_back({.kind = Kind::empty});
}

Language::Expr Language::add(const Node& node, size_t more_bytes) {
  bytes_ += sizeof(Node) + more_bytes;
  if (bytes_ > kMaxBytes)
    fail_usage("the grammar is too large: it needs more than {} bytes", kMaxBytes);
  budget_->spend(1);
  nodes_.push_back(node);
  return static_cast<Expr>(nodes_.size()) - 1;
}

Language::Expr Language::text(std::string_view bytes) {
  if (bytes.empty()) return empty();
  const auto at = static_cast<int32_t>(text_.size());
  text_ += bytes;
  return add({.kind = Kind::text, .at = at, .count = static_cast<int32_t>(bytes.size())},
             bytes.size());
}

Language::Expr Language::bytes(const ByteSet& set) {
  if (set == ByteSet{}) return nothing();
  const auto at = static_cast<int32_t>(sets_.size());
  sets_.push_back(set);
  return add({.kind = Kind::bytes, .at = at, .count = 1}, sizeof set);
}

Language::Expr Language::byte_range(uint8_t low, uint8_t high) {
  ByteSet set{};
  add_to(set, low, high);
  return bytes(set);
}

namespace {

int encode(char32_t c, uint8_t* bytes) {
  if (c < 0x80) return bytes[0] = static_cast<uint8_t>(c), 1;
  const int size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (int i = size - 1; i > 0; --i, c >>= 6) bytes[i] = static_cast<uint8_t>(0x80 | (c & 0x3f));
  bytes[0] = static_cast<uint8_t>((0xf0 << (4 - size)) | c);
  return size;
}

// A range of bytes for each byte of some characters.
struct ByteRanges {
  int size = 0;
  uint8_t low[4] = {}, high[4] = {};
};

// Ranges whose encodings have one length are cut until, behind the first byte that differs, all
// continuations are allowed.
void add_byte_sequences(std::vector<ByteRanges>& out, char32_t low, char32_t high) {
  static constexpr char32_t kLastOfLength[] = {0x7f, 0x7ff, 0xffff};
  for (const char32_t last : kLastOfLength)
    if (low <= last && high > last) {
      add_byte_sequences(out, low, last);
      return add_byte_sequences(out, last + 1, high);
    }
  for (int continuations = 1; continuations < 4; ++continuations) {
    const char32_t mask = (char32_t{1} << (6 * continuations)) - 1;
    if (low <= 0x7f || (low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      add_byte_sequences(out, low, low | mask);
      return add_byte_sequences(out, (low | mask) + 1, high);
    }
    if ((high & mask) != mask) {
      add_byte_sequences(out, low, (high & ~mask) - 1);
      return add_byte_sequences(out, high & ~mask, high);
    }
  }
  ByteRanges ranges;
  ranges.size = encode(low, ranges.low);
  encode(high, ranges.high);
  out.push_back(ranges);
}

// The bytes from `at` on, of ranges that have the same bytes in front. Ranges that begin alike are
// one option, so that few have to be followed.
Language::Expr behind(Language& language, std::span<const ByteRanges> all, int at) {
  std::vector<Language::Expr> options;
  ByteSet last{};
  for (size_t i = 0; i < all.size();) {
    const ByteRanges& one = all[i];
    size_t end = i + 1;
    while (end < all.size() && all[end].size > at + 1 && all[end].low[at] == one.low[at] &&
           all[end].high[at] == one.high[at])
      ++end;
    if (one.size == at + 1)
      add_to(last, one.low[at], one.high[at]);
    else
      options.push_back(language.sequence({language.byte_range(one.low[at], one.high[at]),
                                           behind(language, all.subspan(i, end - i), at + 1)}));
    i = one.size == at + 1 ? i + 1 : end;
  }
  options.push_back(language.bytes(last));
  return language.choice(options);
}

}  // namespace

Language::Expr Language::character(char32_t c) {
  uint8_t bytes[4];
  const auto size = static_cast<size_t>(encode(c, bytes));
  return text(std::string_view(reinterpret_cast<const char*>(bytes), size));
}

Language::Expr Language::character(const CodePoints& ranges) {
  std::vector<ByteRanges> all;
  for (const auto& [low, high] : ranges) {
    // Surrogates have no encoding.
    const char32_t below = std::min<char32_t>(high, 0xd7ff);
    const char32_t above = std::max<char32_t>(low, 0xe000);
    if (low <= below) add_byte_sequences(all, low, below);
    if (above <= high) add_byte_sequences(all, above, high);
  }
  return behind(*this, all, 0);
}

Language::Expr Language::add_list(Kind kind, std::span<const Expr> parts) {
  const auto at = static_cast<int32_t>(children_.size());
  children_.insert(children_.end(), parts.begin(), parts.end());
  return add({.kind = kind, .at = at, .count = static_cast<int32_t>(parts.size())},
             parts.size_bytes());
}

// Texts in a row are one.
Language::Expr Language::sequence(std::span<const Expr> parts) {
  std::vector<Expr> kept;
  std::string run;
  const auto is_text = [&](size_t i) {
    return i < parts.size() && nodes_[parts[i]].kind == Kind::text;
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == nothing()) return nothing();
    if (is_text(i) && (!run.empty() || is_text(i + 1))) {
      run += text_of(nodes_[parts[i]]);
      if (!is_text(i + 1)) kept.push_back(text(std::exchange(run, {})));
    } else if (parts[i] != empty()) {
      kept.push_back(parts[i]);
    }
  }
  if (kept.empty()) return empty();
  return kept.size() == 1 ? kept[0] : add_list(Kind::sequence, kept);
}

// Many texts are a table, which is one thing to follow.
Language::Expr Language::choice(std::span<const Expr> options) {
  constexpr size_t kManyTexts = 8;
  std::vector<Expr> kept;
  std::vector<std::string> texts;
  for (const Expr option : options)
    if (nodes_[option].kind == Kind::text) texts.emplace_back(text_of(nodes_[option]));
  if (texts.size() < kManyTexts) texts.clear();
  for (const Expr option : options) {
    const bool is_in_table = !texts.empty() && nodes_[option].kind == Kind::text;
    if (option != nothing() && !is_in_table) kept.push_back(option);
  }
  if (!texts.empty()) kept.push_back(this->texts(texts));
  if (kept.empty()) return nothing();
  return kept.size() == 1 ? kept[0] : add_list(Kind::choice, kept);
}

Language::Expr Language::repeat(Expr part, int32_t low, int32_t high) {
  if (part == nothing()) return low == 0 ? empty() : nothing();
  if (part == empty() || high == 0) return empty();
  if (low == 1 && high == 1) return part;
  const Node inner = nodes_[part];
  if (inner.kind == Kind::repeat && inner.low == 0) {  // (x{0,m}){l,n} is x{0,m n}
    const int64_t most = int64_t{inner.high} * high;
    const bool endless = inner.high == kEndless || high == kEndless || most >= kEndless;
    return repeat(inner.at, 0, endless ? kEndless : static_cast<int32_t>(most));
  }
  return add({.kind = Kind::repeat, .low = low, .high = high, .at = part, .count = 1});
}

Language::Expr Language::table(Table table, int32_t most_characters) {
  if (table.size() == 0 || table.shortest[0] > most_characters) return nothing();
  const auto at = static_cast<int32_t>(tables_.size());
  const size_t size = sizeof table + table.bytes();
  tables_.push_back(std::move(table));
  return add({.kind = Kind::table, .high = most_characters, .at = at, .count = 1}, size);
}

int32_t Language::add_rule(std::string name) {
  bytes_ += sizeof name + name.size() + sizeof(Expr);
  names_.push_back(std::move(name));
  bodies_.push_back(nothing());
  return static_cast<int32_t>(bodies_.size()) - 1;
}

Language::Expr Language::rule(int32_t rule) {
  return add({.kind = Kind::rule, .at = rule, .count = 1});
}

// Depths depend on one another through the rules. Every round finds what one more level of rules
// allows, and more than kMaxDepth of them are no text of the language.
void Language::finish(Expr root) {
  root_ = root;
  for (Node& node : nodes_) node.depth = node.empty_depth = kNever;
  for (bool changed = true; changed;) {
    changed = false;
    budget_->spend(std::ssize(nodes_) / 8 + std::ssize(children_) / 8);
    for (Node& node : nodes_) changed |= measure(node);
  }
  refuse_left_recursion();
}

bool Language::measure(Node& node) const {
  int32_t depth = 0, empty_depth = kNever;
  switch (node.kind) {
    case Kind::nothing:
      depth = kNever;
      break;
    case Kind::empty:
      empty_depth = 0;
      break;
    case Kind::text:
    case Kind::bytes:
      break;
    case Kind::sequence:
      empty_depth = 0;
      for (const Expr child : children(node)) {
        depth = std::max(depth, nodes_[child].depth);
        empty_depth = std::max(empty_depth, nodes_[child].empty_depth);
      }
      break;
    case Kind::choice:
      depth = kNever;
      for (const Expr child : children(node)) {
        depth = std::min(depth, nodes_[child].depth);
        empty_depth = std::min(empty_depth, nodes_[child].empty_depth);
      }
      break;
    case Kind::repeat:
      depth = node.low == 0 ? 0 : nodes_[node.at].depth;
      empty_depth = node.low == 0 ? 0 : nodes_[node.at].empty_depth;
      break;
    case Kind::rule: {
      const Node& body = nodes_[bodies_[node.at]];
      depth = std::min(kNever, body.depth + 1);
      empty_depth = std::min(kNever, body.empty_depth + 1);
      break;
    }
    case Kind::table:
      if (table_of(node).accepts[0]) empty_depth = 0;
      break;
  }
  const bool changed = depth != node.depth || empty_depth != node.empty_depth;
  node.depth = depth;
  node.empty_depth = empty_depth;
  return changed;
}

// Rules that can be asked for before a byte was read.
std::vector<int32_t> Language::rules_at_beginning(Expr expr) const {
  std::vector<int32_t> found;
  std::vector<Expr> open{expr};
  std::unordered_set<Expr> seen;
  while (!open.empty()) {
    const Expr at = open.back();
    open.pop_back();
    if (!seen.insert(at).second) continue;
    const Node& node = nodes_[at];
    if (node.kind == Kind::rule) found.push_back(node.at);
    if (node.kind == Kind::repeat) open.push_back(node.at);
    if (node.kind != Kind::sequence && node.kind != Kind::choice) continue;
    for (const Expr child : children(node)) {
      open.push_back(child);
      if (node.kind == Kind::sequence && !can_be_empty(child)) break;
    }
  }
  budget_->spend(std::ssize(seen));
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

// Rules of which nothing that begins another is left are taken away; what stays is a circle.
void Language::refuse_left_recursion() const {
  std::vector<std::vector<int32_t>> asked_by(bodies_.size());
  std::vector<int32_t> asks(bodies_.size());
  std::vector<int32_t> done;
  for (size_t rule = 0; rule < bodies_.size(); ++rule) {
    const std::vector<int32_t> first = rules_at_beginning(bodies_[rule]);
    asks[rule] = static_cast<int32_t>(first.size());
    for (const int32_t other : first) asked_by[other].push_back(static_cast<int32_t>(rule));
    if (first.empty()) done.push_back(static_cast<int32_t>(rule));
  }
  for (size_t i = 0; i < done.size(); ++i)
    for (const int32_t rule : asked_by[done[i]])
      if (--asks[rule] == 0) done.push_back(rule);
  if (done.size() == bodies_.size()) return;
  const auto at = std::find_if(asks.begin(), asks.end(), [](int32_t n) { return n > 0; });
  fail_usage("the rule {} of the grammar begins with itself (left recursion)",
             json::quoted(names_[at - asks.begin()]));
}

}  // namespace invar::grammar
