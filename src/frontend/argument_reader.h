// Arguments of a call of a tool, read as a model writes them and given on as JSON.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"

namespace invar {

// Finds the end of a bracketed value, byte by byte: of JSON, or of Python's literals, which have
// round brackets and single quotes, too.
class BracketScan {
 public:
  enum class Of { json, python };

  // `depth`: of brackets that were opened before.
  explicit BracketScan(int depth = 0, Of of = Of::json) : depth_(depth), of_(of) {}
  // Bytes of `text` up to the bracket that closes the first one; 0: it has not come. Then what
  // comes next goes on behind the text.
  size_t end_in(std::string_view text);

 private:
  int depth_;
  Of of_;
  char quote_ = 0;  // which ends the text that it stands in; 0: in none
  bool escaped_ = false;
};

// Bytes in which a call or an argument has to name itself: what is longer is no name. So the front
// of a text that may go on is looked at again and again at no great cost.
inline constexpr size_t kMostOfName = 4 << 10;

// Reads the arguments of one call. However the text is cut, what it gives on is the same.
class ArgumentReader {
 public:
  virtual ~ArgumentReader() = default;
  // Takes what it can from the front of `text`, appends what that adds to the JSON, and returns the
  // bytes that it took. The rest is to come again, with more behind it.
  virtual size_t read(std::string_view text, std::string& json) = 0;
  // Appends what the JSON lacks when the answer has ended of itself with `rest` left, where the
  // format allows that.
  virtual void close(std::string_view, std::string&) {}
  // Nothing more belongs to the arguments: they are whole, or go on in a way that makes no sense.
  bool is_over() const { return over_; }

 protected:
  bool over_ = false;
};

// An object of JSON, as the model spells it.
std::unique_ptr<ArgumentReader> read_json_object();
struct TagStyle;
// A parameter's tag and value again and again, up to the call's end. A value is a text, or JSON
// where the tag, or else the schema of the tool `name` among `tools`, says that it is something
// else; then it comes as a whole. One that is not closed ends where another parameter of the tool
// begins, or the call ends. `style` outlives it.
std::unique_ptr<ArgumentReader> read_parameters(const TagStyle& style, std::string name,
                                                const json::Value& tools);
// {KEY:VALUE, ...} as Gemma 4 writes it: texts stand between marks.
std::unique_ptr<ArgumentReader> read_marked_object();
// KEY=LITERAL, ... up to a closing bracket. Literals other than texts come as a whole.
std::unique_ptr<ArgumentReader> read_keywords();

// Whether a parameter of this schema, which stands within `root`, may be a text: then such calls
// have it as it is, without quotes.
bool may_be_text(const json::Value& schema, const json::Value& root);

// The object that begins in `text`, without what does not stand there whole: {} at least.
json::Value whole_part(std::string_view text);

// Appends a piece of a text as a piece of a JSON string.
void append_escaped(std::string_view piece, std::string& json);

}  // namespace invar
