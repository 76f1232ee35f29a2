// Answers that begin with a thought: where an answer stands in it, and how it is brought to an end.
//
// A thought is a function of the answer's tokens, by the bytes that they stand for: it begins
// behind one mark, or in the prompt, and ends behind another. A Constraint of the answer counts
// from there on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sampling/params.h"
#include "sampling/stop_strings.h"

namespace invar {

// How a model writes its thoughts (frontend/thoughts.h says it of each).
enum class ThoughtFormat : uint8_t {
  none,
  qwen3,
  deepseek_r1,
  mistral,
  gpt_oss,
  gemma4,
  seed_oss,
  hy_v3,
  cohere,
  apertus,
  minimax_m3,
};

// How an answer's thoughts are told from its text. The engine does not read it.
struct ThoughtView {
  ThoughtFormat format = ThoughtFormat::none;
  bool begun = false;  // the prompt ends in a thought
  bool stops = false;  // stop strings count in thoughts, too
  bool operator==(const ThoughtView&) const = default;
};

// The marks of one format in one vocabulary; all its requests share them.
struct ThoughtMarks {
  // `texts[id]`: what the token stands for, special ones too.
  ThoughtMarks(std::string open, std::string close, std::vector<std::string> texts);

  std::string open, close;
  StopSet opens, closes;
  bool repeats = false;  // an answer may have several thoughts
  // That write the marks; and what is written behind the last thought of an answer that is held to
  // a form, before the form begins.
  std::vector<int32_t> open_tokens, close_tokens, then_tokens;
  std::vector<std::string> texts;
  std::vector<int32_t> may_cross;  // tokens whose text may go on behind the closing mark
};

struct ThoughtRules {
  std::shared_ptr<const ThoughtMarks> marks;
  bool begun = false;   // by the prompt
  int32_t budget = -1;  // tokens of thought at most, marks aside; then it is ended. -1: any number
};

// Where one answer stands. Copyable.
class ThoughtCursor {
 public:
  // `rules` null: there is no thought. `is_held`: to a form, which begins behind a thought that the
  // answer must have.
  ThoughtCursor(std::shared_ptr<const ThoughtRules> rules, bool is_held, int32_t vocab);

  // The form counts now: no thought is under way or has to come.
  bool is_over() const { return place_ == Place::behind; }
  // Bit i of word i / 64: token i may come next; empty: all may. Valid until the next call.
  // REQUIRES: not is_over() or no form.
  std::span<const uint64_t> allowed(const SamplingParams& params);
  void advance(int32_t token);

 private:
  // `written`: tokens that must come, one after another.
  enum class Place : uint8_t { before, opening, within, closing, then, behind };

  const std::vector<int32_t>* written() const;
  void take_before(std::string_view text);
  void take_within(std::string_view text);
  void take_behind(std::string_view text);
  void enter(Place place);

  std::shared_ptr<const ThoughtRules> rules_;
  bool is_held_;
  size_t words_;
  Place place_ = Place::behind;
  StopSet::State matched_ = 0;  // of the mark that is looked for
  size_t next_ = 0;             // of the tokens that are written
  int32_t spent_ = 0;           // of the budget
  std::vector<uint64_t> allowed_;
};

}  // namespace invar
