// invar bench serve: load on any OpenAI-compatible server, with the options of vLLM's benchmark of
// that name.
#include <curl/curl.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <sstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "cli/command.h"
#include "load_client.h"
#include "serve_metrics.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::cli {

namespace {

struct BenchServeFlags {
  std::string url = "http://127.0.0.1:8000", endpoint, model, api_key, tokenizer;
  bool chat = false, ignore_eos = false, json = false, detailed = false;
  int num_prompts = 1000, warmups = 0, max_concurrency = 0, same_prompt = 0;
  int input_len = 1024, output_len = 128;
  double range_ratio = 0, request_rate = std::numeric_limits<double>::infinity(), burstiness = 1;
  double timeout = 600, temperature = 0;
  std::optional<double> top_p, min_p;
  std::optional<int> top_k;
  uint64_t seed = 0;
  std::string extra_body, result, html;
  std::vector<std::string> goodput;
  std::vector<double> percentiles = {50, 90, 99};
};

// Bodies of requests and when to send them. Random choices depend on --seed alone.
class Workload {
 public:
  Workload(const BenchServeFlags& flags, std::string model)
      : flags_(flags), model_(std::move(model)), random_(flags.seed) {
    if (!flags.tokenizer.empty()) tokenizer_ = Tokenizer::load(flags.tokenizer);
    std::istringstream source(built_in_text());
    for (std::string word; source >> word;) words_.push_back(word);
    if (!flags.extra_body.empty()) extra_ = json::parse(flags.extra_body, "--extra-body");
    if (!extra_.is_null() && !extra_.is_object())
      fail_usage("expected --extra-body as a JSON object, found {}", extra_.type_name());
    same_body_ = body(flags.seed);
  }

  std::vector<LoadRequest> requests(int count) {
    std::vector<LoadRequest> all(static_cast<size_t>(count));
    std::gamma_distribution<double> pause(flags_.burstiness,
                                          1 / (flags_.request_rate * flags_.burstiness));
    double start = 0;
    for (int i = 0; i < count; ++i) {
      LoadRequest& request = all[static_cast<size_t>(i)];
      request.start = start;
      if (std::isfinite(flags_.request_rate)) start += pause(random_);
      request.body =
          asks_the_same(i, count) ? same_body_ : body(flags_.seed + 1 + random_() % 1000);
    }
    return all;
  }

  // `same_prompt` of `count` requests, evenly spread among the others.
  bool asks_the_same(int64_t index, int64_t count) const {
    return (index + 1) * flags_.same_prompt / count > index * flags_.same_prompt / count;
  }

 private:
  int length(int middle) {
    const auto span = static_cast<int>(middle * flags_.range_ratio);
    return std::max(
        1, middle - span + static_cast<int>(random_() % (2 * static_cast<uint64_t>(span) + 1)));
  }

  // As token ids where the tokenizer is known; else text with about as many tokens as words.
  json::Value prompt(int tokens) {
    if (!tokenizer_) {
      std::string text;
      for (int i = 0; i < tokens; ++i) text += words_[random_() % words_.size()] + " ";
      return text;
    }
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (int32_t& id : ids)
      id = static_cast<int32_t>(random_() % static_cast<uint64_t>(tokenizer_->vocab_size()));
    if (flags_.chat) return tokenizer_->decode(ids);
    json::Array list;
    for (const int32_t id : ids) list.push_back(static_cast<int64_t>(id));
    return list;
  }

  std::string body(uint64_t seed) {
    json::Value v;
    v.set("model", model_);
    if (flags_.chat)
      v.set("messages", json::Array{json::Object{{"role", "user"},
                                                 {"content", prompt(length(flags_.input_len))}}});
    else
      v.set("prompt", prompt(length(flags_.input_len)));
    v.set(flags_.chat ? "max_completion_tokens" : "max_tokens", length(flags_.output_len));
    v.set("temperature", flags_.temperature);
    if (flags_.top_p) v.set("top_p", *flags_.top_p);
    if (flags_.min_p) v.set("min_p", *flags_.min_p);
    if (flags_.top_k) v.set("top_k", *flags_.top_k);
    v.set("seed", seed);
    if (flags_.ignore_eos) v.set("ignore_eos", true);
    v.set("stream", true);
    v.set("stream_options", json::Object{{"include_usage", true}});
    if (!extra_.is_null())
      for (const auto& [key, value] : extra_.as_object()) v.set(key, value);
    return json::dump(v);
  }

