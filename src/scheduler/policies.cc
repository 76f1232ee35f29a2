#include "scheduler/policies.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace invar {

namespace {

struct Policy {
  const char* name;
  std::unique_ptr<Scheduler> (*make)(const SchedulerOptions&, PagePool&);
};
constexpr Policy kPolicies[] = {{"sarathi", make_sarathi}};

}  // namespace

std::unique_ptr<Scheduler> make_scheduler(const SchedulerOptions& options, PagePool& pool) {
  for (const Policy& policy : kPolicies)
    if (options.policy == policy.name) return policy.make(options, pool);
  fail_usage("there is no scheduler \"{}\"; choose one of {}", options.policy,
             fmt::join(scheduler_names(), ", "));
}

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const Policy& policy : kPolicies) names.push_back(policy.name);
  return names;
}

}  // namespace invar
