// Special tokens that end a turn of a conversation, by their text: a model's files may forget them.
#pragma once

#include <algorithm>
#include <string_view>

namespace invar {

constexpr std::string_view kEndsOfTurns[] = {"<|eot_id|>", "<|eom_id|>",    "<|im_end|>",
                                             "<|end|>",    "<end_of_turn>", "<|end_of_turn|>",
                                             "<turn|>"};

// `has_return`: whether the vocabulary has <|return|>, as gpt-oss's. There <|end|> ends one of an
// answer's several messages.
inline bool ends_turn(std::string_view token, bool has_return) {
  return !(has_return && token == "<|end|>") &&
         std::ranges::find(kEndsOfTurns, token) != std::end(kEndsOfTurns);
}

}  // namespace invar
