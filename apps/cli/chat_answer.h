// An answer of invar chat as it comes: shown, and kept for what is said of it in the end.
#pragma once

#include <string>

#include "base/timer.h"
#include "command.h"
#include "frontend/text_engine.h"
#include "word_wrap.h"

namespace invar::cli {

// One answer as it comes.
class AnswerSink final : public TextSink {
 public:
  // With `columns` of a terminal lines break between words; 0: the text as it is.
  AnswerSink(bool quiet, int columns) : quiet_(quiet), wraps_(columns > 0), wrap_(columns) {}

  void on_text(int64_t, std::string_view piece, const TokenOutput& token) override {
    if (tokens++ == 0) first_token_ = timer_.seconds();
    hash = token.logits_hash;
    text += piece;
    seconds_ = timer_.seconds();
    if (!quiet_) write_out(wraps_ ? wrap_.add(piece) : piece);
  }
  // Shows what is left and ends the line.
  void end() {
    if (!quiet_) write_out((wraps_ ? wrap_.finish() : std::string()) + "\n");
  }
  void on_finished(int64_t, const TextAnswer& answer) override { finish = answer.finish; }
  double decode_seconds() const { return tokens > 1 ? seconds_ - first_token_ : 0.0; }

  std::string text;
  int tokens = 0;
  Digest hash{};
  FinishReason finish = FinishReason::none;  // none: interrupted

 private:
  bool quiet_, wraps_;
  WordWrap wrap_;
  Timer timer_;
  double first_token_ = 0, seconds_ = 0;
};

}  // namespace invar::cli
