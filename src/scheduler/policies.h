// The policies, one file each.
#pragma once

#include <memory>

#include "scheduler/scheduler.h"

namespace invar {

std::unique_ptr<Scheduler> make_sarathi(const SchedulerOptions& options, BlockPool& pool,
                                        PrefixCache* cache);
std::unique_ptr<Scheduler> make_vllm(const SchedulerOptions& options, BlockPool& pool,
                                     PrefixCache* cache);
std::unique_ptr<Scheduler> make_orca(const SchedulerOptions& options, BlockPool& pool,
                                     PrefixCache* cache);
std::unique_ptr<Scheduler> make_faster_transformer(const SchedulerOptions& options, BlockPool& pool,
                                                   PrefixCache* cache);
std::unique_ptr<Scheduler> make_simple_chunking(const SchedulerOptions& options, BlockPool& pool,
                                                PrefixCache* cache);

// Whether the policy of that name computes prompts whole: its steps need room for the longest one.
bool computes_whole_prompts(const std::string& policy);

}  // namespace invar
