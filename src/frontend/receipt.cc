#include "frontend/receipt.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/canonical_json.h"
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

// The shortest text that reads back as the same number.
std::string spelled(double number) {
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr};
}

std::optional<double> number_of(std::string_view text) {
  double number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end.ec != std::errc() || !std::isfinite(number) || spelled(number) != text)
    return std::nullopt;
  return number;
}

// What stands before the answer.
json::Value head_json(const Receipt& r) {
  json::Value request = json::Object{{"prompt", list_of(r.prompt)}};
  request.set("sampling", params_json(r.params));
  request.set("stop", list_of(r.stop));
  request.set("include_stop_str_in_output", r.include_stop);
  request.set("skip_special_tokens", r.skip_special);
  request.set("form", r.grammar);
  json::Value head = json::Object{{"invar_receipt", kVersion},
                                  {"id", r.id},
                                  {"created", r.created},
                                  {"model", r.name},
                                  {"choice", r.choice},
                                  {"context", r.context},
                                  {"arithmetic", r.model.arithmetic},
                                  {"specification", r.model.specification},
                                  {"weights", r.model.weights},
                                  {"tokenizer", r.model.tokenizer},
                                  {"chat_template", r.model.chat_template},
                                  {"defaults", r.model.defaults},
                                  {"request", std::move(request)}};
  if (!r.model.adapter.empty()) head.set("adapter", r.model.adapter);
  return head;
}

// Everything but the signature.
json::Value unsigned_json(const Receipt& r) {
  json::Value all = head_json(r);
  all.set("answer", json::Object{{"tokens", list_of(r.tokens)},
                                 {"finish_reason", r.finish},
                                 {"logits_hashes", list_of(r.logits_hashes)}});
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
  void take(const char* name, double& to) { to = number(name, take(name)); }
  void take(const char* name, int64_t& to) { to = integer(name, take(name), 0, int64_t{1} << 53); }
  void take(const char* name, int32_t& to) {
    to = static_cast<int32_t>(integer(name, take(name), INT32_MIN, INT32_MAX));
  }
  void take(const char* name, uint64_t& to) {
    const json::Value value = take(name);
    const std::string text = value.is_string() ? value.as_string() : "";
    const auto end = std::from_chars(text.data(), text.data() + text.size(), to);
    if (end.ec != std::errc() || std::to_string(to) != text)
      wrong(name, "the text of an integer, 0 or more", value);
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
      if (!one.is_array() || one.as_array().size() != 2)
        wrong(name, "pairs of a token and a number", one);
      to.emplace_back(integer(name, one.as_array()[0], INT32_MIN, INT32_MAX),
                      number(name, one.as_array()[1]));
    }
  }

  template <typename T>
  void take(const char* name, Shared<T>& to) {
    take(name, to.edit());
  }

  bool has(const char* name) const {
    return std::ranges::find(left_, name, &json::Member::first) != left_.end();
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
  double number(const char* name, const json::Value& value) const {
    const auto found = value.is_string() ? number_of(value.as_string()) : std::nullopt;
    if (!found) wrong(name, "the shortest text of a number", value);
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
  in.take("form", r.grammar);
  in.expect_end();
}

}  // namespace

Digest model_digest(const ReceiptModel& model) {
  json::Value all = json::Object{{"arithmetic", model.arithmetic},
                                 {"specification", model.specification},
                                 {"weights", model.weights},
                                 {"tokenizer", model.tokenizer},
                                 {"chat_template", model.chat_template},
                                 {"defaults", model.defaults}};
  if (!model.adapter.empty()) all.set("adapter", model.adapter);
  return json::digest_of(all);
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
    biases.push_back(json::Array{token, spelled(bias)});
  return json::Object{{"n", p.n},
                      {"temperature", spelled(p.temperature)},
                      {"top_p", spelled(p.top_p)},
                      {"top_k", p.top_k},
                      {"min_p", spelled(p.min_p)},
                      {"repetition_penalty", spelled(p.repetition_penalty)},
                      {"presence_penalty", spelled(p.presence_penalty)},
                      {"frequency_penalty", spelled(p.frequency_penalty)},
                      {"logit_bias", std::move(biases)},
                      {"max_tokens", p.max_tokens},
                      {"min_tokens", p.min_tokens},
                      {"stop_token_ids", list_of(p.stop_token_ids.get())},
                      {"allowed_token_ids", list_of(p.allowed_token_ids.get())},
                      {"bad_words", list_of(p.bad_words.get())},
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
  in.take("specification", r.model.specification);
  in.take("weights", r.model.weights);
  in.take("tokenizer", r.model.tokenizer);
  in.take("chat_template", r.model.chat_template);
  in.take("defaults", r.model.defaults);
  if (in.has("adapter")) in.take("adapter", r.model.adapter);
  read_request(in.take("request"), r);
  Members answer(in.take("answer"), "its answer");
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
