// A receipt names the inputs and the tokens of an answer, signed. Another owner of the model
// computes it again (session/verify.h) and says whether it is true, or which token differs first.
//
// Its JSON is read into this struct and the struct is what is signed, in its canonical spelling
// (RFC 8785): spaces and the order of members do not matter. Numbers that have a fraction or may
// have more than 53 bits are texts, so that no JSON library can change them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/sha256.h"
#include "sampling/params.h"

namespace invar {

// The inputs that answers of a model depend on beside their requests.
struct ReceiptModel {
  std::string arithmetic;     // the identity
  std::string specification;  // hexadecimal digests: of config.json as it was understood
  std::string weights;
  std::string tokenizer;      // of its files
  std::string chat_template;  // of its text; empty: there is none
  std::string defaults;       // of the sampling parameters that a request does not name
  std::string adapter = {};   // of the request's (numerics 2.4); empty: it has none

  bool operator==(const ReceiptModel&) const = default;
};

// The digest of all that.
Digest model_digest(const ReceiptModel& model);
// `system_fingerprint`: the identity and the beginning of that digest.
std::string fingerprint_of(const ReceiptModel& model);
// The digest of `defaults`.
std::string defaults_digest(const SamplingParams& defaults);
// Sampling parameters by the names that requests have for them, log-probabilities aside.
json::Value params_json(const SamplingParams& params);

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
  std::string grammar;  // JSON of what the answer was held to (ConstraintCompiler); or empty

  std::vector<int32_t> tokens;
  std::string finish;  // "stop" or "length"
  // The logits hash behind every kReceiptLink tokens and behind the last, and a link for each.
  std::vector<std::string> logits_hashes, chain;

  std::string public_key, signature;  // hexadecimal; empty: it is not signed

  bool operator==(const Receipt&) const = default;
};

inline constexpr int kReceiptVersion = 1;
inline constexpr size_t kReceiptLink = 64;

// The chain binds the request to the logits: link i = SHA-256(link i-1, the tokens of the link as
// little-endian i32, the logits hash behind the last of them, and for the last link the finish);
// the link before the first is the SHA-256 of what is signed without the answer, the chain and the
// key. `checkpoints`: that hash for each link.
std::vector<std::string> chain_of(const Receipt& receipt, std::span<const Digest> checkpoints);
// Completes a receipt that has its tokens and finish.
void set_chain(Receipt& receipt, std::span<const Digest> checkpoints);

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
  // R is a Receipt or a NumbersReceipt.
  template <typename R>
  void sign(R& receipt) const {
    receipt.public_key = public_key();
    receipt.signature = signature_of(signed_text(receipt));
  }
  // A secret that only the key's owner can make, for this purpose alone.
  std::string secret(std::string_view purpose) const;

 private:
  std::string signature_of(const std::string& text) const;

  void* key_;  // an EVP_PKEY
};

// The key in `file`, which is made where there is none.
ReceiptKey open_receipt_key(const std::string& file);
// Whether the signature is this public key's over the text; all but the text are hexadecimal.
bool is_signature(const std::string& public_key, const std::string& hex, const std::string& text);
// Whether the receipt carries a signature of its public key over what it says.
template <typename R>
bool is_signed(const R& receipt) {
  return is_signature(receipt.public_key, receipt.signature, signed_text(receipt));
}

}  // namespace invar
