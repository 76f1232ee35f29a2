#include "frontend/jinja/template.h"

#include <algorithm>

#include "base/error.h"
#include "frontend/jinja/evaluator.h"
#include "frontend/jinja/parser.h"
#include "tokenizer/utf8.h"

namespace invar::jinja {

// A message may hold texts of the template: one line, of a length that can be read.
static std::string one_line(const char* message) {
  constexpr size_t kMaxBytes = 400;
  std::string line = message;
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c >= 0 && c < ' '; }, ' ');
  if (line.size() > kMaxBytes) {
    line.resize(kMaxBytes);
    std::string whole;
    utf8::append_repaired(whole, line);
    line = whole + "...";
  }
  return line;
}

struct Template::Tree {
  Block block;
};

Template::Template(std::string_view source, std::string name) : name_(std::move(name)) {
  constexpr size_t kMaxSource = size_t{2} << 20;
  if (source.size() > kMaxSource)
    fail("{}: expected a template of at most {} bytes, found {}", name_, kMaxSource, source.size());
  if (const size_t at = utf8::find_invalid(source); at != std::string::npos)
    fail("{}: expected UTF-8, found a byte at {} that is not", name_, at);
  try {
    tree_ = std::make_unique<const Tree>(Tree{parse_template(source)});
  } catch (const Fault& found) {
    fail("{}, line {}: {}", name_, found.line, one_line(found.what()));
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

std::string Template::render(const Variables& variables, const RenderOptions& options) const {
  try {
    return Evaluator(options).render(tree_->block, variables);
  } catch (const Fault& found) {
    if (found.raised)
      fail_usage("{} refuses the conversation on line {}: {}", name_, found.line,
                 one_line(found.what()));
    fail_usage("{}, line {}: {}", name_, found.line, one_line(found.what()));
  }
}

}  // namespace invar::jinja
