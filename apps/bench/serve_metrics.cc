#include "serve_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace invar::cli {

namespace {

// The new text of an event: of a chat's delta, where it may be a thought, or of a completion.
std::string text_of(const json::Value& event) {
  const json::Value* choices = event.find("choices");
  if (!choices || !choices->is_array() || choices->as_array().empty()) return "";
  const json::Value& choice = choices->as_array()[0];
  const json::Value* delta = choice.find("delta");
  const json::Value* text = delta ? delta->find("content") : choice.find("text");
  if (delta && !text) text = delta->find("reasoning_content");
  return text && text->is_string() ? text->as_string() : "";
}

void read_usage(const json::Value& event, ServeAnswer& answer) {
  const json::Value* usage = event.find("usage");
  if (!usage || !usage->is_object()) return;
  if (const json::Value* n = usage->find("prompt_tokens")) answer.prompt_tokens = n->as_integer();
  if (const json::Value* n = usage->find("completion_tokens"))
    answer.output_tokens = n->as_integer();
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  const double middle = mean(values);
  double sum = 0;
  for (const double v : values) sum += (v - middle) * (v - middle);
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

bool meets(const ServeAnswer& answer, const std::map<std::string, double>& slo) {
  const auto within = [&](const char* name, double seconds) {
    const auto limit = slo.find(name);
    return limit == slo.end() || seconds * 1000 <= limit->second;
  };
  return within("ttft", answer.ttft) && within("tpot", answer.tpot()) &&
         within("e2el", answer.e2el);
}

// The most tokens that came in within one second of the clock.
double most_tokens_per_second(const ServeLoad& load) {
  std::map<int64_t, double> seconds;
  for (const ServeAnswer& a : load.answers) {
    if (!a.error.empty()) continue;
    const double events = static_cast<double>(a.gaps.size()) + 1;
    double time = a.sent + a.ttft;
    const double tokens = static_cast<double>(a.output_tokens) / events;
    seconds[static_cast<int64_t>(time)] += tokens;
    for (const double gap : a.gaps) seconds[static_cast<int64_t>(time += gap)] += tokens;
  }
  double most = 0;
  for (const auto& [second, tokens] : seconds) most = std::max(most, tokens);
  return most;
}

json::Value list(const std::vector<ServeAnswer>& answers, auto value_of) {
  json::Array out;
  for (const ServeAnswer& answer : answers) out.push_back(value_of(answer));
  return out;
}

void add_details(json::Value& v, const std::vector<ServeAnswer>& answers) {
  v.set("input_lens", list(answers, [](const auto& a) { return json::Value(a.prompt_tokens); }));
  v.set("output_lens", list(answers, [](const auto& a) { return json::Value(a.output_tokens); }));
  v.set("start_times", list(answers, [](const auto& a) { return json::Value(a.sent); }));
  v.set("ttfts", list(answers, [](const auto& a) { return json::Value(a.ttft); }));
  v.set("latencies", list(answers, [](const auto& a) { return json::Value(a.e2el); }));
  v.set("itls", list(answers, [](const auto& a) {
          return json::Value(json::Array(a.gaps.begin(), a.gaps.end()));
        }));
  v.set("generated_texts", list(answers, [](const auto& a) { return json::Value(a.text); }));
  v.set("errors", list(answers, [](const auto& a) { return json::Value(a.error); }));
}

}  // namespace

ServeAnswer read_answer(const LoadResult& result) {
  ServeAnswer answer{.error = result.error, .sent = result.sent};
  double last = 0;
  int64_t events = 0;
  try {
    for (const LoadEvent& event : result.events) {
      const json::Value value = json::parse(event.data, "an event");
      if (const json::Value* error = value.find("error"); error && answer.error.empty())
        answer.error = fmt::format("the server said: {}", json::excerpt(*error));
      read_usage(value, answer);
      const std::string text = text_of(value);
      if (text.empty()) continue;
      answer.text += text;
      if (events++ == 0)
        answer.ttft = event.time - result.sent;
      else
        answer.gaps.push_back(event.time - last);
      last = event.time;
    }
  } catch (const Error& error) {
    answer.error = error.what();
  }
  answer.e2el = (events ? last : result.ended) - result.sent;
  if (answer.error.empty() && events == 0) answer.error = "expected text, found an empty answer";
  if (answer.output_tokens == 0) answer.output_tokens = events;  // a server that counts nothing
  return answer;
}

double interpolated_percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = percent / 100 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

Uniqueness uniqueness(const std::vector<ServeAnswer>& answers) {
  std::map<std::string, size_t> counts;
  for (const ServeAnswer& answer : answers)
    if (answer.same_prompt && answer.error.empty()) ++counts[answer.text];
  Uniqueness u{.unique = counts.size()};
  for (const auto& [text, count] : counts) {
    u.asked += count;
    u.commonest = std::max(u.commonest, count);
    // Texts come sorted: what the first and the last have in common, all have.
    const std::string& first = counts.begin()->first;
    const auto differ = std::mismatch(first.begin(), first.end(), text.begin(), text.end()).first;
    if (u.unique > 1) u.first_difference = static_cast<size_t>(differ - first.begin());
  }
  return u;
}

std::vector<Series> series_of(const ServeLoad& load) {
  std::vector<Series> all = {{"ttft", "Time to first token", {}},
                             {"tpot", "Time per output token", {}},
                             {"itl", "Time between events", {}},
                             {"e2el", "Time to the last token", {}}};
  for (const ServeAnswer& answer : load.answers) {
    if (!answer.error.empty()) continue;
    all[0].values.push_back(answer.ttft * 1000);
    if (answer.output_tokens > 1) all[1].values.push_back(answer.tpot() * 1000);
    for (const double gap : answer.gaps) all[2].values.push_back(gap * 1000);
    all[3].values.push_back(answer.e2el * 1000);
  }
  return all;
}

std::vector<std::pair<double, double>> under_way(const ServeLoad& load) {
  std::vector<std::pair<double, double>> changes, out{{0, 0}};
  for (const ServeAnswer& answer : load.answers) {
    changes.emplace_back(answer.sent, 1);
    changes.emplace_back(answer.sent + answer.e2el, -1);
  }
  std::sort(changes.begin(), changes.end());
  for (const auto& [time, change] : changes) out.emplace_back(time, out.back().second + change);
  return out;
}

json::Value metrics_of(const ServeLoad& load, bool detailed) {
  int64_t completed = 0, input = 0, output = 0, good = 0;
  for (const ServeAnswer& answer : load.answers) {
    if (!answer.error.empty()) continue;
    ++completed;
    input += answer.prompt_tokens;
    output += answer.output_tokens;
    good += meets(answer, load.slo);
  }
  double concurrent = 0;
  for (const auto& [time, number] : under_way(load)) concurrent = std::max(concurrent, number);
  json::Value v;
  v.set("duration", load.duration);
  v.set("client_cpu_seconds", load.client_cpu);
  if (load.device_idle > 0) v.set("device_idle_seconds", load.device_idle);
  v.set("completed", completed);
  v.set("failed", std::ssize(load.answers) - completed);
  v.set("total_input_tokens", input);
  v.set("total_output_tokens", output);
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / load.duration; };
  v.set("request_throughput", rate(completed));
  v.set("request_goodput", load.slo.empty() ? json::Value() : json::Value(rate(good)));
  v.set("output_throughput", rate(output));
  v.set("total_token_throughput", rate(input + output));
  v.set("max_output_tokens_per_s", most_tokens_per_second(load));
  v.set("max_concurrent_requests", static_cast<int64_t>(concurrent));
  for (const Series& series : series_of(load)) {
    v.set(fmt::format("mean_{}_ms", series.name), mean(series.values));
    v.set(fmt::format("median_{}_ms", series.name), interpolated_percentile(series.values, 50));
    v.set(fmt::format("std_{}_ms", series.name), deviation(series.values));
    for (const double p : load.percentiles)
      v.set(fmt::format("p{:g}_{}_ms", p, series.name), interpolated_percentile(series.values, p));
  }
  if (const Uniqueness u = uniqueness(load.answers); u.asked > 0) {
    v.set("same_prompt_answers", static_cast<int64_t>(u.asked));
    v.set("unique_answers", static_cast<int64_t>(u.unique));
    v.set("commonest_answer", static_cast<int64_t>(u.commonest));
    v.set("first_difference_byte",
          u.first_difference ? json::Value(static_cast<int64_t>(*u.first_difference)) : nullptr);
  }
  if (detailed) add_details(v, load.answers);
  return v;
}

}  // namespace invar::cli
