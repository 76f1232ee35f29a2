// An answer as it grows: tokens in, thoughts and text out.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/shared.h"
#include "engine/request.h"
#include "frontend/thoughts.h"
#include "sampling/stop_strings.h"
#include "tokenizer/tokenizer.h"

namespace invar {

// A finished answer.
struct TextAnswer {
  std::string text;
  std::string thought;         // what was thought beside it
  int64_t thought_tokens = 0;  // of the thoughts, marks that the model wrote included
  // Where thoughts come: how much of the text stands before them. They go as far as the thought's
  // size when the next ones came.
  struct Turn {
    size_t text, thought;  // bytes before it
  };
  std::vector<Turn> turns;
  Shared<std::vector<int32_t>> prompt_tokens;
  // How many of them the prefix cache had: a fact of a server's usage and of no answer. None: it is
  // not said.
  std::optional<int64_t> cached;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  std::vector<int16_t> routed_experts;  // TokenOutput's
  FinishReason finish = FinishReason::none;
  std::string stop;  // the stop string that ended it, or empty
  Digest logits_hash{};
  std::vector<Digest> hash_checkpoints;  // the logits hash behind every kReceiptLink tokens
  std::string error;                     // of a failed one: a sentence
  // Where weights changed within it: which computed the tokens from number `first` on.
  struct Weights {
    std::string version;
    size_t first = 0;
  };
  std::vector<Weights> weights;

  void change_weights(const std::string& before, const std::string& now, size_t first);
};

// Calls f(thought, text), one of them empty, with the parts of the answer in their order.
template <typename F>
void for_each_part(const TextAnswer& answer, F f) {
  const std::string_view text = answer.text, thought = answer.thought;
  size_t begin = 0;
  for (size_t i = 0; i < answer.turns.size(); ++i) {
    const TextAnswer::Turn& turn = answer.turns[i];
    const bool is_last = i + 1 == answer.turns.size();
    const size_t end = is_last ? thought.size() : answer.turns[i + 1].thought;
    if (turn.text > begin) f(std::string_view(), text.substr(begin, turn.text - begin));
    f(thought.substr(turn.thought, end - turn.thought), std::string_view());
    begin = turn.text;
  }
  if (begin < text.size()) f(std::string_view(), text.substr(begin));
}

class AnswerBuilder {
 public:
  // Reads from the request only how its answer becomes text.
  AnswerBuilder(const Tokenizer& tokenizer, const Request& request)
      : tokenizer_(tokenizer),
        decoder_(tokenizer, {.skip_special = request.skip_special, .continuation = true}),
        thoughts_(make_thought_reader(request.thoughts)),
        stops_(request.stop, request.include_stop),
        stops_of_thoughts_(request.thoughts.stops ? request.stop : StopSet(), request.include_stop),
        shown_special_(request.shown_special),
        include_stop_(request.include_stop),
        min_tokens_(static_cast<size_t>(request.params.min_tokens)) {}

  // Takes the next token and returns the text that can be shown now: complete characters that are
  // not the beginning of a stop string. The answer is over when its `finish` is not none: with a
  // stop string that may be before the engine says so.
  std::string push(const TokenOutput& output);
  // The text that the last token added to the thought.
  const std::string& new_thought() const { return new_thought_; }

  TextAnswer answer;

 private:
  std::string decode(const TokenOutput& output);
  void take_token(const TokenOutput& output);
  // As in vLLM, none ends an answer before it has more than min_tokens tokens.
  bool stops_count() const { return answer.tokens.size() > min_tokens_; }
  // Parts it; what belongs to the text is returned.
  std::string take_thoughts(std::string decoded, const TokenOutput& output);

  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  std::unique_ptr<ThoughtReader> thoughts_;  // null: there are none
  StopStrings stops_, stops_of_thoughts_;
  Shared<std::vector<int32_t>> shown_special_;
  bool include_stop_;
  size_t min_tokens_;
  std::string new_thought_;
};

}  // namespace invar
