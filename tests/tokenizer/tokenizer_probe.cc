// Encodes and decodes for other programs: tokenizer_probe DIRECTORY, or FILE.gguf, reads requests,
// one JSON object a line,
//   {"text": "...", "add": true, "special": true}  ->  {"ids": [...], "text": "..."}  (decoded
//   again, nothing skipped)
//   {"ids": [...], "skip": true}                   ->  {"text": "..."}
// tokenizer_probe --make SIZE SEED DIRECTORY writes the files of a made tokenizer.
#include <fmt/format.h>

#include <fstream>
#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/make_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "weights/gguf.h"
#include "weights/hf_directory.h"

namespace {

using namespace invar;

json::Value answer(const Tokenizer& tokenizer, const json::Value& request) {
  if (const json::Value* ids = request.find("ids")) {
    std::vector<int32_t> list;
    for (const json::Value& id : ids->as_array())
      list.push_back(static_cast<int32_t>(id.as_integer()));
    const DecodeOptions options{.skip_special = request.find("skip")->as_bool()};
    return json::Object{{"text", tokenizer.decode(list, options)}};
  }
  const EncodeOptions options{.add_special_tokens = request.find("add")->as_bool(),
                              .parse_special = request.find("special")->as_bool()};
  const auto ids = tokenizer.encode(request.find("text")->as_string(), options);
  json::Array list(ids.begin(), ids.end());
  return json::Object{{"ids", std::move(list)},
                      {"text", tokenizer.decode(ids, {.skip_special = false})}};
}

Tokenizer load(const std::string& path) {
  if (!is_gguf(path)) return Tokenizer::load(path);
  auto texts = model_texts(path);
  return Tokenizer::from_texts({.tokenizer_json = texts["tokenizer.json"],
                                .tokenizer_config_json = texts["tokenizer_config.json"],
                                .special_tokens_map_json = {},
                                .sentencepiece_model = texts["tokenizer.model"]},
                               path);
}

}  // namespace

int main(int argc, char** argv) {
  const bool make = argc == 5 && std::string_view(argv[1]) == "--make";
  if (argc != 2 && !make) {
    std::cerr << "usage: tokenizer_probe DIRECTORY, or --make SIZE SEED DIRECTORY\n";
    return 2;
  }
  try {
    if (make) {
      const MadeTokenizer made = make_tokenizer(std::stoi(argv[2]), std::stoull(argv[3]));
      std::ofstream(std::string(argv[4]) + "/tokenizer.json") << made.texts.tokenizer_json;
      std::ofstream(std::string(argv[4]) + "/tokenizer_config.json")
          << made.texts.tokenizer_config_json;
      return 0;
    }
    const Tokenizer tokenizer = load(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      try {
        std::cout << json::dump(answer(tokenizer, json::parse(line, "request"))) << "\n";
      } catch (const UsageError& error) {
        std::cout << json::dump(json::Object{{"error", error.what()}}) << "\n";
      }
    }
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
