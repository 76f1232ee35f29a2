// An answer of invar chat as it comes: shown, and kept for what is said of it in the end.
#pragma once

#include <string>

#include "base/timer.h"
#include "command.h"
#include "frontend/text_engine.h"
#include "terminal_markdown.h"
#include "word_wrap.h"

namespace invar::cli {

// One answer as it comes.
class AnswerSink final : public TextSink {
 public:
  // How it is shown: not at all; its text alone, as it is; or on a terminal of so many columns,
  // with its thoughts, lines broken between words and, with `styled`, Markdown and thoughts in
  // styles.
  struct Look {
    bool quiet = false;
    int columns = 0;  // 0: no terminal
    bool styled = false;
  };
  explicit AnswerSink(const Look& look) : look_(look), wrap_(look.columns) {}

  void on_text(int64_t, std::string_view piece, const TokenOutput& token) override {
    if (tokens++ == 0) first_token_ = timer_.seconds();
    hash = token.logits_hash;
    const bool ends_thought = text.empty() && !piece.empty() && !thought.empty();
    if (look_.columns > 0 && ends_thought) show(TextStyle::plain, "\n\n");
    text += piece;
    seconds_ = timer_.seconds();
    if (look_.columns == 0) return show(TextStyle::plain, piece);
    for (const auto& [style, part] : markdown_.add(piece)) show(style, part);
  }
  void on_thought(int64_t, std::string_view piece) override {
    thought += piece;
    if (look_.columns > 0) show(TextStyle::thought, piece);
  }
  // Shows what is left and ends the line.
  void end() {
    for (const auto& [style, part] : markdown_.finish()) show(style, part);
    show(TextStyle::plain, "");
    if (!look_.quiet) write_out(wrap_.finish() + "\n");
  }
  void on_finished(int64_t, const TextAnswer& answer) override { finish = answer.finish; }
  double decode_seconds() const { return tokens > 1 ? seconds_ - first_token_ : 0.0; }

  std::string text, thought;
  int tokens = 0;
  Digest hash{};
  FinishReason finish = FinishReason::none;  // none: interrupted

 private:
  void show(TextStyle style, std::string_view piece) {
    if (look_.quiet) return;
    if (look_.columns == 0) return write_out(piece);
    if (style != style_ && look_.styled) wrap_.style(escape_of(style));
    style_ = style;
    write_out(wrap_.add(piece));
  }

  Look look_;
  TerminalMarkdown markdown_;
  TextStyle style_ = TextStyle::plain;
  WordWrap wrap_;
  Timer timer_;
  double first_token_ = 0, seconds_ = 0;
};

}  // namespace invar::cli
