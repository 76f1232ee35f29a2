// The policies, one file each.
#pragma once

#include <memory>

#include "scheduler/scheduler.h"

namespace invar {

std::unique_ptr<Scheduler> make_sarathi(const SchedulerOptions& options, PagePool& pool);

}  // namespace invar
