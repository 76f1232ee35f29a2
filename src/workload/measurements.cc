#include "workload/measurements.h"

#include <cmath>
#include <limits>

#include "base/atomic_file.h"
#include "base/error.h"

namespace invar {

namespace {

constexpr int64_t kMostMeasuredSteps = 1 << 20, kMostMeasuredRuns = 1000;
constexpr size_t kMostBytes = size_t{64} << 20;

json::Array to_json(const MeasuredStep& s) {
  return {s.work.prompt_rows,  s.work.decode_rows,  s.work.samples,
          s.work.prompt_slots, s.work.decode_slots, s.seconds};
}

json::Value to_json(const Measurements::Run& r) {
  return json::Object{{"load", r.load},
                      {"policy", r.policy},
                      {"budget", r.budget},
                      {"requests", r.requests},
                      {"rate", r.rate},
                      {"requests_per_second", r.summary.requests_per_second},
                      {"scheduling_delay_p50", r.summary.scheduling_delay.p50},
                      {"tbt_p99", r.summary.tbt.p99},
                      {"mean_step", r.summary.mean_step}};
}

// Members of an object that must be there.
class Members {
 public:
  Members(const json::Value& value, const std::string& where) : value_(value), where_(where) {
    if (!value.is_object()) fail("{}: expected an object, found {}", where, value.type_name());
  }

  const json::Value& get(const char* key) const {
    const json::Value* found = value_.find(key);
    if (!found) fail("{}: expected {}, found none", where_, key);
    return *found;
  }
  std::string text(const char* key) const { return get(key).as_string(); }
  const json::Array& array(const char* key, int64_t most) const {
    const json::Array& all = get(key).as_array();
    if (std::ssize(all) > most)
      fail("{}: expected at most {} {}, found {}", where_, most, key, all.size());
    return all;
  }
  double number(const char* key) const { return checked(get(key), key); }
  int integer(const char* key) const {
    return static_cast<int>(whole(get(key), std::numeric_limits<int32_t>::max(), key));
  }
  int64_t whole(const json::Value& value, int64_t most, const char* what) const {
    const int64_t found = value.as_integer();
    if (found < 0 || found > most)
      fail("{}: expected {} from 0 to {}, found {}", where_, what, most, found);
    return found;
  }
  double checked(const json::Value& value, const char* what) const {
    const double found = value.as_number();
    if (!(found >= 0 && found < 1e18))
      fail("{}: expected {} of 0 or more, found {}", where_, what, found);
    return found;
  }

 private:
  const json::Value& value_;
  const std::string& where_;
};

MeasuredStep step_from(const Members& file, const json::Value& value, const std::string& where) {
  constexpr int64_t kRows = 1 << 24, kSlots = int64_t{1} << 48;
  const json::Array& a = value.as_array();
  if (a.size() != 6) fail("{}: expected 6 numbers of a step, found {}", where, a.size());
  const auto rows = [&](size_t i) { return static_cast<int32_t>(file.whole(a[i], kRows, "rows")); };
  return {{.prompt_rows = rows(0),
           .decode_rows = rows(1),
           .samples = rows(2),
           .prompt_slots = file.whole(a[3], kSlots, "slots"),
           .decode_slots = file.whole(a[4], kSlots, "slots")},
          file.checked(a[5], "seconds of a step")};
}

Measurements::Run run_from(const json::Value& value, const std::string& where) {
  const Members m(value, where);
  Measurements::Run run{.load = m.text("load"),
                        .policy = m.text("policy"),
                        .budget = m.integer("budget"),
                        .requests = m.integer("requests"),
                        .rate = m.number("rate"),
                        .summary = {}};
  run.summary.requests_per_second = m.number("requests_per_second");
  run.summary.scheduling_delay.p50 = m.number("scheduling_delay_p50");
  run.summary.tbt.p99 = m.number("tbt_p99");
  run.summary.mean_step = m.number("mean_step");
  if (run.requests < 1 || run.requests > 1000000 || !(run.rate > 0 && run.rate <= 1e6))
    fail("{}: expected a run of 1 to 1000000 requests at a rate above 0 and up to 1000000", where);
  return run;
}

}  // namespace

std::vector<Measurements::Run> Measurements::runs_of(const std::string& load,
                                                     const std::string& policy, int budget) const {
  std::vector<Run> found;
  for (const Run& r : runs)
    if (r.load == load && r.policy == policy && r.budget == budget) found.push_back(r);
  return found;
}

json::Value to_json(const Measurements& m) {
  json::Array steps, runs;
  for (const MeasuredStep& s : m.steps) steps.push_back(to_json(s));
  for (const Measurements::Run& r : m.runs) runs.push_back(to_json(r));
  return json::Object{{"model", m.model},
                      {"identity", m.identity},
                      {"machine", m.machine},
                      {"slot_bytes", m.slot_bytes},
                      {"plans_in_flight", m.plans_in_flight},
                      {"decode_sequences", m.decode_sequences},
                      {"decode_context", m.decode_context},
                      {"decode_seconds", m.decode_seconds},
                      {"runs", std::move(runs)},
                      {"steps", std::move(steps)}};
}

Measurements parse_measurements(const json::Value& value, const std::string& where) {
  const Members m(value, where);
  Measurements out{.model = m.text("model"),
                   .identity = m.text("identity"),
                   .machine = m.text("machine"),
                   .slot_bytes = m.whole(m.get("slot_bytes"), int64_t{1} << 40, "slot_bytes"),
                   .plans_in_flight = m.integer("plans_in_flight"),
                   .decode_sequences = m.integer("decode_sequences"),
                   .decode_context = m.integer("decode_context"),
                   .decode_seconds = m.number("decode_seconds"),
                   .steps = {},
                   .runs = {}};
  if (out.slot_bytes == 0) fail("{}: expected slot_bytes of 1 or more, found 0", where);
  if (out.plans_in_flight < 1 || out.plans_in_flight > 4)
    fail("{}: expected plans_in_flight from 1 to 4, found {}", where, out.plans_in_flight);
  for (const json::Value& s : m.array("steps", kMostMeasuredSteps))
    out.steps.push_back(step_from(m, s, where));
  for (const json::Value& r : m.array("runs", kMostMeasuredRuns))
    out.runs.push_back(run_from(r, where));
  return out;
}

Measurements read_measurements(const std::string& path) {
  return parse_measurements(json::parse_file(path, {.max_bytes = kMostBytes}), path);
}

void write_measurements(const std::string& path, const Measurements& m) {
  write_file_atomically(path, json::dump(to_json(m)) + "\n");
}

}  // namespace invar
