#include "backend.h"

#include "base/error.h"

namespace invar::server {

void add_to(BackendStats& all, const BackendStats& one) {
  all.running += one.running;
  all.waiting += one.waiting;
  all.blocks += one.blocks;
  all.free_blocks += one.free_blocks;
  add_counters(all, one);
}

void add_counters(BackendStats& all, const BackendStats& one) {
  all.steps += one.steps;
  all.rows += one.rows;
  all.samples += one.samples;
  all.preemptions += one.preemptions;
  all.prompt_tokens += one.prompt_tokens;
  all.cached_tokens += one.cached_tokens;
  all.drafts += one.drafts;
  all.draft_tokens += one.draft_tokens;
  all.accepted_tokens += one.accepted_tokens;
  if (all.accepted_at.size() < one.accepted_at.size())
    all.accepted_at.resize(one.accepted_at.size());
  for (size_t i = 0; i < one.accepted_at.size(); ++i) all.accepted_at[i] += one.accepted_at[i];
}

void Backend::take_weights(const std::string&) {
  fail_usage("the weights here are fixed");
}

}  // namespace invar::server
