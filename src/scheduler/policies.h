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

}  // namespace invar
