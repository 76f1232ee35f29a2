#include "sampling/grammar/byte_classes.h"

#include <set>

namespace invar::grammar {

namespace {

using Classes = std::array<uint8_t, 256>;

// A class that a set cuts becomes two.
int divide(Classes& class_of, const ByteSet& set) {
  std::array<int, 512> parts;  // by class, and whether the set has the byte
  parts.fill(-1);
  int count = 0;
  for (int b = 0; b < 256; ++b) {
    int& part = parts[2 * class_of[b] + has(set, static_cast<uint8_t>(b))];
    if (part < 0) part = count++;
    class_of[b] = static_cast<uint8_t>(part);
  }
  return count;
}

}  // namespace

ByteClasses::ByteClasses(const Language& language) {
  std::set<ByteSet> sets;
  std::array<bool, 257> begins{};  // where a range or a byte of a text does, and behind it
  int64_t work = 0;
  for (size_t i = 0; i < language.size(); ++i) {
    const Language::Node& node = language.node(static_cast<Language::Expr>(i));
    if (node.kind == Language::Kind::bytes) sets.insert(language.set_of(node));
    if (node.kind == Language::Kind::text)
      for (const char c : language.text_of(node))
        begins[static_cast<uint8_t>(c)] = begins[static_cast<uint8_t>(c) + 1] = true;
    if (node.kind != Language::Kind::table) continue;
    const auto& edges = language.table_of(node).edges;
    for (const Table::Edge& edge : edges) begins[edge.low] = begins[edge.high + 1] = true;
    work += std::ssize(edges);
  }
  language.budget().spend((work + std::ssize(sets) * 256 + std::ssize(language)) / 16);
  for (int b = 1; b < 256; ++b) class_of[b] = static_cast<uint8_t>(class_of[b - 1] + begins[b]);
  count = class_of[255] + 1;
  for (auto set = sets.begin(); set != sets.end() && count < 256; ++set)
    count = divide(class_of, *set);
  for (int b = 255; b >= 0; --b) first[class_of[b]] = static_cast<uint8_t>(b);
}

}  // namespace invar::grammar
