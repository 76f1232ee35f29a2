#include "metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace invar::server {

namespace {

const std::vector<double> kFirstToken = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                         1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kBetween = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                      .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kWhole = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokens = {1,   2,    5,    10,   20,    50,    100,   200,
                                     500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

void print_type(const std::string& name, const char* type, const char* help, std::string& out) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void print_one(const std::string& name, const char* type, const char* help,
               const std::string& labels, double value, std::string& out) {
  print_type(name, type, help, out);
  out += fmt::format("{}{{{}}} {}\n", name, labels, value);
}

// A value between quotes, as the text form escapes it.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

void Histogram::add(double value) {
  sum_ += value;
  ++counts_[std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin()];
}

void Histogram::print(const std::string& name, const char* help, const std::string& labels,
                      std::string& out) const {
  print_type(name, "histogram", help, out);
  int64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, total);
  }
  out +=
      fmt::format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_, name, labels, total);
}

Metrics::Metrics()
    : time_to_first_token(kFirstToken),
      inter_token(kBetween),
      end_to_end(kWhole),
      prompt_tokens(kTokens),
      generation_tokens(kTokens) {}

std::string Metrics::text(const std::string& model, const BackendStats& stats, size_t connections,
                          size_t answers) const {
  const std::string labels = fmt::format("model_name=\"{}\"", escaped(model));
  std::string out;
  const auto number = [&](const char* name, const char* type, const char* help, double value) {
    print_one(name, type, help, labels, value, out);
  };
  const auto ratio = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
  number("vllm:num_requests_running", "gauge", "Sequences that hold blocks.", stats.running);
  number("vllm:num_requests_waiting", "gauge", "Sequences that wait for blocks.", stats.waiting);
  number("vllm:kv_cache_usage_perc", "gauge", "Blocks in use, 1 is all.",
         ratio(stats.blocks - stats.free_blocks, stats.blocks));
  number("vllm:num_preemptions_total", "counter",
         "Sequences that gave their blocks up for a while.",
         static_cast<double>(stats.preemptions));
  number("vllm:prefix_cache_queries_total", "counter", "Tokens of prompts that were begun.",
         static_cast<double>(stats.prompt_tokens));
  number("vllm:prefix_cache_hits_total", "counter", "Of these, taken from the prefix cache.",
         static_cast<double>(stats.cached_tokens));
  number("vllm:prompt_tokens_total", "counter", "Tokens of prompts.",
         static_cast<double>(all_prompt_tokens));
  number("vllm:generation_tokens_total", "counter", "Tokens of answers.",
         static_cast<double>(all_generation_tokens));
  print_type("vllm:request_success_total", "counter", "Answers that were finished.", out);
  for (const auto& [reason, count] : finished)
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels,
                       reason, count);
  time_to_first_token.print("vllm:time_to_first_token_seconds",
                            "From a request's arrival to its first token.", labels, out);
  inter_token.print("vllm:inter_token_latency_seconds", "Between two tokens of an answer.", labels,
                    out);
  end_to_end.print("vllm:e2e_request_latency_seconds",
                   "From a request's arrival to its last token.", labels, out);
  prompt_tokens.print("vllm:request_prompt_tokens", "Tokens of a request's prompts.", labels, out);
  generation_tokens.print("vllm:request_generation_tokens", "Tokens of a request's answers.",
                          labels, out);
  number("invar:engine_steps_total", "counter", "Steps of the engine.",
         static_cast<double>(stats.steps));
  number("invar:engine_rows_total", "counter", "Rows that the steps computed.",
         static_cast<double>(stats.rows));
  number("invar:kv_blocks", "gauge", "Blocks for keys and values.", stats.blocks);
  number("invar:kv_blocks_free", "gauge", "Blocks that no sequence holds.", stats.free_blocks);
  number("invar:connections", "gauge", "Open connections.", static_cast<double>(connections));
  number("invar:answers", "gauge", "Answers that are being made.", static_cast<double>(answers));
  print_type("invar:requests_refused_total", "counter", "Requests that ended in an error.", out);
  for (const auto& [status, count] : refused)
    out +=
        fmt::format("invar:requests_refused_total{{{},status=\"{}\"}} {}\n", labels, status, count);
  return out;
}

}  // namespace invar::server
