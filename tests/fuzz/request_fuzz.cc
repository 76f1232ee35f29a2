// Any bytes as the body of a request: an Error, or a request whose constraint lets its own walks
// through.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "frontend/openai.h"
#include "tokenizer/make_tokenizer.h"

using namespace invar;

// Takes allowed tokens, chosen by the input's bytes, for a while.
static void walk(Constraint& constraint, const uint8_t* data, size_t size) {
  Constraint::State state = constraint.start();
  for (size_t i = 0; i < std::min<size_t>(size, 16) && state.goes_on; ++i) {
    const std::span<const uint64_t> allowed = constraint.allowed(state);
    const size_t count = allowed.size() * 64;
    size_t token = data[i] * size_t{7} % count, tried = 0;
    while (tried < count && !(allowed[token / 64] >> (token % 64) & 1)) {
      token = (token + 1) % count;
      ++tried;
    }
    CHECK(tried < count, "with every byte in the vocabulary something can follow");
    state = constraint.next(state, static_cast<int32_t>(token));
    CHECK(!state.is_dead(), "an allowed token can be read");
  }
}

// Which form the body looks like.
static openai::Endpoint endpoint_of(const json::Value& body) {
  if (body.find("input")) return openai::Endpoint::responses;
  if (!body.find("messages")) return openai::Endpoint::completions;
  return body.find("system") ? openai::Endpoint::messages : openai::Endpoint::chat;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MadeTokenizer kMade = make_tokenizer(300, 1);
  static const Tokenizer kTokenizer = Tokenizer::from_texts(kMade.texts, "fuzz");
  static const ChatTemplate kChat = ChatTemplate::from_texts(
      {.tokenizer_config_json = kMade.texts.tokenizer_config_json}, "fuzz");
  ConstraintCompiler constraints(kTokenizer);
  const openai::Context context{.vocab = 300,
                                .tokenizer = &kTokenizer,
                                .end_tokens = {kMade.eos_id},
                                .chat = &kChat,
                                .clock = [] { return std::tm{.tm_mday = 1, .tm_year = 124}; },
                                .constraints = &constraints};
  try {
    const json::Value body =
        json::parse({reinterpret_cast<const char*>(data), size}, "fuzz", {.max_bytes = 1 << 16});
    openai::Request request = openai::parse_request(body, endpoint_of(body), context);
    check_params(request.base, 300);
    if (request.base.constraint) walk(*request.base.constraint, data, size);
  } catch (const Error&) {
  }
  return 0;
}
