// Thoughts in what a model writes: where they begin and end, and the text beside them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "sampling/thought.h"
#include "tokenizer/tokenizer.h"

namespace invar {

// How the models of a format write their thoughts.
struct ThoughtStyle {
  ThoughtFormat format;
  std::string_view name;  // of --reasoning-parser
  std::string_view open, close;
  std::string_view then;          // what an answer writes between its last thought and its text
  std::string_view then_message;  // and where its form says the message's header, too
  bool repeats;                   // an answer may have several thoughts
  bool is_assumed;                // an answer begins in a thought unless the prompt says otherwise
  std::vector<std::string_view> marks;  // where they are special tokens, they are read all the same
};

std::span<const ThoughtStyle> thought_styles();
const ThoughtStyle& style_of(ThoughtFormat format);
// By the name of --reasoning-parser, or none. Throws UsageError.
ThoughtFormat thought_format_named(std::string_view name);
// The format that a chat template's models have, from its text.
ThoughtFormat thought_format_of(std::string_view chat_template);

// The thoughts of one request, as the "thought" of its grammar (Request::structured_output) says
// it.
struct ThoughtGrammar {
  ThoughtView view;
  int32_t budget = -1;  // ThoughtRules::budget
};
json::Value to_json(const ThoughtGrammar& grammar);
// Throws UsageError.
ThoughtGrammar thought_grammar_of(const json::Value& value);

// How the answer to a prompt begins; format none where the prompt leaves no thought to come.
// `goes_on`: the answer goes on with the last message's words.
ThoughtView thoughts_behind(ThoughtFormat format, std::span<const int32_t> prompt, bool goes_on,
                            const Tokenizer& tokenizer);

// Those of the marks that are special tokens, ascending.
std::vector<int32_t> special_marks(std::span<const std::string_view> marks,
                                   const Tokenizer& tokenizer);

// Takes from the "thought" of a grammar how the answer becomes text, for a request that has nothing
// else.
void take_thoughts(std::string_view form, const Tokenizer& tokenizer, Request& request);

// How much of the end of `text` could become `mark`.
size_t beginning_of(std::string_view mark, std::string_view text);

// Parts text that arrives in pieces into thoughts and what is said beside them; how it is cut makes
// no difference. Newlines around a thought belong to neither. Calls of gpt-oss's channels go on to
// the text as "<|channel|>commentary to=NAME<|message|>ARGUMENTS<|call|>".
class ThoughtReader {
 public:
  virtual ~ThoughtReader() = default;
  virtual void push(std::string_view piece, std::string& thought, std::string& text) = 0;
  virtual void finish(std::string& thought, std::string& text) = 0;
  // Whether a thought is under way.
  virtual bool is_within() const = 0;
};

// Null where there are no thoughts.
std::unique_ptr<ThoughtReader> make_thought_reader(const ThoughtView& view);

}  // namespace invar
