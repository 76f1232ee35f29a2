#include "metrics.h"

#include <fmt/format.h>

#include "exposition.h"
#include "process_metrics.h"

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
const std::vector<double> kAnswers = {1, 2, 5, 10, 20};

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void print_engine(const BackendFacts& facts, const BackendStats& stats, Exposition& out) {
  const auto number = [](auto count) { return static_cast<double>(count); };
  out.gauge("vllm:num_requests_running", "Sequences that hold blocks.", stats.running);
  out.gauge("vllm:num_requests_waiting", "Sequences that wait for blocks.", stats.waiting);
  out.gauge("vllm:kv_cache_usage_perc", "Blocks in use, 1 is all.",
            stats.blocks > 0 ? number(stats.blocks - stats.free_blocks) / stats.blocks : 0);
  out.counter("vllm:num_preemptions_total", "Sequences that gave their blocks up for a while.",
              number(stats.preemptions));
  out.counter("vllm:prefix_cache_queries_total", "Tokens of prompts that were begun.",
              number(stats.prompt_tokens));
  out.counter("vllm:prefix_cache_hits_total", "Of these, taken from the prefix cache.",
              number(stats.cached_tokens));
  out.type("vllm:cache_config_info", "gauge", "How the KV cache is made.");
  out.line("vllm:cache_config_info", 1,
           fmt::format("block_size=\"{}\",enable_prefix_caching=\"{}\",num_gpu_blocks=\"{}\"",
                       facts.block_size, facts.prefix_caching ? "True" : "False", stats.blocks));
  out.gauge("invar:kv_blocks", "Blocks for keys and values.", stats.blocks);
  out.gauge("invar:kv_blocks_free", "Blocks that no sequence holds.", stats.free_blocks);
}

void print_steps(const BackendStats& stats, const StepTotals& steps, Exposition& out) {
  const auto number = [](int64_t count) { return static_cast<double>(count); };
  out.counter("invar:engine_steps_total", "Steps of the engine.", number(stats.steps));
  out.counter("invar:engine_rows_total", "Rows that the steps computed.", number(stats.rows));
  out.type("invar:step_rows_total", "counter", "Rows by what they are for.");
  out.line("invar:step_rows_total", number(steps.decode_rows), "kind=\"decode\"");
  out.line("invar:step_rows_total", number(steps.prompt_rows), "kind=\"prompt\"");
  out.line("invar:step_rows_total", number(steps.draft_rows), "kind=\"draft\"");
  out.counter("invar:stalled_rows_total",
              "Rows that answers did not get: one for each that a step passed over.",
              number(steps.stalls));
  out.counter("invar:device_idle_seconds_total",
              "The time that a GPU had nothing to do between two steps while requests were there.",
              steps.device_idle_seconds);
  out.histogram("invar:step_seconds", "The time of a step.", steps.seconds);
  out.histogram("vllm:iteration_tokens_total", "Rows of a step.", steps.rows);
  out.counter("vllm:spec_decode_num_drafts_total", "Times that a sequence had drafts.",
              number(stats.drafts));
  out.counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens that were checked.",
              number(steps.draft_rows));
  out.counter("vllm:spec_decode_num_accepted_tokens_total", "Of these, the answers' next tokens.",
              number(steps.accepted));
  out.type("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
           "The same, by their position behind the known tokens.");
  for (size_t i = 0; i < stats.accepted_at.size(); ++i)
    out.line("vllm:spec_decode_num_accepted_tokens_per_pos_total", number(stats.accepted_at[i]),
             fmt::format("position=\"{}\"", i));
}

}  // namespace

Metrics::Metrics()
    : time_to_first_token(kFirstToken),
      inter_token(kBetween),
      end_to_end(kWhole),
      queue(kWhole),
      prefill(kWhole),
      decode(kWhole),
      inference(kWhole),
      per_output_token(kBetween),
      prompt_tokens(kTokens),
      generation_tokens(kTokens),
      max_tokens(kTokens),
      most_generation_tokens(kTokens),
      answers(kAnswers) {}

void Metrics::add(const RequestTimes& times, int64_t tokens) {
  const double whole = seconds_between(times.arrival, times.end);
  end_to_end.add(whole);
  recent_end_to_end.add(whole);
  const bool is_scheduled = times.scheduled != Clock::time_point{};
  if (is_scheduled) queue.add(seconds_between(times.arrival, times.scheduled));
  if (tokens == 0) return;
  if (is_scheduled) {
    prefill.add(seconds_between(times.scheduled, times.first_token));
    inference.add(seconds_between(times.scheduled, times.last_token));
  }
  const double decoding = seconds_between(times.first_token, times.last_token);
  decode.add(decoding);
  if (tokens > 1) per_output_token.add(decoding / static_cast<double>(tokens - 1));
}

void Metrics::print_requests(Exposition& out) const {
  out.counter("vllm:prompt_tokens_total", "Tokens of prompts.",
              static_cast<double>(all_prompt_tokens));
  out.counter("vllm:generation_tokens_total", "Tokens of answers.",
              static_cast<double>(all_generation_tokens));
  out.type("vllm:request_success_total", "counter", "Answers that were finished.");
  for (const auto& [reason, count] : finished)
    out.line("vllm:request_success_total", static_cast<double>(count),
             fmt::format("finished_reason=\"{}\"", reason));
  out.histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
                time_to_first_token);
  // Its name, and the one that it had before.
  for (const char* name :
       {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"})
    out.histogram(name, "Between two tokens of an answer.", inter_token);
  out.histogram("vllm:request_time_per_output_token_seconds",
                "The mean time between an answer's tokens.", per_output_token);
  out.histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its last token.",
                end_to_end);
  out.histogram("vllm:request_queue_time_seconds",
                "From a request's arrival to the first step that computes it.", queue);
  out.histogram("vllm:request_prefill_time_seconds", "From there to the first token.", prefill);
  out.histogram("vllm:request_decode_time_seconds", "From the first token to the last.", decode);
  out.histogram("vllm:request_inference_time_seconds",
                "From the first step that computes a request to its last token.", inference);
  out.histogram("vllm:request_prompt_tokens", "Tokens of a request's prompts.", prompt_tokens);
  out.histogram("vllm:request_generation_tokens", "Tokens of a request's answers.",
                generation_tokens);
  out.histogram("vllm:request_max_num_generation_tokens",
                "Tokens of the longest of a request's answers.", most_generation_tokens);
  out.histogram("vllm:request_params_max_tokens", "max_tokens of a request.", max_tokens);
  out.histogram("vllm:request_params_n", "Answers that a request asks for.", answers);
  out.type("invar:requests_refused_total", "counter", "Requests that ended in an error.");
  for (const auto& [status, count] : refused)
    out.line("invar:requests_refused_total", static_cast<double>(count),
             fmt::format("status=\"{}\"", status));
}

std::string Metrics::text(const std::string& model, const BackendFacts& facts,
                          const BackendStats& stats, const StepTotals& steps, size_t connections,
                          size_t answers_now) const {
  Exposition out(fmt::format("engine=\"0\",model_name=\"{}\"", escaped_label(model)));
  print_engine(facts, stats, out);
  print_requests(out);
  print_steps(stats, steps, out);
  out.gauge("invar:connections", "Open connections.", static_cast<double>(connections));
  out.gauge("invar:answers", "Answers that are being made.", static_cast<double>(answers_now));
  return out.take() + process_metrics();
}

}  // namespace invar::server
