#include "call_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace invar::cli {

namespace {

// Letters to insert, delete or replace, and neighbours to exchange, to get from one word to the
// other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  std::iota(rows[0].begin(), rows[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    rows[i][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = rows[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      rows[i][j] = std::min({replaced, rows[i - 1][j] + 1, rows[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  }
  return rows[a.size()][b.size()];
}

// The option of `command` that `word` is a misspelling of, or nothing.
std::string nearest_option(const CLI::App& command, std::string_view word) {
  std::string nearest;
  size_t least = std::max<size_t>(2, word.size() / 5) + 1;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames())
      if (const size_t d = distance(word, "--" + name); d < least) least = d, nearest = name;
  return nearest.empty() ? nearest : "--" + nearest;
}

// A word of Ollama, vLLM or llama.cpp for a subcommand of this program.
struct ForeignName {
  std::string_view theirs, ours;
};
constexpr ForeignName kForeignNames[] = {{"run", "chat"},          {"show", "inspect"},
                                         {"ls", "list"},           {"download", "pull"},
                                         {"create", "convert"},    {"quantize", "convert"},
                                         {"complete", "generate"}, {"run-batch", "generate"}};

// The subcommand of `command` that `word` is a misspelling of, or another program's word for, or
// nothing.
std::string nearest_subcommand(const CLI::App& command, const std::string& word) {
  const auto foreign = std::ranges::find(kForeignNames, word, &ForeignName::theirs);
  if (!command.get_parent() && foreign != std::end(kForeignNames))
    return std::string(foreign->ours);
  std::string nearest;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;  // "run" is no misspelling of rm
  for (const CLI::App* one : command.get_subcommands([](const CLI::App*) { return true; }))
    if (const size_t d = distance(word, one->get_name()); !one->get_group().empty() && d < least)
      least = d, nearest = one->get_name();
  return nearest;
}

std::string about_subcommand(const CLI::App& command, const std::string& name,
                             const std::vector<std::string>& rest) {
  if (rest.empty()) return fmt::format("expected a subcommand of {}", name);
  const std::string nearest = nearest_subcommand(command, rest[0]);
  return fmt::format("expected a subcommand of {}, found {}{}", name, json::quoted(rest[0]),
                     nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest));
}

bool takes_a_model(const CLI::App& command) {
  return command.get_option_no_throw("MODEL") != nullptr;
}

// Names the words that the parser had no use for.
std::string about_rest(const CLI::App& command, const std::string& name,
                       const std::vector<std::string>& rest) {
  const auto option = std::ranges::find_if(rest, [](const auto& word) { return word[0] == '-'; });
  if (option == rest.end())
    return fmt::format("expected nothing more after {}, found {}", name, json::quoted(rest[0]));
  const std::string word = option->substr(0, option->find('='));
  if (word == "--model" && takes_a_model(command))
    return fmt::format("the model is named without an option: {} MODEL", name);
  const std::string nearest = nearest_option(command, word);
  return fmt::format("expected an option of {}, found {}{}", name, word,
                     nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest));
}

std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string call_error(const CLI::App& app, const CLI::Error& error) {
  const CLI::App* command = &app;
  std::string name = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  std::vector<std::string> rest = command->remaining();
  if (rest.empty() && !app.remaining().empty()) {  // before the subcommand
    rest = app.remaining();
    command = &app;
    name = app.get_name();
  }
  std::erase(rest, "");
  const bool lacks_subcommand =
      command->get_require_subcommand_min() > 0 && command->get_subcommands().empty();
  std::string text = in_one_line(error.what());
  const std::string kMissing = ": 1 required TEXT missing";  // CLI11's words
  if (dynamic_cast<const CLI::FileError*>(&error))
    text = fmt::format("expected a file of options for --config: {}", text);
  else if (lacks_subcommand)
    text = about_subcommand(*command, name, rest);
  else if (dynamic_cast<const CLI::ExtrasError*>(&error) && !rest.empty())
    text = about_rest(*command, name, rest);
  else if (text.ends_with(kMissing))
    text.replace(text.size() - kMissing.size(), kMissing.size(), ": expected a value, found none");
  return fmt::format("{}; see {} --help", text, name);
}

}  // namespace invar::cli
