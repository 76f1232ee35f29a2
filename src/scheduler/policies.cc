#include "scheduler/policies.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "scheduler/policies/faster_transformer.h"
#include "scheduler/policies/fcfs.h"
#include "scheduler/policies/longest_prefix.h"
#include "scheduler/policies/orca.h"
#include "scheduler/policies/priority.h"
#include "scheduler/policies/sarathi.h"
#include "scheduler/policies/simple_chunking.h"
#include "scheduler/policies/vllm.h"

namespace invar {

namespace {

enum class Steps { stall_free, whole_prompts, by_turns };  // see policies.h

template <typename Policy>
std::unique_ptr<Scheduler> make(const SchedulerOptions& options, BlockPool& pool,
                                PrefixCache* cache) {
  return std::make_unique<Policy>(options, pool, cache);
}

// The policies: each is a class in a file of policies/ and a row here.
struct Policy {
  const char* name;
  std::unique_ptr<Scheduler> (*make)(const SchedulerOptions&, BlockPool&, PrefixCache*);
  Steps steps;
};
constexpr Policy kPolicies[] = {
    {"sarathi", make<Sarathi>, Steps::stall_free},
    {"priority", make<Priority>, Steps::stall_free},
    {"fcfs", make<Fcfs>, Steps::stall_free},
    {"longest-prefix", make<LongestPrefix>, Steps::stall_free},
    {"vllm", make<Vllm>, Steps::whole_prompts},
    {"orca", make<Orca>, Steps::whole_prompts},
    {"faster-transformer", make<FasterTransformer>, Steps::whole_prompts},
    {"simple-chunking", make<SimpleChunking>, Steps::by_turns}};

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
