// SHA-256 (FIPS 180-4) through OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace invar {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::span<const std::byte> bytes);

// Lower-case hexadecimal, 64 characters.
std::string to_hex(const Digest& digest);

// Incremental form: update any number of times, then finish once.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  Digest finish();
  // Makes the object ready for a new message, without allocating.
  void restart();

 private:
  void* context_;
};

}  // namespace invar
