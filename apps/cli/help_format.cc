#include "help_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "word_wrap.h"

namespace invar::cli {

namespace {

std::string without(std::string text, const std::string& part) {
  for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
  return text;
}

// "INT in [0 - 65535]", the range of a number, as " (0 to 65535)"; what else a check calls itself,
// such as the names that it allows, as it is.
std::string limits(std::string check) {
  if (check.empty()) return check;
  const size_t open = check.find('['), between = check.find(" - ", open);
  if (open == std::string::npos || between == std::string::npos) return " " + check;
  check.replace(between, 3, " to ");
  return " (" + check.substr(open + 1, check.rfind(']') - open - 1) + ")";
}

constexpr const char* kOthers = "Options";  // CLI11's group of options that were put into none

class HelpFormat : public CLI::Formatter {
 public:
  explicit HelpFormat(std::vector<HelpGroup> groups = {}) : groups_(std::move(groups)) {}

  // CLI11 shows the value that --no-NAME stands for: "--no-NAME{false}".
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return without(CLI::Formatter::make_option_name(option, is_positional), "{false}");
  }

  // As CLI11, but the limits of a value come after its default: "INT=8000 (0 to 65535)".
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_opts(option);
    const std::string type = option->get_type_name();
    const size_t colon = type.find(':');
    if (colon == std::string::npos || !text.starts_with(" " + type)) return text;
    const std::string rest = text.substr(1 + type.size());
    const size_t end = std::min(rest.find(' '), rest.size());  // of the default
    return " " + type.substr(0, colon) + rest.substr(0, end) + limits(type.substr(colon + 1)) +
           rest.substr(end);
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description());
  }

  std::string make_subcommand(const CLI::App* command) const override {
    std::stringstream out;
    CLI::detail::format_help(out, command->get_name(), wrapped(command->get_description()),
                             get_column_width());
    return out.str();
  }

  // A command with groups shows them alone, and says where the other options are.
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    if (groups_.empty()) return CLI::Formatter::make_help(app, std::move(name), mode);
    std::string text =
        make_description(app) + make_usage(app, std::move(name)) + make_positionals(app);
    for (const HelpGroup& group : groups_) {
      std::vector<const CLI::Option*> options;
      for (const char* option : group.options) options.push_back(app->get_option(option));
      text += make_group(group.title, false, std::move(options));
    }
    if (mode == CLI::AppFormatMode::All) text += make_group("Other options", false, others(app));
    if (const std::string footer = make_footer(app); !footer.empty()) text += "\n" + footer;
    if (mode == CLI::AppFormatMode::All) return text;
    const auto all = app->get_options(
        [](const CLI::Option* one) { return one->nonpositional() && !one->get_group().empty(); });
    return text + fmt::format("\n--help-all lists all {} options.\n", all.size());
  }

 private:
  static std::vector<const CLI::Option*> others(const CLI::App* app) {
    return app->get_options(
        [](const CLI::Option* one) { return one->nonpositional() && one->get_group() == kOthers; });
  }

  // For the right column.
  std::string wrapped(const std::string& text) const {
    const int columns = std::clamp(terminal_columns(), 80, 120);
    WordWrap wrap(columns - static_cast<int>(get_column_width()));
    const std::string most = wrap.add(text);
    return most + wrap.finish();
  }

  std::vector<HelpGroup> groups_;  // that a short help has
};

}  // namespace

std::shared_ptr<CLI::Formatter> help_format() {
  return std::make_shared<HelpFormat>();
}

void show_first(CLI::App& command, const std::vector<HelpGroup>& groups) {
  command.set_help_all_flag("--help-all", "Print all options");
  for (const HelpGroup& group : groups)
    for (const char* name : group.options) command.get_option(name)->group(group.title);
  command.formatter(std::make_shared<HelpFormat>(groups));
}

}  // namespace invar::cli