  const BenchServeFlags& flags_;
  std::string model_;
  std::mt19937_64 random_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<std::string> words_;
  json::Value extra_;
  std::string same_body_;
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// {"ttft:200", "tpot:50"} as milliseconds by name.
std::map<std::string, double> objectives(const std::vector<std::string>& goodput) {
  std::map<std::string, double> slo;
  for (const std::string& one : goodput) {
    const size_t colon = one.find(':');
    const std::string name = one.substr(0, colon);
    char* end = nullptr;
    const double ms = colon == std::string::npos ? 0 : std::strtod(one.c_str() + colon + 1, &end);
    if (!end || *end || !(ms > 0) || (name != "ttft" && name != "tpot" && name != "e2el"))
      fail_usage("expected --goodput as ttft:MS, tpot:MS or e2el:MS, found {}", json::quoted(one));
    slo[name] = ms;
  }
  return slo;
}

void check(const BenchServeFlags& flags) {
  if (flags.num_prompts < 1) fail_usage("expected 1 or more prompts, found {}", flags.num_prompts);
  if (flags.input_len < 1 || flags.output_len < 1)
    fail_usage("expected lengths of 1 or more, found {} and {}", flags.input_len, flags.output_len);
  if (!(flags.range_ratio >= 0 && flags.range_ratio < 1))
    fail_usage("expected a range ratio from 0 to below 1, found {}", flags.range_ratio);
  if (!(flags.request_rate > 0) || !(flags.burstiness > 0))
    fail_usage("expected a request rate and a burstiness above 0, found {} and {}",
               flags.request_rate, flags.burstiness);
  if (flags.same_prompt < 0 || flags.same_prompt > flags.num_prompts)
    fail_usage("expected --same-prompt from 0 to the number of prompts, {}, found {}",
               flags.num_prompts, flags.same_prompt);
  for (const double p : flags.percentiles)
    if (!(p >= 0 && p <= 100)) fail_usage("expected percentiles from 0 to 100, found {}", p);
}

LoadTarget target_of(const BenchServeFlags& flags) {
  LoadTarget target{.url = flags.url, .api_key = flags.api_key, .timeout = flags.timeout};
  while (target.url.ends_with('/')) target.url.pop_back();
  if (target.url.ends_with("/v1")) target.url.resize(target.url.size() - 3);
  if (target.url.find("://") == std::string::npos) target.url = "http://" + target.url;
  if (const char* key = std::getenv("OPENAI_API_KEY"); key && target.api_key.empty())
    target.api_key = key;
  return target;
}

std::string first_model(LoadTarget target) {
  target.url += "/v1/models";
  const json::Value models = json::parse(http_get(target), target.url);
  const json::Value* data = models.find("data");
  const json::Value* id = data && data->is_array() && !data->as_array().empty()
                              ? data->as_array()[0].find("id")
                              : nullptr;
  if (!id) fail("{}: expected a list of models, found {}", target.url, json::excerpt(models));
  return id->as_string();
}

// The seconds that the server's GPU was idle, by its metrics; 0 where they do not say it.
double device_idle_seconds(LoadTarget target) {
  constexpr std::string_view kName = "\ninvar:device_idle_seconds_total{";
  target.url += "/metrics";
  std::string text;
  try {
    text = http_get(target);
  } catch (const Error&) {
    return 0;  // another server need not have them
  }
  const size_t name = text.find(kName), labels = text.find("} ", name);
  if (name == std::string::npos || labels == std::string::npos) return 0;
  return std::strtod(text.c_str() + labels + 2, nullptr);
}

ServeLoad measure(const BenchServeFlags& flags, LoadTarget target, const std::string& model) {
  const LoadTarget server = target;
  target.url += flags.endpoint;
  Workload workload(flags, model);
  ProgressLine progress(!flags.json);
  if (flags.warmups > 0) run_load(target, workload.requests(flags.warmups), 1, [](size_t) {});
  const std::vector<LoadRequest> requests = workload.requests(flags.num_prompts);
  const double idle = device_idle_seconds(server), cpu = cpu_seconds();
  const std::vector<LoadResult> results =
      run_load(target, requests, flags.max_concurrency, [&](size_t ended) {
        progress.show_share("load", static_cast<double>(ended),
                            static_cast<double>(requests.size()), "requests");
      });
  ServeLoad load{.client_cpu = cpu_seconds() - cpu,
                 .device_idle = device_idle_seconds(server) - idle,
                 .slo = objectives(flags.goodput),
                 .percentiles = flags.percentiles};
  for (size_t i = 0; i < results.size(); ++i) {
    load.duration = std::max(load.duration, results[i].ended);
    load.answers.push_back(read_answer(results[i]));
    load.answers.back().same_prompt =
        workload.asks_the_same(static_cast<int64_t>(i), flags.num_prompts);
  }
  return load;
}

json::Value about(const BenchServeFlags& flags, const std::string& model) {
  json::Value v;
  v.set("url", flags.url + flags.endpoint);
  v.set("model", model);
  v.set("num_prompts", flags.num_prompts);
  v.set("input_len", flags.input_len);
  v.set("output_len", flags.output_len);
  v.set("range_ratio", flags.range_ratio);
  v.set("request_rate",
        std::isfinite(flags.request_rate) ? json::Value(flags.request_rate) : json::Value("inf"));
  v.set("burstiness", flags.burstiness);
  v.set("max_concurrency", flags.max_concurrency ? json::Value(flags.max_concurrency) : nullptr);
  v.set("temperature", flags.temperature);
  v.set("seed", flags.seed);
  return v;
}

void print(const ServeLoad& load, const json::Value& v) {
  const auto number = [&](const std::string& key) { return v.find(key)->as_number(); };
  fmt::print("{} complete, {} failed in {:.2f} s; the client used {:.2f} s of CPU\n",
             number("completed"), number("failed"), load.duration, load.client_cpu);
  if (load.device_idle > 0)
    fmt::print("the server's GPU was idle between steps for {:.2f} % of that time\n",
               100 * load.device_idle / load.duration);
  fmt::print(
      "{:.0f} tokens in, {:.0f} out: {:.2f} requests/s, {:.1f} tok/s out, {:.1f} tok/s in all\n",
      number("total_input_tokens"), number("total_output_tokens"), number("request_throughput"),
      number("output_throughput"), number("total_token_throughput"));
  if (!load.slo.empty()) fmt::print("goodput {:.2f} requests/s\n", number("request_goodput"));
  fmt::print("{:26}{:>10}", "milliseconds", "mean");
  for (const double p : load.percentiles) fmt::print("{:>10}", fmt::format("P{:g}", p));
  fmt::print("\n");
  for (const Series& series : series_of(load)) {
    fmt::print("{:26}{:10.2f}", series.title, number(fmt::format("mean_{}_ms", series.name)));
    for (const double p : load.percentiles)
      fmt::print("{:10.2f}", number(fmt::format("p{:g}_{}_ms", p, series.name)));
    fmt::print("\n");
  }
  if (const Uniqueness u = uniqueness(load.answers); u.asked > 0) {
    fmt::print("{} answers to one prompt among the others: {} unique, the commonest {} times",
               u.asked, u.unique, u.commonest);
    if (u.first_difference) fmt::print(", the first {} bytes alike", *u.first_difference);
    fmt::print("\n");
  }
  std::map<std::string, int> errors;
  for (const ServeAnswer& answer : load.answers)
    if (!answer.error.empty()) ++errors[answer.error];
  for (const auto& [error, count] : errors) fmt::print(stderr, "{} times: {}\n", count, error);
}

int run_bench_serve(BenchServeFlags flags) {
  check(flags);
  objectives(flags.goodput);
  if (flags.endpoint.empty())
    flags.endpoint = flags.chat ? "/v1/chat/completions" : "/v1/completions";
  curl_global_init(CURL_GLOBAL_DEFAULT);
  const LoadTarget target = target_of(flags);
  flags.url = target.url;
  const std::string model = flags.model.empty() ? first_model(target) : flags.model;
  const ServeLoad load = measure(flags, target, model);
  const json::Value metrics = metrics_of(load, flags.detailed);
  json::Value report = about(flags, model);
  for (const auto& [key, value] : metrics.as_object()) report.set(key, value);
  if (!flags.result.empty()) write_file_atomically(flags.result, json::dump(report, 2) + "\n");
  if (!flags.html.empty())
    write_file_atomically(flags.html, serve_page(load, about(flags, model), metrics));
  if (flags.json)
    fmt::print("{}\n", json::dump(report, 2));
  else
    print(load, metrics);
  return metrics.find("failed")->as_integer() == 0 ? 0 : 1;
}

void add_load_flags(CLI::App& command, BenchServeFlags& f) {
  command.add_option("--num-prompts", f.num_prompts, "Number of requests")->capture_default_str();
  command
      .add_option("--request-rate", f.request_rate, "Requests per second; inf sends all at once")
      ->capture_default_str();
  command
      .add_option("--burstiness", f.burstiness,
                  "Shape of the gamma distribution of the gaps; 1 is a Poisson process")
      ->capture_default_str();
  command
      .add_option("--max-concurrency", f.max_concurrency,
                  "Most concurrent requests; 0 means no limit")
      ->capture_default_str();
  command.add_option("--num-warmups", f.warmups, "Requests before the measurement")
      ->capture_default_str();
  command.add_option("--input-len,--random-input-len", f.input_len, "Tokens of a prompt")
      ->capture_default_str();
  command.add_option("--output-len,--random-output-len", f.output_len, "Tokens of an answer")
      ->capture_default_str();
  command
      .add_option("--random-range-ratio", f.range_ratio,
                  "Lengths vary uniformly by this fraction, up and down")
      ->capture_default_str();
  command
      .add_option("--same-prompt", f.same_prompt,
                  "Send this many requests with one prompt and count their different answers")
      ->capture_default_str();
  command.add_option("--seed", f.seed, "Seed of all random choices and of the requests")
      ->capture_default_str();
}

void add_request_flags(CLI::App& command, BenchServeFlags& f) {
  command.add_option("--temperature", f.temperature, "Of every request")->capture_default_str();
  command.add_option("--top-p", f.top_p, "Of every request");
  command.add_option("--top-k", f.top_k, "Of every request");
  command.add_option("--min-p", f.min_p, "Of every request");
  command.add_flag("--ignore-eos", f.ignore_eos, "Answers always reach their full length");
  command.add_option("--extra-body", f.extra_body,
                     "A JSON object that is merged into every request");
}

}  // namespace

void add_bench_serve(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "serve", "Put load on an OpenAI-compatible server and measure what its clients see");
  auto f = std::make_shared<BenchServeFlags>();
  command->add_option("--url,--base-url", f->url, "URL of the server")->capture_default_str();
  command->add_option("--endpoint", f->endpoint,
                      "Path (default: /v1/completions or /v1/chat/completions)");
  command
      ->add_option_function<std::string>(
          "--backend", [f](const std::string& name) { f->chat = name == "openai-chat"; },
          "openai (completions) or openai-chat")
      ->check(CLI::IsMember({"openai", "openai-chat", "vllm"}));
  command->add_option("--model", f->model, "Model name (default: the server's first)");
  command->add_option("--tokenizer", f->tokenizer,
                      "A model directory: makes prompts of exactly the requested length");
  command->add_option("--api-key", f->api_key,
                      "API key (default: OPENAI_API_KEY of the environment)");
  command->add_option("--request-timeout", f->timeout, "Timeout of a request in seconds")
      ->capture_default_str();
  add_load_flags(*command, *f);
  add_request_flags(*command, *f);
  command->add_option("--goodput", f->goodput,
                      "Count requests that meet all of these limits: ttft:MS tpot:MS e2el:MS");
  command->add_option("--metric-percentiles", f->percentiles, "Percentiles to show")
      ->delimiter(',');
  command->add_option("--result-filename", f->result, "Write the result as JSON");
  command->add_flag("--save-detailed", f->detailed, "Also save every request's numbers and text");
  command->add_option("--html", f->html, "Write a page with the distributions (HTML)");
  command->add_flag("--json", f->json, "Print the result as JSON");
  command->callback([&action, f] { action = [f] { return run_bench_serve(*f); }; });
}

}  // namespace invar::cli
