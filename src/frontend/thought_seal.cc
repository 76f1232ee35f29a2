#include "frontend/thought_seal.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <memory>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "base/sha256.h"

namespace invar {

namespace {

constexpr size_t kNonceBytes = 12, kTagBytes = 16;

const unsigned char* raw(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string hex_text(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// Empty for what is no hexadecimal.
std::string bytes_from(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return {};
    bytes += static_cast<char>(high << 4 | low);
  }
  return text.size() % 2 ? std::string() : bytes;
}

std::string authenticated(std::span<const unsigned char> key, std::string_view text) {
  std::string out(32, '\0');
  unsigned int size = 0;
  CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), raw(text), text.size(),
             reinterpret_cast<unsigned char*>(out.data()), &size),
        "HMAC-SHA256");
  return out;
}

// Encrypts or decrypts with the nonce; `tag` is written or compared.
std::string seal_or_open(bool encrypts, std::span<const unsigned char> key, std::string_view nonce,
                         std::string_view text, std::string& tag, bool& holds) {
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(
      EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  std::string out(text.size(), '\0');
  auto* to = reinterpret_cast<unsigned char*>(out.data());
  int size = 0;
  const bool begun =
      EVP_CipherInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key.data(), raw(nonce),
                        encrypts ? 1 : 0) == 1 &&
      EVP_CipherUpdate(context.get(), to, &size, raw(text), static_cast<int>(text.size())) == 1;
  CHECK(begun, "AES-256-GCM");
  if (!encrypts) EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes, tag.data());
  holds = EVP_CipherFinal_ex(context.get(), to + size, &size) == 1;
  if (encrypts) EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, tag.data());
  return out;
}

}  // namespace

ThoughtSeal::ThoughtSeal(std::string_view secret) {
  const Digest digest = sha256(std::as_bytes(std::span(secret)));
  for (size_t i = 0; i < key_.size(); ++i) key_[i] = static_cast<unsigned char>(digest[i]);
}

std::string ThoughtSeal::sign(std::string_view thought) const {
  return hex_text(authenticated(key_, thought));
}

bool ThoughtSeal::signs(std::string_view thought, std::string_view signature) const {
  const std::string expected = sign(thought);
  return signature.size() == expected.size() &&
         CRYPTO_memcmp(signature.data(), expected.data(), expected.size()) == 0;
}

std::string ThoughtSeal::close(std::string_view thought) const {
  const std::string nonce = authenticated(key_, thought).substr(0, kNonceBytes);
  std::string tag(kTagBytes, '\0');
  bool holds = false;
  const std::string text = seal_or_open(true, key_, nonce, thought, tag, holds);
  return hex_text(nonce + tag + text);
}

std::optional<std::string> ThoughtSeal::open(std::string_view closed) const {
  const std::string bytes = bytes_from(closed);
  bool holds = bytes.size() >= kNonceBytes + kTagBytes;
  std::string text;
  if (holds) {
    std::string tag = bytes.substr(kNonceBytes, kTagBytes);
    text = seal_or_open(false, key_, bytes.substr(0, kNonceBytes),
                        bytes.substr(kNonceBytes + kTagBytes), tag, holds);
  }
  if (!holds) return std::nullopt;
  return text;
}

}  // namespace invar
