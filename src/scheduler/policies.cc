#include "scheduler/policies.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace invar {

// The policies: each is a file in policies/ that defines its maker, and a row here.
using Maker = std::unique_ptr<Scheduler>(const SchedulerOptions&, BlockPool&, PrefixCache*);
Maker make_sarathi, make_priority, make_fcfs, make_longest_prefix, make_vllm, make_orca,
    make_faster_transformer, make_simple_chunking;

namespace {

enum class Steps { stall_free, whole_prompts, by_turns };  // see policies.h

struct Policy {
  const char* name;
  Maker* make;
  Steps steps;
};
constexpr Policy kPolicies[] = {
    {"sarathi", make_sarathi, Steps::stall_free},
    {"priority", make_priority, Steps::stall_free},
    {"fcfs", make_fcfs, Steps::stall_free},
    {"longest-prefix", make_longest_prefix, Steps::stall_free},
    {"vllm", make_vllm, Steps::whole_prompts},
    {"orca", make_orca, Steps::whole_prompts},
    {"faster-transformer", make_faster_transformer, Steps::whole_prompts},
    {"simple-chunking", make_simple_chunking, Steps::by_turns}};

bool has_steps(const std::string& policy, Steps steps) {
  return std::ranges::any_of(kPolicies,
                             [&](const Policy& p) { return policy == p.name && p.steps == steps; });
}

}  // namespace

std::unique_ptr<Scheduler> make_scheduler(const SchedulerOptions& options, BlockPool& pool,
                                          PrefixCache* cache) {
  for (const Policy& policy : kPolicies) {
    if (options.policy != policy.name) continue;
    if (policy.steps == Steps::whole_prompts &&
        options.max_num_batched_tokens < options.max_model_len)
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
  return has_steps(policy, Steps::whole_prompts);
}

bool is_stall_free(const std::string& policy) {
  return has_steps(policy, Steps::stall_free);
}

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const Policy& policy : kPolicies) names.push_back(policy.name);
  return names;
}

}  // namespace invar
