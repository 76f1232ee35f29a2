#include "frontend/receipt.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

namespace {

constexpr int kVersion = 1;

template <typename T>
json::Value list_of(const std::vector<T>& values) {
  json::Array all;
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, std::vector<int32_t>>)
      all.push_back(list_of(value));
    else
      all.emplace_back(value);
  }
  return all;
}

json::Value params_json(const SamplingParams& p) {
  json::Array biases;
  for (const auto& [token, bias] : p.logit_bias) biases.push_back(json::Array{token, bias});
  return json::Object{{"n", p.n},
                      {"temperature", p.temperature},
                      {"top_p", p.top_p},
                      {"top_k", p.top_k},
                      {"min_p", p.min_p},
                      {"repetition_penalty", p.repetition_penalty},
                      {"presence_penalty", p.presence_penalty},
                      {"frequency_penalty", p.frequency_penalty},
                      {"logit_bias", std::move(biases)},
                      {"max_tokens", p.max_tokens},
                      {"min_tokens", p.min_tokens},
                      {"stop_token_ids", list_of(p.stop_token_ids.get())},
                      {"allowed_token_ids", list_of(p.allowed_token_ids.get())},
                      {"bad_words", list_of(p.bad_words.get())},
                      {"ignore_eos", p.ignore_eos},
                      {"seed", p.seed}};
}

// What stands before the answer.
json::Value head_json(const Receipt& r) {
  json::Value request = json::Object{{"prompt", list_of(r.prompt)}};
  request.set("sampling", params_json(r.params));
  request.set("stop", list_of(r.stop));
  request.set("include_stop_str_in_output", r.include_stop);
  request.set("skip_special_tokens", r.skip_special);
  request.set("form", r.form);
  return json::Object{{"invar_receipt", kVersion},
                      {"id", r.id},
                      {"created", r.created},
                      {"model", r.name},
                      {"choice", r.choice},
                      {"context", r.context},
                      {"arithmetic", r.model.arithmetic},
                      {"weights", r.model.weights},
                      {"tokenizer", r.model.tokenizer},
                      {"chat_template", r.model.chat_template},
                      {"request", std::move(request)}};
}

// Everything but the signature.
json::Value unsigned_json(const Receipt& r) {
  json::Value all = head_json(r);
  all.set("answer", json::Object{{"tokens", list_of(r.tokens)},
                                 {"finish_reason", r.finish},
                                 {"logits_hash", r.logits_hash}});
  all.set("chain", list_of(r.chain));
  all.set("public_key", r.public_key);
  return all;
}

// Takes the members of an object one by one; what is left at the end is a fault.
class Members {
 public:
  Members(const json::Value& value, std::string what) : what_(std::move(what)) {
    if (!value.is_object())
      fail("a receipt: expected {} as an object, found {}", what_, value.type_name());
    left_ = value.as_object();
  }

  json::Value take(const char* name) {
    const auto found = std::ranges::find(left_, name, &json::Member::first);
    if (found == left_.end()) fail("a receipt: expected \"{}\" in {}, found none", name, what_);
    json::Value value = std::move(found->second);
    left_.erase(found);
    return value;
  }

  void take(const char* name, std::string& to) {
    const json::Value value = take(name);
    if (!value.is_string()) wrong(name, "a text", value);
    to = value.as_string();
  }
  void take(const char* name, bool& to) {
    const json::Value value = take(name);
    if (!value.is_bool()) wrong(name, "true or false", value);
    to = value.as_bool();
  }
  void take(const char* name, double& to) {
    const json::Value value = take(name);
    if (!value.is_number()) wrong(name, "a number", value);
    to = value.as_number();
  }
  void take(const char* name, int64_t& to) { to = integer(name, take(name), INT64_MIN, INT64_MAX); }
  void take(const char* name, int32_t& to) {
    to = static_cast<int32_t>(integer(name, take(name), INT32_MIN, INT32_MAX));
  }
  void take(const char* name, uint64_t& to) {
    const json::Value value = take(name);
    const auto found = value.is_number() ? value.to_unsigned() : std::nullopt;
    if (!found) wrong(name, "an integer, 0 or more", value);
    to = *found;
  }
  void take(const char* name, std::vector<int32_t>& to) { to = integers(name, take(name)); }
  void take(const char* name, std::vector<std::string>& to) {
    for (const json::Value& one : list(name, take(name))) {
      if (!one.is_string()) wrong(name, "texts", one);
      to.push_back(one.as_string());
    }
  }
  void take(const char* name, std::vector<std::vector<int32_t>>& to) {
    for (const json::Value& one : list(name, take(name))) to.push_back(integers(name, one));
  }
  void take(const char* name, std::vector<std::pair<int32_t, double>>& to) {
    for (const json::Value& one : list(name, take(name))) {
      const bool is_pair = one.is_array() && one.as_array().size() == 2;
      if (!is_pair || !one.as_array()[1].is_number()) wrong(name, "pairs of numbers", one);
      to.emplace_back(integer(name, one.as_array()[0], INT32_MIN, INT32_MAX),
                      one.as_array()[1].as_number());
    }
  }

