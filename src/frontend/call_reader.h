// Calls of tools and the text beside them, read as a model writes them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/argument_reader.h"
#include "frontend/tool_calls.h"

namespace invar {

// The next piece of an answer.
struct AnswerPiece {
  enum class Kind {
    text,       // beside the calls
    call,       // one begins; `text` is the tool's name
    arguments,  // of that call
    end,        // of that call; every call that begins has one
  };
  Kind kind;
  std::string text;
};

// The text and the calls that the pieces add up to.
void add_pieces(const std::vector<AnswerPiece>& pieces, std::string& content,
                std::vector<ToolCall>& calls);

// Parts text that arrives in pieces into calls and what is said beside them; how it is cut makes no
// difference. Text that looks like a call and is none stays text. A call is one as soon as its name
// is there and its arguments begin: from there on they are shown as they come.
class ToolCallReader {
 public:
  // `name` is the tool's where the answer is its arguments; `tools` those of the request, which say
  // what values are where the format does not. They outlive the reader.
  explicit ToolCallReader(ToolFormat format, std::string name = {},
                          const json::Value* tools = nullptr);

  void push(std::string_view text, std::vector<AnswerPiece>& pieces);
  // `is_cut`: the answer is longer than it may be, so that its last call may not be whole.
  void finish(std::vector<AnswerPiece>& pieces, bool is_cut = false);

 private:
  using Pieces = std::vector<AnswerPiece>;
  enum class At { text, head, arguments, tail };

  bool is_whole_answer() const;  // a call is all that the answer has
  // Each takes from what is held; false: more is needed.
  bool read_text(Pieces& pieces);
  bool read_head(Pieces& pieces);
  bool read_arguments(Pieces& pieces);
  bool read_tail(Pieces& pieces);
  void finish_calls(Pieces& pieces, bool is_cut);
  void begin(const std::string& name, Pieces& pieces);
  void leave(bool ends) { at_ = ends ? At::text : At::head; }
  void say(std::string_view text, Pieces& pieces);
  void add(AnswerPiece::Kind kind, std::string_view text, Pieces& pieces);
  std::string_view held() const { return std::string_view(held_).substr(taken_); }
  std::string take(size_t bytes);

  ToolFormat format_;
  std::string name_;
  const json::Value* tools_;
  json::Value no_tools_;
  At at_ = At::text;
  std::string held_;
  size_t taken_ = 0;  // bytes of it, which go when a piece has been read
  FrontSearch search_;
  std::string mark_;    // behind which no call has come yet
  std::string gap_;     // blank text behind a call, which is none unless words follow
  bool spoke_ = false;  // words have followed the last call
  std::unique_ptr<ArgumentReader> arguments_;
  BracketScan scan_;
  bool called_ = false, ends_ = false;  // a call came; nothing comes behind this one
};

}  // namespace invar
