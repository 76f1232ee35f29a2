#include "model_sampling.h"

#include "session/open.h"

namespace invar::cli {

std::set<std::string> named_options(const CLI::App& command) {
  std::set<std::string> named;
  for (const CLI::Option* option : command.get_options())
    if (option->count() > 0) named.insert(option->get_name());
  return named;
}

SamplingParams with_model_sampling(SamplingParams params, const std::set<std::string>& named,
                                   const ModelOptions& model) {
  const SamplingParams own = open_sampling_defaults(model);
  const auto take = [&](const char* name, auto& to, const auto& from) {
    if (!named.contains(name)) to = from;
  };
  take("--temperature", params.temperature, own.temperature);
  take("--top-k", params.top_k, own.top_k);
  take("--top-p", params.top_p, own.top_p);
  take("--min-p", params.min_p, own.min_p);
  take("--repetition-penalty", params.repetition_penalty, own.repetition_penalty);
  return params;
}

}  // namespace invar::cli
