#include "frontend/receipt.h"

#include <algorithm>

#include "base/canonical_json.h"
#include "base/error.h"
#include "frontend/receipt_members.h"

namespace invar {

namespace {

// A value as receipts spell it.
template <typename T>
json::Value shown(const T& value) {
  return value;
}
json::Value shown(double number) {
  return number_text(number);
}
json::Value shown(uint64_t number) {
  return std::to_string(number);
}
json::Value shown(const std::pair<int32_t, double>& bias) {
  return json::Array{bias.first, number_text(bias.second)};
}
template <typename T>
json::Value shown(const std::vector<T>& values) {
  json::Array all;
  for (const T& value : values) all.push_back(shown(value));
  return all;
}
template <typename T>
json::Value shown(const Shared<T>& values) {
  return shown(values.get());
}

// Later fields stand in a receipt where a request has them, so that what was signed before they
// came is as it was.
constexpr uint32_t kAlwaysShown = 3;

// The members before the answer.
json::Value head_json(const Receipt& r) {
  json::Value request = json::Object{{"prompt", shown(r.prompt)}};
  request.set("sampling", params_json(r.params));
  request.set("stop", shown(r.stop));
  request.set("include_stop_str_in_output", r.include_stop);
  request.set("skip_special_tokens", r.skip_special);
  request.set("form", r.grammar);
  json::Value head = json::Object{{"invar_receipt", kReceiptVersion},
                                  {"id", r.id},
                                  {"created", r.created},
                                  {"model", r.name},
                                  {"choice", r.choice},
                                  {"context", r.context},
                                  {"request", std::move(request)}};
  for (auto& [name, value] : model_members(r.model)) head.set(name, std::move(value));
  return head;
}

// Everything but the signature.
json::Value unsigned_json(const Receipt& r) {
  json::Value all = head_json(r);
  all.set("answer", json::Object{{"tokens", shown(r.tokens)},
                                 {"finish_reason", r.finish},
                                 {"logits_hashes", shown(r.logits_hashes)}});
  all.set("chain", shown(r.chain));
  all.set("public_key", r.public_key);
  return all;
}

void read_params(const json::Value& value, SamplingParams& p) {
  ReceiptMembers in(value, "its sampling parameters");
  for_each_field<&FieldFacts::in_receipts>(p, [&](const auto& field, auto& value) {
    if (field.facts.since <= kAlwaysShown || in.has(field.name)) in.take(field.name, value);
  });
  in.expect_end();
}

void read_request(const json::Value& value, Receipt& r) {
  ReceiptMembers in(value, "its request");
  in.take("prompt", r.prompt);
  read_params(in.take("sampling"), r.params);
  in.take("stop", r.stop);
  in.take("include_stop_str_in_output", r.include_stop);
  in.take("skip_special_tokens", r.skip_special);
  in.take("form", r.grammar);
  in.expect_end();
}

}  // namespace

Digest model_digest(const ReceiptModel& model) {
  return json::digest_of(model_members(model));
}

std::string fingerprint_of(const ReceiptModel& model) {
  return model.arithmetic + "-" + to_hex(model_digest(model)).substr(0, 16);
}

std::string defaults_digest(const SamplingParams& defaults) {
  return to_hex(json::digest_of(params_json(defaults)));
}

json::Value params_json(const SamplingParams& p) {
  const SamplingParams unsaid;
  json::Value all = json::Object{};
  for_each_field<&FieldFacts::in_receipts>(p, [&](const auto& field, const auto& value) {
    if (field.facts.since <= kAlwaysShown || value != unsaid.*field.at)
      all.set(field.name, shown(value));
  });
  return all;
}

std::vector<std::string> chain_of(const Receipt& receipt, std::span<const Digest> checkpoints) {
  Digest link = json::digest_of(head_json(receipt));
  std::vector<std::string> chain;
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    const size_t begin = i * kReceiptLink,
                 end = std::min(begin + kReceiptLink, receipt.tokens.size());
    std::string bytes(reinterpret_cast<const char*>(link.data()), link.size());
    for (size_t t = begin; t < end; ++t)
      for (int shift = 0; shift < 32; shift += 8)
        bytes += static_cast<char>(static_cast<uint32_t>(receipt.tokens[t]) >> shift);
    bytes.append(reinterpret_cast<const char*>(checkpoints[i].data()), checkpoints[i].size());
    if (end == receipt.tokens.size()) bytes += receipt.finish;
    link = sha256(std::as_bytes(std::span(bytes)));
    chain.push_back(to_hex(link));
  }
  return chain;
}

void set_chain(Receipt& receipt, std::span<const Digest> checkpoints) {
  receipt.logits_hashes.clear();
  for (const Digest& checkpoint : checkpoints) receipt.logits_hashes.push_back(to_hex(checkpoint));
  receipt.chain = chain_of(receipt, checkpoints);
}

std::string signed_text(const Receipt& receipt) {
  return json::canonical(unsigned_json(receipt));
}

json::Value to_json(const Receipt& receipt) {
  json::Value all = unsigned_json(receipt);
  all.set("signature", receipt.signature);
  return all;
}

Receipt receipt_from(const json::Value& value) {
  ReceiptMembers in(value, "a receipt");
  Receipt r;
  take_head(in, r);
  in.take("choice", r.choice);
  read_request(in.take("request"), r);
  ReceiptMembers answer(in.take("answer"), "its answer");
  answer.take("tokens", r.tokens);
  answer.take("finish_reason", r.finish);
  answer.take("logits_hashes", r.logits_hashes);
  answer.expect_end();
  in.take("chain", r.chain);
  in.take("public_key", r.public_key);
  in.take("signature", r.signature);
  in.expect_end();
  return r;
}

}  // namespace invar
