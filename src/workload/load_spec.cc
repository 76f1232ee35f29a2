#include "workload/load_spec.h"

#include <filesystem>

#include "base/toml.h"
#include "scheduler/scheduler.h"

namespace invar {

namespace {

constexpr int kMostTokens = 1 << 20, kMostRequests = 1000000;

void read_arrivals(TomlSection section, ArrivalSpec& a) {
  section.get("kind", a.kind, {"poisson", "gamma", "fixed", "trace"});
  section.get("rate", a.rate, 1e-6, 1e6);
  section.get("share_of_capacity", a.share, 0.01, 10);
  section.get("variation", a.variation, 0.01, 100);
  if (section.has("rate") && section.has("share_of_capacity"))
    fail_usage("{}: expected rate or share_of_capacity, found both", section.file());
  section.finish();
}

void read_lengths(TomlSection section, LengthSpec& l, bool is_answer) {
  std::vector<std::string> kinds = {"fixed", "uniform", "zipf", "lognormal"};
  if (is_answer) kinds.push_back("ratio");
  section.get("kind", l.kind, kinds);
  if (l.kind == "ratio") {
    section.get("ratio", l.ratio, 0.001, 1e6);
  } else if (l.kind == "lognormal") {
    for (const char* key : {"median", "p90", "high"}) section.require(key);
    section.get("median", l.median, 1, kMostTokens);
    section.get("p90", l.p90, l.median, kMostTokens);
    section.get("low", l.low, 1, kMostTokens);
    section.get("high", l.high, l.low, kMostTokens);
  } else {
    section.require("low");
    section.get("low", l.low, 1, kMostTokens);
    l.high = l.low;
    section.get("high", l.high, l.low, kMostTokens);
    if (l.kind == "zipf") section.get("theta", l.theta, 0, 10);
  }
  section.finish();
}

void read_trace(TomlSection section, TraceSpec& t, const std::string& path) {
  section.require("file");
  section.get("file", t.file);
  t.file = (std::filesystem::path(path).parent_path() / t.file).lexically_normal().string();
  section.get("max_tokens", t.max_tokens, 2, kMostTokens);
  section.get("time_scale", t.time_scale, 1e-6, 1e6);
  section.get("shuffle", t.is_shuffled);
  section.get("busiest_seconds", t.busiest, 1e-6, 1e9);
  section.finish();
}

void read_policies(TomlSection& root, std::vector<PolicySpec>& policies) {
  for (TomlSection& section : root.list("policies")) {
    PolicySpec policy;
    section.require("name");
    section.get("name", policy.name, scheduler_names());
    section.get("budgets", policy.budgets, 1, kMostTokens);
    section.get("max_num_seqs", policy.max_num_seqs, 1, 100000);
    section.finish();
    policies.push_back(std::move(policy));
  }
  if (policies.empty()) policies.push_back({.name = "sarathi"});
}

}  // namespace

int LoadSpec::longest() const {
  if (!trace.file.empty()) return trace.max_tokens;
  if (max_tokens > 0) return max_tokens;
  const int answer = answers.kind == "ratio"
                         ? std::max(1, static_cast<int>(prompts.high / answers.ratio))
                         : answers.high;
  return prompts.high + answer;
}

LoadSpec read_load(const std::string& path) {
  const toml::table table = parse_toml(path);
  LoadSpec spec;
  TomlSection root(&table, "", path);
  root.require("name");
  root.get("name", spec.name);
  root.get("seed", spec.seed, 0, std::numeric_limits<int64_t>::max());
  root.get("requests", spec.requests, 1, kMostRequests);
  if (root.has("trace")) {
    spec.arrivals.kind = "trace";
    read_trace(root.section("trace"), spec.trace, path);
  } else {
    root.require("prompts");
    root.require("answers");
    read_lengths(root.section("prompts"), spec.prompts, false);
    read_lengths(root.section("answers"), spec.answers, true);
    root.get("max_tokens", spec.max_tokens, 2, kMostTokens);
  }
  read_arrivals(root.section("arrivals"), spec.arrivals);
  if (spec.arrivals.kind == "trace" && spec.trace.file.empty())
    fail_usage("{}: arrivals as in a trace need a trace, found none", path);

  TomlSection limits = root.section("limits");
  limits.get("scheduling_delay_p50", spec.limits.scheduling_delay_p50, 1e-6, 1e6);
  limits.get("tbt_p99", spec.limits.tbt_p99, 1e-6, 1e6);
  limits.get("search_requests", spec.search_requests, 1, kMostRequests);
  limits.get("run_seconds", spec.run_seconds, 1e-3, 1e6);
  limits.finish();
  TomlSection engine = root.section("engine");
  engine.get("max_num_seqs", spec.max_num_seqs, 1, 100000);
  engine.get("kv_cache_memory_gib", spec.kv_gib, 0, 1e6);
  engine.finish();
  read_policies(root, spec.policies);
  root.finish();
  if (spec.longest() > kMostTokens)
    fail_usage("{}: expected requests of at most {} tokens, found {}", path, kMostTokens,
               spec.longest());
  return spec;
}

}  // namespace invar
