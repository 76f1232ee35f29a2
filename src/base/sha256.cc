#include "base/sha256.h"

// The functions of OpenSSL's newer interface take memory each time a digest begins, which a warm
// step may not; these do not.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include "base/check.h"

namespace invar {

namespace {

SHA256_CTX* sha(void* context) {
  return static_cast<SHA256_CTX*>(context);
}

}  // namespace

Sha256::Sha256() : context_(new SHA256_CTX) {
  restart();
}

Sha256::~Sha256() {
  delete sha(context_);
}

void Sha256::restart() {
  CHECK(SHA256_Init(sha(context_)) == 1, "SHA-256 failed");
}

void Sha256::update(std::span<const std::byte> bytes) {
  CHECK(SHA256_Update(sha(context_), bytes.data(), bytes.size()) == 1, "SHA-256 failed");
}

Digest Sha256::finish() {
  Digest digest;
  CHECK(SHA256_Final(digest.data(), sha(context_)) == 1, "SHA-256 failed");
  return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
  SHA256_CTX context;
  Digest digest;
  CHECK(SHA256_Init(&context) == 1 && SHA256_Update(&context, bytes.data(), bytes.size()) == 1 &&
            SHA256_Final(digest.data(), &context) == 1,
        "SHA-256 failed");
  return digest;
}

std::string to_hex(const Digest& digest) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

}  // namespace invar
