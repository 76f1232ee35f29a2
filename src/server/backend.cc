#include "backend.h"

#include "base/error.h"

namespace invar::server {

void add_to(BackendStats& all, const BackendStats& one) {
  all.running += one.running;
  all.waiting += one.waiting;
  all.blocks += one.blocks;
  all.free_blocks += one.free_blocks;
  all.steps += one.steps;
  all.rows += one.rows;
  all.samples += one.samples;
  all.preemptions += one.preemptions;
  all.prompt_tokens += one.prompt_tokens;
  all.cached_tokens += one.cached_tokens;
}

void Backend::take_weights(const std::string&) {
  fail_usage("the weights here are fixed");
}

}  // namespace invar::server
