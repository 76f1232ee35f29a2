// Holds texts and random walks to a form, for schema_cases.py: a line {"form", "texts", "walks"}
// in,
// {"accepted", "walked", "faults"} or {"error"} out, with the processor's "seconds".
#include <array>
#include <ctime>
#include <iostream>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "frontend/constraint_compiler.h"
#include "tokenizer/make_tokenizer.h"

using namespace invar;

namespace {

bool is_allowed(Constraint& constraint, const Constraint::State& state, int32_t token) {
  return constraint.allowed(state)[token / 64] >> (token % 64) & 1;
}

// Along some tokens of the text: whether every mask allows them and the end is one.
bool accepts(Constraint& constraint, const std::vector<int32_t>& tokens) {
  Constraint::State state = constraint.start();
  for (const int32_t token : tokens) {
    const Constraint::State next = constraint.next(state, token);
    CHECK(is_allowed(constraint, state, token) == !next.is_dead(), "a mask and a step disagree");
    if (next.is_dead()) return false;
    state = next;
  }
  return state.accepts;
}

// Draws from the masks until nothing may follow. After a while it prefers what closes.
std::optional<std::string> walk(Constraint& constraint, const Tokenizer& tokenizer, uint64_t seed) {
  std::string text;
  Constraint::State state = constraint.start();
  const auto random = [&](uint64_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
  };
  std::vector<int32_t> closing;
  for (const char* c : {"\"", "}", "]"})
    closing.push_back(tokenizer.encode(c, {.add_special_tokens = false}).at(0));
  for (int step = 0; step < 4000; ++step) {
    if (!state.goes_on || (state.accepts && random(4) == 0)) return text;
    const auto mask = constraint.allowed(state);
    const std::vector<uint64_t> allowed(mask.begin(), mask.end());
    const auto has = [&](int32_t token) { return allowed[token / 64] >> (token % 64) & 1; };
    std::vector<int32_t> choices;
    if (step > 24)
      for (const int32_t token : closing)
        if (has(token)) choices.push_back(token);
    if (choices.empty() || random(4) == 0)
      for (int32_t token = 0; token < tokenizer.vocab_size(); ++token)
        if (has(token)) choices.push_back(token);
    CHECK(!choices.empty(), "something may follow where the text may not end");
    const int32_t token = choices[random(choices.size())];
    text += tokenizer.token_bytes(token);
    state = constraint.next(state, token);
    CHECK(!state.is_dead(), "an allowed token can be read");
  }
  return std::nullopt;
}

json::Value answer(const json::Value& record, const Tokenizer& tokenizer) {
  ConstraintCompiler compiler(tokenizer);
  const auto constraint = compiler.compile(*record.find("form"));
  std::array<int32_t, 256> token_of{};
  for (int32_t token = 0; token < tokenizer.vocab_size(); ++token)
    if (tokenizer.token_bytes(token).size() == 1 && !tokenizer.is_special(token))
      token_of[static_cast<uint8_t>(tokenizer.token_bytes(token)[0])] = token;
  json::Array accepted, walked, faults;
  for (const json::Value& text : record.find("texts")->as_array()) {
    std::vector<int32_t> bytes;
    for (const char c : text.as_string()) bytes.push_back(token_of[static_cast<uint8_t>(c)]);
    const bool by_byte = accepts(*constraint, bytes);
    const bool by_token =
        accepts(*constraint, tokenizer.encode(text.as_string(), {.add_special_tokens = false}));
    CHECK(by_byte == by_token, "the bytes of a text and its tokens disagree");
    accepted.push_back(by_byte && !constraint->fault_of(text.as_string()));
  }
  for (int64_t i = 0; i < record.find("walks")->as_integer(); ++i) {
    const auto text = walk(*constraint, tokenizer, static_cast<uint64_t>(i) + 1);
    walked.push_back(text ? json::Value(*text) : json::Value());
    const char* fault = text ? constraint->fault_of(*text) : nullptr;
    faults.push_back(fault ? json::Value(fault) : json::Value());
  }
  return json::Object{{"accepted", std::move(accepted)},
                      {"walked", std::move(walked)},
                      {"faults", std::move(faults)}};
}

}  // namespace

int main() {
  const Tokenizer tokenizer = Tokenizer::from_texts(make_tokenizer(2000, 1).texts, "made");
  for (std::string line; std::getline(std::cin, line);) {
    json::Value out;
    const std::clock_t begin = std::clock();
    try {
      out = answer(json::parse(line, "a record", {.max_depth = 4096}), tokenizer);
    } catch (const Error& error) {
      out.set("error", std::string(error.what()));
    }
    out.set("seconds", static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    std::cout << json::dump(out) << std::endl;
  }
}
