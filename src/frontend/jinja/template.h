// Chat templates: the part of Jinja that the templates of language models use, with the results of
// Python's jinja2 set up as Hugging Face's transformers does it: trim_blocks, lstrip_blocks, loop
// controls, the generation tag, nothing mutable but namespaces, tojson without HTML escapes.
//
// A template comes with a model and is not trusted: it can neither change anything nor compute
// without end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontend/jinja/value.h"

namespace invar::jinja {

struct Limits {
  int64_t steps = 3'000'000;               // expressions and statements evaluated, items made
  size_t text_bytes = size_t{256} << 20;   // of all texts made on the way
  size_t output_bytes = size_t{32} << 20;  // of the result
  int depth = 600;                         // of expressions, blocks and macros being evaluated
};

using Variables = std::vector<std::pair<std::string, Value>>;

struct RenderOptions {
  Limits limits;
  // The time that strftime_now formats; without it the function is an error.
  std::function<std::tm()> clock;
};

class Template {
 public:
  // Throws Error, one sentence with `name` and the line, when the source is not a template.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Throws UsageError, one sentence with the line, when the template refuses the variables
  // (raise_exception), fails on them or passes a limit. REQUIRES: the variables' texts are UTF-8.
  std::string render(const Variables& variables, const RenderOptions& options = {}) const;

 private:
  struct Tree;
  std::string name_;
  std::unique_ptr<const Tree> tree_;
};

}  // namespace invar::jinja
