// Ed25519 through OpenSSL.
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/input_file.h"
#include "frontend/receipt.h"

namespace invar {

namespace {

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(BIO* bio) const { BIO_free(bio); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

constexpr size_t kPublicBytes = 32, kSignatureBytes = 64;

std::string to_hex(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// Lower case alone, so that one signature has one spelling.
std::optional<std::vector<unsigned char>> from_hex(std::string_view text, size_t size) {
  if (text.size() != 2 * size) return std::nullopt;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::vector<unsigned char> bytes(size);
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = kDigits.find(text[i]);
    if (digit == kDigits.npos) return std::nullopt;
    bytes[i / 2] = static_cast<unsigned char>(bytes[i / 2] << 4 | digit);
  }
  return bytes;
}

const unsigned char* bytes_of(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

ReceiptKey::ReceiptKey() : key_(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519")) {
  if (!key_) fail("cannot make an Ed25519 key");
}

ReceiptKey::ReceiptKey(const std::string& file) : key_(nullptr) {
  constexpr int64_t kMost = 64 << 10;
  const std::string pem = read_whole_file(file, kMost);
  const Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  // Without a question to the terminal where the file is encrypted.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  if (!key || EVP_PKEY_get_id(key.get()) != EVP_PKEY_ED25519)
    fail("{}: expected a private Ed25519 key in PEM without a password", file);
  key_ = key.release();
}

ReceiptKey::ReceiptKey(ReceiptKey&& other) noexcept : key_(std::exchange(other.key_, nullptr)) {}

ReceiptKey::~ReceiptKey() {
  EVP_PKEY_free(static_cast<EVP_PKEY*>(key_));
}

void ReceiptKey::save(const std::string& file) const {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), static_cast<EVP_PKEY*>(key_), nullptr, nullptr, 0, nullptr,
                           nullptr);
  char* text = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(bio.get(), &text));
  const int to = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (to < 0) fail("{}: cannot be made: {}", file, std::strerror(errno));
  const bool is_written = ::write(to, text, size) == static_cast<ssize_t>(size) && ::fsync(to) == 0;
  const int error = errno;
  ::close(to);
  if (is_written) return;
  ::unlink(file.c_str());
  fail("{}: cannot be written: {}", file, std::strerror(error));
}

std::string ReceiptKey::public_key() const {
  unsigned char bytes[kPublicBytes];
  size_t size = sizeof bytes;
  EVP_PKEY_get_raw_public_key(static_cast<EVP_PKEY*>(key_), bytes, &size);
  return to_hex(bytes);
}

std::string ReceiptKey::signature_of(const std::string& text) const {
  const Owned<EVP_MD_CTX> context(EVP_MD_CTX_new());
  unsigned char bytes[kSignatureBytes];
  size_t size = sizeof bytes;
  EVP_PKEY* key = static_cast<EVP_PKEY*>(key_);
  if (EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key) != 1 ||
      EVP_DigestSign(context.get(), bytes, &size, bytes_of(text), text.size()) != 1)
    fail("a receipt cannot be signed");
  return to_hex(bytes);
}

std::string ReceiptKey::secret(std::string_view purpose) const {
  unsigned char bytes[kPublicBytes];
  size_t size = sizeof bytes;
  if (EVP_PKEY_get_raw_private_key(static_cast<EVP_PKEY*>(key_), bytes, &size) != 1)
    fail("a receipt's key cannot be read");
  return std::string(purpose) + to_hex(bytes);
}

ReceiptKey open_receipt_key(const std::string& file) {
  if (std::filesystem::exists(file)) return ReceiptKey(file);
  ReceiptKey made;
  made.save(file);
  return made;
}

bool is_signature(const std::string& public_key, const std::string& hex, const std::string& text) {
  const auto raw = from_hex(public_key, kPublicBytes);
  const auto signature = from_hex(hex, kSignatureBytes);
  if (!raw || !signature) return false;
  const Owned<EVP_PKEY> key(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, raw->data(), raw->size()));
  const Owned<EVP_MD_CTX> context(EVP_MD_CTX_new());
  return key && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
         EVP_DigestVerify(context.get(), signature->data(), signature->size(), bytes_of(text),
                          text.size()) == 1;
}

}  // namespace invar
