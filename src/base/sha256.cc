#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace invar {

namespace {

EVP_MD_CTX* evp(void* context) {
  return static_cast<EVP_MD_CTX*>(context);
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CHECK(context_, "OpenSSL has no memory for a digest");
  restart();
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(evp(context_));
}

void Sha256::restart() {
  CHECK(EVP_DigestInit_ex(evp(context_), EVP_sha256(), nullptr) == 1, "OpenSSL lacks SHA-256");
}

void Sha256::update(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(evp(context_), bytes.data(), bytes.size()) == 1, "SHA-256 failed");
}

Digest Sha256::finish() {
  Digest digest;
  CHECK(EVP_DigestFinal_ex(evp(context_), digest.data(), nullptr) == 1, "SHA-256 failed");
  return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
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
