#include "number_flags.h"

#include <fmt/format.h>

#include <charconv>

#include "base/json.h"

namespace invar::cli {

namespace {

template <typename Number>
bool parses(const std::string& text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  // NaN lies in every range, since no comparison finds it outside.
  const bool is_number = value == value;
  return error == std::errc() && stop == end && is_number;
}

// A validator for numbers of this kind: what it returns is what is wrong, nothing if all is well.
template <typename Number>
CLI::Validator is_a(std::string kind) {
  const auto check = [kind](const std::string& text) {
    Number value{};
    return parses(text, value) ? std::string()
                               : fmt::format("expected {}, found {}", kind, json::quoted(text));
  };
  return CLI::Validator(check, "");
}

}  // namespace

void check_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();  // with what other checks call themselves
    if (type.starts_with("INT")) option->check(is_a<int64_t>("an integer"));
    if (type.starts_with("UINT")) option->check(is_a<uint64_t>("an integer of 0 or more"));
    if (type.starts_with("FLOAT")) option->check(is_a<double>("a number"));
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    check_numbers(*command);
}

CLI::Validator at_least(int64_t low) {
  const auto check = [low](const std::string& text) {
    int64_t value = 0;
    return parses(text, value) && value >= low
               ? std::string()
               : fmt::format("expected an integer of {} or more, found {}", low,
                             json::quoted(text));
  };
  return CLI::Validator(check, "");
}

}  // namespace invar::cli
