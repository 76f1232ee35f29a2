// Any bytes as tokenizer.json or tokenizer.model: an Error or a tokenizer that encodes and decodes.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "tokenizer/make_tokenizer.h"
#include "tokenizer/utf8.h"

using namespace invar;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A brace begins a tokenizer.json; what follows three bytes 0x01 is the text.
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find("\x01\x01\x01");
  const std::string file = input.substr(0, end);
  std::string text = "The caf\xc3\xa9 <s> \xe2\x96\x81 12\n\n";
  if (end != std::string::npos) utf8::append_repaired(text, std::string_view(input).substr(end));
  try {
    TokenizerTexts texts;
    (file.starts_with('{') ? texts.tokenizer_json : texts.sentencepiece_model) = file;
    const Tokenizer tokenizer = Tokenizer::from_texts(texts, "fuzz");
    const auto ids = tokenizer.encode(text);
    const std::string whole = tokenizer.decode(ids, {.skip_special = false});
    CHECK(utf8::find_invalid(whole) == std::string::npos, "decoded text is UTF-8");
    std::string streamed;
    StreamDecoder decoder(tokenizer, {.skip_special = false});
    for (const int32_t id : ids) {
      decoder.push(id, streamed);
      CHECK(utf8::find_invalid(streamed) == std::string::npos, "streamed text is UTF-8");
    }
    decoder.finish(streamed);
    CHECK(streamed == whole, "streaming changes nothing");
  } catch (const Error&) {
  }
  return 0;
}
