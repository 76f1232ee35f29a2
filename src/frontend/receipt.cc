#include "frontend/receipt.h"

#include <algorithm>

#include "base/canonical_json.h"
#include "base/error.h"
#include "frontend/receipt_members.h"

namespace invar {

namespace {

template <typename T>
json::Value array_of(const std::vector<T>& values) {
  json::Array all;
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, std::vector<int32_t>>)
      all.push_back(array_of(value));
    else
      all.emplace_back(value);
  }
  return all;
}

// The members before the answer.
json::Value head_json(const Receipt& r) {
  json::Value request = json::Object{{"prompt", array_of(r.prompt)}};
  request.set("sampling", params_json(r.params));
  request.set("stop", array_of(r.stop));
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
  all.set("answer", json::Object{{"tokens", array_of(r.tokens)},
                                 {"finish_reason", r.finish},
                                 {"logits_hashes", array_of(r.logits_hashes)}});
  all.set("chain", array_of(r.chain));
  all.set("public_key", r.public_key);
  return all;
}

void read_params(const json::Value& value, SamplingParams& p) {
  ReceiptMembers in(value, "its sampling parameters");
  in.take("n", p.n);
  in.take("temperature", p.temperature);
  in.take("top_p", p.top_p);
  in.take("top_k", p.top_k);
  in.take("min_p", p.min_p);
  in.take("repetition_penalty", p.repetition_penalty);
  in.take("presence_penalty", p.presence_penalty);
  in.take("frequency_penalty", p.frequency_penalty);
  in.take("logit_bias", p.logit_bias);
  in.take("max_tokens", p.max_tokens);
  in.take("min_tokens", p.min_tokens);
  in.take("stop_token_ids", p.stop_token_ids);
  in.take("allowed_token_ids", p.allowed_token_ids);
  in.take("bad_words", p.bad_words);
  in.take("ignore_eos", p.ignore_eos);
  in.take("seed", p.seed);
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
  json::Array biases;
  for (const auto& [token, bias] : p.logit_bias)
    biases.push_back(json::Array{token, number_text(bias)});
  return json::Object{{"n", p.n},
                      {"temperature", number_text(p.temperature)},
                      {"top_p", number_text(p.top_p)},
                      {"top_k", p.top_k},
                      {"min_p", number_text(p.min_p)},
                      {"repetition_penalty", number_text(p.repetition_penalty)},
                      {"presence_penalty", number_text(p.presence_penalty)},
                      {"frequency_penalty", number_text(p.frequency_penalty)},
                      {"logit_bias", std::move(biases)},
                      {"max_tokens", p.max_tokens},
                      {"min_tokens", p.min_tokens},
                      {"stop_token_ids", array_of(p.stop_token_ids.get())},
                      {"allowed_token_ids", array_of(p.allowed_token_ids.get())},
                      {"bad_words", array_of(p.bad_words.get())},
                      {"ignore_eos", p.ignore_eos},
                      {"seed", std::to_string(p.seed)}};
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
