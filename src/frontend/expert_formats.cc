#include "frontend/expert_formats.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/ends.h"
#include "base/error.h"

namespace invar::rollout {

namespace {

const json::Array& rows_at(const json::Value& choice, const char* name) {
  const json::Value* found = choice.find(name);
  if (!found) fail("expected {} in an answer, found none", name);
  return found->as_array();
}

std::string base64_of(const std::string& bytes) {
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                  reinterpret_cast<const unsigned char*>(bytes.data()),
                  static_cast<int>(bytes.size()));
  out.pop_back();
  return out;
}

// Little-endian numbers of so many bytes.
void append_ids(const json::Array& rows, int width, std::string& bytes) {
  for (const json::Value& row : rows)
    for (const json::Value& expert : row.as_array())
      for (int byte = 0; byte < width; ++byte)
        bytes += static_cast<char>(expert.as_integer() >> (8 * byte) & 0xff);
}

}  // namespace

json::Array expert_rows(const json::Value& choice) {
  json::Array rows = rows_at(choice, "prompt_routed_experts");
  for (const json::Value& row : rows_at(choice, "routed_experts")) rows.push_back(row);
  return rows;
}

json::Value nested_experts(const json::Array& rows, int32_t layers) {
  json::Array tokens;
  for (const json::Value& row : rows) {
    const json::Array& columns = row.as_array();
    const size_t each = columns.size() / static_cast<size_t>(layers);
    json::Array all;
    for (auto at = columns.begin(); at != columns.end(); at += static_cast<int64_t>(each))
      all.push_back(json::Array(at, at + static_cast<int64_t>(each)));
    tokens.push_back(std::move(all));
  }
  return tokens;
}

json::Value npy_experts(const json::Array& rows, int32_t layers) {
  const size_t columns = rows.empty() ? 0 : first_of(rows).as_array().size();
  std::string head =
      fmt::format("{{'descr': '<u2', 'fortran_order': False, 'shape': ({}, {}, {}), }}",
                  rows.size(), layers, columns / static_cast<size_t>(layers));
  constexpr size_t kMagic = 10, kAlign = 64;
  head.append((kAlign - (kMagic + head.size() + 1) % kAlign) % kAlign, ' ');
  head += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(head.size() & 0xff);
  bytes += static_cast<char>(head.size() >> 8);
  bytes += head;
  append_ids(rows, 2, bytes);
  return base64_of(bytes);
}

json::Value packed_experts(const json::Array& rows) {
  std::string bytes;
  append_ids(rows, 4, bytes);
  return base64_of(bytes);
}

}  // namespace invar::rollout
