// A stream of one answer to one prompt, in a protocol of events or lines that have no choices.
#pragma once

#include <span>
#include <string>

#include "frontend/answer_builder.h"
#include "frontend/answer_times.h"
#include "frontend/openai.h"
#include "frontend/openai_events.h"

namespace invar::openai {

class SingleWriter : public StreamWriter {
 public:
  SingleWriter(Head head, const Request& request, int64_t prompt_tokens,
               const Tokenizer& tokenizer);

  void push(size_t, const TokenOutput& output, std::string& out) final;
  void set_cached(size_t, int64_t tokens) final { builder_.answer.cached = tokens; }
  void set_times(const AnswerTimes& times) final { times_ = times; }
  bool is_over(size_t) const final { return ended_; }
  bool ended() const final { return ended_; }
  void fail(const Failure& failure, std::string& out) final;

 protected:
  // The answer so far.
  const TextAnswer& written() const { return builder_.answer; }
  // The log-probabilities that the answer gained since the last call of this.
  std::span<const TokenLogprobs> new_logprobs();

  const Head head_;
  const Request& request_;
  const Tokenizer& tokenizer_;
  AnswerBuilder builder_;
  AnswerTimes times_;

 private:
  // Appends what `output` shows; `piece` is the text that it allows. With the last one comes the
  // end.
  virtual void show(const TokenOutput& output, const std::string& piece, std::string& out) = 0;
  virtual void show_error(const Failure& failure, std::string& out) = 0;

  size_t shown_logprobs_ = 0;
  bool ended_ = false;
};

}  // namespace invar::openai
