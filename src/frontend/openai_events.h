// An answer as server-sent events. The bytes are a function of the head, the request, the prompts
// and the tokens alone: an answer that is computed again repeats them.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "frontend/answer_builder.h"
#include "frontend/answer_times.h"
#include "frontend/call_reader.h"
#include "frontend/custom_tools.h"
#include "frontend/failure.h"
#include "frontend/openai.h"
#include "speculative/prediction.h"

namespace invar::openai {

// Turns tokens into the events of a stream.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  // Takes the next token of answer i and appends the events that it allows.
  virtual void push(size_t i, const TokenOutput& output, std::string& out) = 0;
  // Takes a prompt's log-probability of answer i; all of them come before its first token.
  virtual void push_prompt(size_t, const PromptOutput&) {}
  // How many tokens of answer i's prompt the prefix cache had; before its first token.
  virtual void set_cached(size_t i, int64_t tokens) = 0;
  // How long its parts took so far, for protocols that show it; before each `push`.
  virtual void set_times(const AnswerTimes&) {}
  // Before the first token of answer i: what push_prompt said comes once more.
  virtual void restart(size_t) {}
  // Answer i goes on with other weights from token number `first` on.
  virtual void change_weights(size_t, const std::string& /*before*/, const std::string& /*now*/,
                              size_t /*first*/) {}
  // Whether answer i needs no more tokens: the engine may not know of a stop string.
  virtual bool is_over(size_t i) const = 0;
  virtual bool ended() const = 0;
  // The text of one answer that the stream has sent; null where nobody asks.
  virtual const TextAnswer* answer() const { return nullptr; }
  // Ends the stream with an error in the protocol's form.
  virtual void fail(const Failure& failure, std::string& out) = 0;
};

class EventWriter final : public StreamWriter {
 public:
  // `prompts`: the tokens of the request's.
  EventWriter(Head head, const Request& request,
              const std::vector<Shared<std::vector<int32_t>>>& prompts, const Tokenizer& tokenizer);

  // One event for each token, in the order of the tokens' indices and then of the answers, whenever
  // they were computed. A token that shows no text joins the next. After the last token of the last
  // answer comes the end.
  void push(size_t i, const TokenOutput& output, std::string& out) override;
  void push_prompt(size_t i, const PromptOutput& output) override {
    answers_[i].builder.answer.prompt_logprobs.push_back(output.logprobs);
  }
  void set_cached(size_t i, int64_t tokens) override { answers_[i].builder.answer.cached = tokens; }
  void restart(size_t i) override { answers_[i].builder.answer.prompt_logprobs.clear(); }
  void change_weights(size_t i, const std::string& before, const std::string& now,
                      size_t first) override {
    answers_[i].builder.answer.change_weights(before, now, first);
  }
  void fail(const Failure& failure, std::string& out) override;

  bool is_over(size_t i) const override {
    return answers_[i].builder.answer.finish != FinishReason::none;
  }
  bool ended() const override { return ended_; }

 private:
  struct Answer {
    Answer(const Request& request, const Tokenizer& tokenizer, const Prediction& predicted)
        : builder(tokenizer, request.base),
          reader(request.tools, request.tool, &request.tool_list),
          prediction(predicted) {}
    AnswerBuilder builder;
    ToolCallReader reader;
    Prediction prediction;
    size_t calls = 0;                                 // of tools, so far
    CustomInput input;                                // of the last one, if it is of a custom tool
    bool reads_custom = false, shows_custom = false;  // the last call that was read, shown
    std::deque<TokenOutput> waiting;  // for the other answers' tokens of lower indices
    int32_t shown = 0;                // tokens that were taken from `waiting`
    bool begun = false, over = false;
    int64_t logprob_offset = 0;
    std::vector<int32_t> ids;  // of the event to come
  };

  bool take_turn(std::string& out);
  // Writes the prompt's part of an answer's first event.
  void show_prompt(const TextAnswer& text, json::ObjectWriter& choice) const;
  json::Value logprobs_now(Answer& answer);
  void show(size_t i, const TokenOutput& output, std::string& out);
  void append_delta(size_t i, const std::string& thought, const std::string& content,
                    const std::vector<AnswerPiece>& pieces, std::string& out);
  // Leaves text and calls, where arguments of custom tools are pieces of their text.
  void read_custom(Answer& answer, std::vector<AnswerPiece>& pieces) const;
  json::Array calls_in(size_t i, const std::vector<AnswerPiece>& pieces);
  // An event's text before and after its choices.
  void begin_event(std::string& out);
  void end_event(bool with_usage, std::string& out, bool is_last = false);
  json::Value usage_now() const;
  std::optional<int64_t> cached() const;

  Head head_;
  const Request& request_;
  const Tokenizer& tokenizer_;
  std::string opening_;  // that all events have in common
  int64_t prompt_tokens_ = 0, completion_tokens_ = 0, events_ = 0;
  std::vector<Answer> answers_;
  size_t turn_ = 0;  // the answer whose token is shown next
  bool ended_ = false;
};

}  // namespace invar::openai
