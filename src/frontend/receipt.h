// A receipt: what an answer was computed from and what it is, signed. Whoever has the model
// computes it again (session/verify.h) and says whether it is true, or which token differs first.
//
// Its JSON is read into this struct and the struct is what is signed, in the one form that
// `signed_text` gives it: spaces, the order of members and how a number is spelled do not matter.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/sha256.h"
#include "sampling/params.h"

namespace invar {

// What the answers of a model depend on beside their requests.
struct ReceiptModel {
  std::string arithmetic;     // the identity
  std::string weights;        // hexadecimal digests
  std::string tokenizer;      // of its files
  std::string chat_template;  // of its text; empty: there is none

  bool operator==(const ReceiptModel&) const = default;
};

struct Receipt {
  std::string id;  // of the answer
  int64_t created = 0;
  std::string name;    // of the model, as it was served
  int32_t choice = 0;  // which of the answers to one prompt
  int32_t context = 0;
  ReceiptModel model;
  std::vector<int32_t> prompt;
  SamplingParams params;  // checked; log-probabilities aside
  std::vector<std::string> stop;
  bool include_stop = false, skip_special = true;
  std::string form;  // JSON of what the answer was held to (ConstraintCompiler); or empty

  std::vector<int32_t> tokens;
  std::string finish;  // "stop" or "length"
  std::string logits_hash;
  std::vector<std::string> chain;  // one link for each kReceiptLink tokens that were begun

  std::string public_key, signature;  // hexadecimal; empty: it is not signed

  bool operator==(const Receipt&) const = default;
};

inline constexpr size_t kReceiptLink = 64;

// The chain binds the request to the logits: link i = SHA-256(link i-1, the tokens of the link as
// little-endian i32, the logits hash behind the last of them, and for the last link the finish);
// the link before the first is the SHA-256 of all that stands before the answer. `marks`: that
// hash for each link.
std::vector<std::string> chain_of(const Receipt& receipt, std::span<const Digest> marks);

// The bytes that are signed: everything but the signature.
std::string signed_text(const Receipt& receipt);
json::Value to_json(const Receipt& receipt);
// Throws Error, with one sentence, for what is no receipt: a member that is missing, unknown or of
// another type.
Receipt receipt_from(const json::Value& value);

// An Ed25519 key (RFC 8032).
class ReceiptKey {
 public:
  // A new one.
  ReceiptKey();
  // From a PEM file. Throws Error.
  explicit ReceiptKey(const std::string& file);
  ~ReceiptKey();
  ReceiptKey(ReceiptKey&& other) noexcept;
  ReceiptKey& operator=(ReceiptKey&&) = delete;

  // Writes a PEM file that only its owner reads. Throws Error where one stands already.
  void save(const std::string& file) const;
  std::string public_key() const;
  void sign(Receipt& receipt) const;

 private:
  void* key_;  // an EVP_PKEY
};

// The key in `file`, which is made where there is none.
ReceiptKey open_receipt_key(const std::string& file);
// Whether the receipt carries a signature of its public key over what it says.
bool is_signed(const Receipt& receipt);

}  // namespace invar
