#include "frontend/openai_logprobs.h"

#include <fmt/format.h>

#include <limits>

#include "base/ends.h"
#include "tokenizer/utf8.h"

namespace invar::openai {

namespace {

// A token as text; bytes that are no characters are spelled as OpenAI does, "bytes:\\xe2\\x82".
std::string text_of_token(const Tokenizer& tokenizer, int32_t token) {
  const std::string_view bytes = tokenizer.token_bytes(token);
  if (utf8::find_invalid(bytes) == std::string::npos) return std::string(bytes);
  std::string spelled = "bytes:";
  for (const char byte : bytes)
    spelled += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return spelled;
}

}  // namespace

std::string TokenNames::text(int32_t token) const {
  return as_ids ? fmt::format("token_id:{}", token) : text_of_token(tokenizer, token);
}

namespace {

json::Value chat_logprob(const TokenNames& names, const TokenLogprob& of) {
  json::Array bytes;
  for (const char byte : names.tokenizer.token_bytes(of.token))
    bytes.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  return json::Object{{"token", names.text(of.token)},
                      {"logprob", static_cast<double>(of.logprob)},
                      {"bytes", std::move(bytes)},
                      {"token_id", static_cast<int64_t>(of.token)}};
}

json::Value chat_entry(const TokenNames& names, const TokenLogprobs& one) {
  json::Value entry = chat_logprob(names, one);
  json::Array top;
  for (const TokenLogprob& other : one.top) top.push_back(chat_logprob(names, other));
  entry.set("top_logprobs", std::move(top));
  return entry;
}

json::Value chat_logprobs(const TokenNames& names, std::span<const TokenLogprobs> all) {
  json::Array content;
  for (const TokenLogprobs& one : all) content.push_back(chat_entry(names, one));
  return json::Object{{"content", std::move(content)}};
}

// A NaN stands for the first token of a prompt: it has no probability.
json::Value top_of(const TokenNames& names, const TokenLogprobs& one) {
  if (one.logprob != one.logprob) return {};
  json::Value top = json::Object();
  for (const TokenLogprob& other : one.top)
    top.set(names.text(other.token), static_cast<double>(other.logprob));
  return top;
}

json::Value completion_logprobs(const TokenNames& names, std::span<const TokenLogprobs> all,
                                int64_t& offset) {
  json::Array tokens, logprobs, tops, offsets;
  for (const TokenLogprobs& one : all) {
    const std::string text = names.text(one.token);
    tokens.push_back(text);
    logprobs.push_back(static_cast<double>(one.logprob));
    tops.push_back(top_of(names, one));
    offsets.push_back(offset);
    offset += static_cast<int64_t>(text.size());
  }
  return json::Object{{"tokens", std::move(tokens)},
                      {"token_logprobs", std::move(logprobs)},
                      {"top_logprobs", std::move(tops)},
                      {"text_offset", std::move(offsets)}};
}

}  // namespace

json::Value logprobs_of(Endpoint endpoint, const TokenNames& names,
                        std::span<const TokenLogprobs> some, int64_t& offset) {
  return endpoint == Endpoint::chat ? chat_logprobs(names, some)
                                    : completion_logprobs(names, some, offset);
}

namespace {

json::Value prompt_entry(const Tokenizer& tokenizer, const TokenLogprobs& one) {
  json::Value entry;
  const auto add = [&](const TokenLogprob& of) {
    entry.set(std::to_string(of.token),
              json::Object{{"logprob", static_cast<double>(of.logprob)},
                           {"rank", static_cast<int64_t>(of.rank)},
                           {"decoded_token", text_of_token(tokenizer, of.token)}});
  };
  add(one);
  for (const TokenLogprob& other : one.top) add(other);
  return entry;
}

}  // namespace

json::Value late_prompt_logprobs(const Tokenizer& tokenizer, SharedLogprobs all, LateLists& late) {
  const size_t size = all->size();
  return late.add({{"[null" + std::string(size ? ", " : ""), size,
                    [&tokenizer, all = std::move(all)](size_t i, std::string& out) {
                      json::append(out, prompt_entry(tokenizer, (*all)[i]));
                    }}},
                  "]");
}

json::Value late_logprobs(Endpoint endpoint, const TokenNames& names, const SharedLogprobs& all,
                          LateLists& late) {
  const auto list = [&](const char* before, auto value_of) {
    return LateLists::List{before, all->size(), [all, value_of](size_t i, std::string& out) {
                             json::append(out, value_of((*all)[i]));
                           }};
  };
  if (endpoint == Endpoint::chat)
    return late.add({list("{\"content\": [",
                          [names](const TokenLogprobs& one) { return chat_entry(names, one); })},
                    "]}");
  const auto offset = std::make_shared<int64_t>(0);
  return late.add(
      {list("{\"tokens\": [",
            [names](const TokenLogprobs& one) { return json::Value(names.text(one.token)); }),
       list("], \"token_logprobs\": [",
            [](const TokenLogprobs& one) { return static_cast<double>(one.logprob); }),
       list("], \"top_logprobs\": [",
            [names](const TokenLogprobs& one) { return top_of(names, one); }),
       list("], \"text_offset\": [",
            [names, offset](const TokenLogprobs& one) {
              const int64_t begin = *offset;
              *offset += static_cast<int64_t>(names.text(one.token).size());
              return begin;
            })},
      "]}");
}

void append_prompt_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprobs> all,
                            std::string& out) {
  out += "[null";
  for (const TokenLogprobs& one : all) {
    out += ", ";
    json::append(out, prompt_entry(tokenizer, one));
  }
  out += ']';
}

json::Value prompt_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprobs> all) {
  json::Array out{nullptr};
  for (const TokenLogprobs& one : all) out.push_back(prompt_entry(tokenizer, one));
  return out;
}

std::vector<TokenLogprobs> all_logprobs(const TextAnswer& answer, bool prompt_only) {
  std::vector<TokenLogprobs> all(1);
  all[0].token = first_of(answer.prompt_tokens);
  all[0].logprob = std::numeric_limits<float>::quiet_NaN();
  all.insert(all.end(), answer.prompt_logprobs.begin(), answer.prompt_logprobs.end());
  if (!prompt_only) all.insert(all.end(), answer.logprobs.begin(), answer.logprobs.end());
  return all;
}

}  // namespace invar::openai
