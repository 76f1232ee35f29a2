// Markdown on a terminal as it streams: headings, bold words and code get a style. Nothing of the
// text is taken away, so what is copied is what the model wrote.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace invar::cli {

enum class TextStyle { plain, bold, code, thought };
// The escape sequence that ends all styles and begins this one.
std::string_view escape_of(TextStyle style);

struct StyledText {
  TextStyle style;
  std::string text;
};

// Takes an answer in pieces; how it is cut makes no difference. But for fenced code a style ends
// with its line at the latest.
class TerminalMarkdown {
 public:
  // Parts that can be shown now. A run of one mark (* ` ~ #) is held until its end is known.
  std::vector<StyledText> add(std::string_view piece);
  std::vector<StyledText> finish();

 private:
  TextStyle style() const;
  // A run of marks that `next` ends: what begins with it has its style, and so has what ends.
  void put_run(char next, std::vector<StyledText>& out);
  void turn(const std::string& run, char next);
  void put(char byte, std::vector<StyledText>& out);

  std::string run_;
  char last_ = '\n';      // what stands before the run
  bool is_blank_ = true;  // the line so far
  std::string fence_;     // the run that opened fenced code
  std::string code_;      // the run that opened code within a line
  bool is_heading_ = false, is_bold_ = false;
};

}  // namespace invar::cli
