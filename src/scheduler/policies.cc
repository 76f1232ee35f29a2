#include "scheduler/policies.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace invar {

namespace {

struct Policy {
  const char* name;
  std::unique_ptr<Scheduler> (*make)(const SchedulerOptions&, BlockPool&, PrefixCache*);
  bool whole;
};
// `whole`: prompts are computed whole.
constexpr Policy kPolicies[] = {{"sarathi", make_sarathi, false},
                                {"vllm", make_vllm, true},
                                {"orca", make_orca, true},
                                {"faster-transformer", make_faster_transformer, true},
                                {"simple-chunking", make_simple_chunking, false}};

}  // namespace

std::unique_ptr<Scheduler> make_scheduler(const SchedulerOptions& options, BlockPool& pool,
                                          PrefixCache* cache) {
  for (const Policy& policy : kPolicies) {
    if (options.policy != policy.name) continue;
    if (policy.whole && options.max_num_batched_tokens < options.max_model_len)
      fail_usage(
          "the scheduler \"{}\" computes prompts whole: max_num_batched_tokens ({}) must be at "
          "least max_model_len ({})",
          policy.name, options.max_num_batched_tokens, options.max_model_len);
    return policy.make(options, pool, cache);
  }
  fail_usage("there is no scheduler \"{}\"; choose one of {}", options.policy,
             fmt::join(scheduler_names(), ", "));
}

bool computes_whole_prompts(const std::string& policy) {
  return std::ranges::any_of(kPolicies,
                             [&](const Policy& p) { return policy == p.name && p.whole; });
}

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const Policy& policy : kPolicies) names.push_back(policy.name);
  return names;
}

}  // namespace invar
