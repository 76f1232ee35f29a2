#include "model_sampling.h"

#include <fmt/format.h>

#include <algorithm>

#include "session/open.h"

namespace invar::cli {

std::string flag_of(std::string_view field) {
  std::string flag = fmt::format("--{}", field);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::set<std::string> named_options(const CLI::App& command) {
  std::set<std::string> named;
  for (const CLI::Option* option : command.get_options())
    if (option->count() > 0) named.insert(option->get_name());
  return named;
}

SamplingParams with_model_sampling(SamplingParams params, const std::set<std::string>& named,
                                   const ModelOptions& model) {
  const SamplingParams own = open_sampling_defaults(model);
  for_each_field<&FieldFacts::of_model>(params, [&](const auto& field, auto& value) {
    if (!named.contains(flag_of(field.name))) value = own.*field.at;
  });
  return params;
}

}  // namespace invar::cli
