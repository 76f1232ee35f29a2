#include "frontend/fill_in_middle.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"

namespace invar {

namespace {

struct MarkNames {
  const char *prefix, *suffix, *middle;
  const char *repository = nullptr, *file = nullptr;
};

// Qwen-Coder; StarCoder, SmolLM, Granite; DeepSeek-Coder; CodeLlama; CodeGemma has the first.
constexpr MarkNames kMarks[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<file_sep>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
    {"▁<PRE>", "▁<SUF>", "▁<MID>"},
    {"<PRE>", "<SUF>", "<MID>"},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},
};

struct Marks {
  int32_t prefix = 0, suffix = 0, middle = 0;
  std::optional<int32_t> repository, file;
};

std::optional<Marks> marks_of(const Tokenizer& tokenizer) {
  for (const MarkNames& names : kMarks) {
    const auto prefix = tokenizer.id_of(names.prefix), suffix = tokenizer.id_of(names.suffix),
               middle = tokenizer.id_of(names.middle);
    if (!prefix || !suffix || !middle) continue;
    Marks marks{*prefix, *suffix, *middle, {}, {}};
    if (names.repository) marks.repository = tokenizer.id_of(names.repository);
    if (names.file) marks.file = tokenizer.id_of(names.file);
    return marks;
  }
  return std::nullopt;
}

class MiddlePrompt {
 public:
  explicit MiddlePrompt(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    for (const int32_t id : tokenizer.encode("")) add(id);  // what begins every prompt
  }
  void add(int32_t id) { ids_.emplace_back(int64_t{id}); }
  // A user's text has no marks.
  void add(const std::string& text) {
    for (const int32_t id :
         tokenizer_.encode(text, {.add_special_tokens = false, .parse_special = false}))
      add(id);
  }
  json::Array take() { return std::move(ids_); }

 private:
  const Tokenizer& tokenizer_;
  json::Array ids_;
};

// Before anything is tokenized.
void check_middle(const MiddleAsked& asked, size_t most) {
  size_t bytes = asked.prefix.size() + asked.suffix.size() + asked.begun.size();
  for (const MiddleAsked::File& file : asked.files) bytes += file.name.size() + file.text.size();
  if (bytes > most)
    throw openai::PromptTooLong(
        fmt::format("the texts have {} bytes: more than {} do not fit into the context, however "
                    "they are cut into tokens",
                    bytes, most));
}

}  // namespace

bool fills_in_middle(const Tokenizer& tokenizer) {
  return marks_of(tokenizer).has_value();
}

json::Value middle_prompt(const openai::Context& context, const MiddleAsked& asked) {
  const auto marks = marks_of(*context.tokenizer);
  if (!marks)
    fail_usage(
        "expected a model whose vocabulary has the marks of a prefix, a suffix and the middle "
        "between them, such as <|fim_prefix|>, found one without: it fills in no text");
  check_middle(asked, context.max_prompt_bytes);
  MiddlePrompt prompt(*context.tokenizer);
  const bool has_marks = marks->repository && marks->file;
  if (has_marks && !asked.files.empty()) {
    prompt.add(*marks->repository);
    prompt.add("myproject\n");
  }
  for (const MiddleAsked::File& file : asked.files) {
    if (has_marks) prompt.add(*marks->file);
    prompt.add((has_marks ? file.name + "\n" : "\n\n--- snippet ---\n\n") + file.text);
  }
  if (has_marks && !asked.files.empty()) {
    prompt.add(*marks->file);
    prompt.add("filename\n");
  }
  prompt.add(marks->prefix);
  prompt.add(asked.prefix);
  prompt.add(marks->suffix);
  prompt.add(asked.suffix);
  prompt.add(marks->middle);
  prompt.add(asked.begun);
  return prompt.take();
}

}  // namespace invar