  template <typename T>
  void take(const char* name, Shared<T>& to) {
    take(name, to.edit());
  }

  void expect_end() const {
    if (!left_.empty())
      fail("a receipt: {} has {}, which no receipt has", what_, json::quoted(left_[0].first));
  }

 private:
  [[noreturn]] void wrong(const char* name, const char* expected, const json::Value& found) const {
    fail("a receipt: expected {} of {} as {}, found {}", name, what_, expected,
         json::excerpt(found));
  }
  int64_t integer(const char* name, const json::Value& value, int64_t low, int64_t high) const {
    const auto found = value.is_number() ? value.to_integer() : std::nullopt;
    if (!found || *found < low || *found > high) wrong(name, "an integer", value);
    return *found;
  }
  json::Array list(const char* name, const json::Value& value) const {
    if (!value.is_array()) wrong(name, "a list", value);
    return value.as_array();
  }
  std::vector<int32_t> integers(const char* name, const json::Value& value) const {
    std::vector<int32_t> all;
    for (const json::Value& one : list(name, value))
      all.push_back(static_cast<int32_t>(integer(name, one, INT32_MIN, INT32_MAX)));
    return all;
  }

  std::string what_;
  json::Object left_;
};

void read_params(const json::Value& value, SamplingParams& p) {
  Members in(value, "its sampling parameters");
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
  Members in(value, "its request");
  in.take("prompt", r.prompt);
  read_params(in.take("sampling"), r.params);
  in.take("stop", r.stop);
  in.take("include_stop_str_in_output", r.include_stop);
  in.take("skip_special_tokens", r.skip_special);
  in.take("form", r.form);
  in.expect_end();
}

}  // namespace

std::vector<std::string> chain_of(const Receipt& receipt, std::span<const Digest> marks) {
  const std::string head = json::dump(head_json(receipt));
  Digest link = sha256(std::as_bytes(std::span(head)));
  std::vector<std::string> chain;
  for (size_t i = 0; i < marks.size(); ++i) {
    const size_t begin = i * kReceiptLink,
                 end = std::min(begin + kReceiptLink, receipt.tokens.size());
    std::string bytes(reinterpret_cast<const char*>(link.data()), link.size());
    for (size_t t = begin; t < end; ++t)
      for (int shift = 0; shift < 32; shift += 8)
        bytes += static_cast<char>(static_cast<uint32_t>(receipt.tokens[t]) >> shift);
    bytes.append(reinterpret_cast<const char*>(marks[i].data()), marks[i].size());
    if (end == receipt.tokens.size()) bytes += receipt.finish;
    link = sha256(std::as_bytes(std::span(bytes)));
    chain.push_back(to_hex(link));
  }
  return chain;
}

std::string signed_text(const Receipt& receipt) {
  return json::dump(unsigned_json(receipt));
}

json::Value to_json(const Receipt& receipt) {
  json::Value all = unsigned_json(receipt);
  all.set("signature", receipt.signature);
  return all;
}

Receipt receipt_from(const json::Value& value) {
  Members in(value, "a receipt");
  int32_t version = 0;
  in.take("invar_receipt", version);
  if (version != kVersion) fail("a receipt: expected version {}, found {}", kVersion, version);
  Receipt r;
  in.take("id", r.id);
  in.take("created", r.created);
  in.take("model", r.name);
  in.take("choice", r.choice);
  in.take("context", r.context);
  in.take("arithmetic", r.model.arithmetic);
  in.take("weights", r.model.weights);
  in.take("tokenizer", r.model.tokenizer);
  in.take("chat_template", r.model.chat_template);
  read_request(in.take("request"), r);
  Members answer(in.take("answer"), "its answer");
  answer.take("tokens", r.tokens);
  answer.take("finish_reason", r.finish);
  answer.take("logits_hash", r.logits_hash);
  answer.expect_end();
  in.take("chain", r.chain);
  in.take("public_key", r.public_key);
  in.take("signature", r.signature);
  in.expect_end();
  return r;
}

}  // namespace invar
