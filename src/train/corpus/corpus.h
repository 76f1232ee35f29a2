// The corpus: document number i of a split is a function of (seed, split, i) alone. Nothing is
// stored and nothing is read; there are as many documents as are asked for.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "train/corpus/random.h"
#include "train/corpus/tasks.h"
#include "train/row_packer.h"

namespace invar::corpus {

enum class Kind { story, question, request, arithmetic, copying, talk };
inline constexpr std::array<const char*, 6> kKindNames = {"story",      "question", "request",
                                                          "arithmetic", "copying",  "talk"};

// A choice of kinds, one bit each.
using Kinds = uint32_t;
constexpr Kinds bit_of(Kind kind) {
  return 1u << static_cast<uint32_t>(kind);
}
inline constexpr Kinds kAllKinds = (1u << kKindNames.size()) - 1;

// A story (plain text), or a conversation: questions about a story, the request for one, exercises.
struct Sample {
  Kind kind = Kind::story;
  std::string story;   // what story and question are about, and what a request is answered with
  std::string system;  // what a conversation may begin with
  std::vector<Turn> turns;  // empty for a plain story
};

// REQUIRES: `kinds` is not empty.
Sample make_sample(uint64_t seed, Split split, int64_t index, Kinds kinds = kAllKinds);

// All of a document as text, special tokens written out (conversations as ChatML).
std::string text_of(const Sample& sample);
// The same up to where answer number `turn` begins.
std::string prompt_of(const Sample& sample, size_t turn);

// Documents for a trainer. The user's words are not learned.
class Documents : public DocumentSource {
 public:
  // REQUIRES: the tokenizer has <|endoftext|>, <|im_start|> and <|im_end|>.
  Documents(uint64_t seed, Split split, const Tokenizer& tokenizer, Kinds kinds = kAllKinds);
  Document document(int64_t index) override;

 private:
  void append(std::string_view text, bool wanted, Document& document) const;

  uint64_t seed_;
  Split split_;
  const Tokenizer& tokenizer_;
  Kinds kinds_;
};

}  // namespace invar::corpus
