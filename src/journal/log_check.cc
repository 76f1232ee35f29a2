#include "log_check.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <fstream>
#include <optional>
#include <vector>

namespace invar::server {

namespace {

// https://www.sqlite.org/fileformat2.html#walformat
constexpr size_t kHeaderBytes = 32, kFrameHeaderBytes = 24;
constexpr uint32_t kMagic = 0x377f0682;  // with little-endian checksums; one more: big-endian

uint32_t word(const std::string& bytes, size_t at, bool big_endian = true) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[at + i]);
    value |= uint32_t{byte} << (8 * (big_endian ? 3 - i : i));
  }
  return value;
}

// The checksum of a log's bytes goes on from the one before.
struct Checksum {
  uint32_t a = 0, b = 0;
  void add(const std::string& bytes, size_t from, size_t to, bool big_endian) {
    for (size_t at = from; at + 8 <= to; at += 8) {
      a += word(bytes, at, big_endian) + b;
      b += word(bytes, at + 4, big_endian) + a;
    }
  }
  bool is_at(const std::string& bytes, size_t at) const {
    return word(bytes, at) == a && word(bytes, at + 4) == b;
  }
};

struct LogHeader {
  bool big_endian = false;
  size_t page_bytes = 0;
  uint32_t salt = 0, other_salt = 0;
  Checksum checksum;
};

std::optional<LogHeader> read_header(const std::string& bytes) {
  const uint32_t magic = word(bytes, 0);
  if ((magic & ~1u) != kMagic) return std::nullopt;
  LogHeader header{.big_endian = (magic & 1) != 0,
                   .page_bytes = word(bytes, 8),
                   .salt = word(bytes, 16),
                   .other_salt = word(bytes, 20),
                   .checksum = {}};
  header.checksum.add(bytes, 0, 24, header.big_endian);
  if (!header.checksum.is_at(bytes, 24) || !std::has_single_bit(header.page_bytes) ||
      header.page_bytes < 512 || header.page_bytes > 65536)
    return std::nullopt;
  return header;
}

// Frames from the first wrong one on. A transaction's last frame has a mark.
struct Tail {
  int64_t frames = 0, transactions = 0;
  bool has_older = false;  // of the log that was written before this one into the same file
};

}  // namespace

std::string lost_frames(const std::string& log) {
  std::ifstream in(log, std::ios::binary);
  std::string bytes(kHeaderBytes, '\0');
  if (!in.read(bytes.data(), kHeaderBytes)) return "";
  const std::optional<LogHeader> header = read_header(bytes);
  bytes.resize(kFrameHeaderBytes + (header ? header->page_bytes : 512));
  const auto next = [&] {
    return bool(in.read(bytes.data(), static_cast<std::streamsize>(bytes.size())));
  };
  if (!header)
    return next() ? fmt::format("{}: its header was changed: no line in it can be read", log) : "";

  Checksum sum = header->checksum;
  int64_t whole = 0, transactions = 0;
  Tail tail;
  while (next()) {
    const uint32_t salt = word(bytes, 8);
    const bool ends_transaction = word(bytes, 4) != 0;
    sum.add(bytes, 0, 8, header->big_endian);
    sum.add(bytes, kFrameHeaderBytes, bytes.size(), header->big_endian);
    if (tail.frames == 0 && salt == header->salt && word(bytes, 12) == header->other_salt &&
        sum.is_at(bytes, 16)) {
      ++whole;
      transactions += ends_transaction;
      continue;
    }
    ++tail.frames;
    tail.transactions += ends_transaction;
    tail.has_older |= salt == header->salt - 1;
  }
  // The journal's log is cut off behind its first transaction (journal_size_limit): what is older
  // stands only behind one that nobody was told of.
  if (tail.has_older || tail.transactions == 0) return "";
  return fmt::format(
      "{}: its bytes were changed behind byte {}: {} of {} transactions are lost, each with one "
      "line or several",
      log, kHeaderBytes + static_cast<size_t>(whole) * bytes.size(), tail.transactions,
      transactions + tail.transactions);
}

}  // namespace invar::server
