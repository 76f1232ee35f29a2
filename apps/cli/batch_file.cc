#include "batch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/timer.h"
#include "command.h"

namespace invar::cli {

namespace {

struct Line {
  std::string custom_id, error;
  int status = 200;
  TextAnswer answer;
};

// Fields of a body that are understood. Others could change the answer, so they are refused.
constexpr std::string_view kFields[] = {
    "model", "prompt", "max_tokens", "min_tokens",         "ignore_eos",       "temperature",
    "top_k", "top_p",  "min_p",      "repetition_penalty", "presence_penalty", "frequency_penalty",
    "seed",  "stop"};

int64_t integer(const json::Value& value, std::string_view name, int64_t low, int64_t high) {
  if (!value.is_integer())
    fail_usage("expected {} as an integer, found {}", name, value.type_name());
  const int64_t found = value.as_integer();
  if (found < low || found > high)
    fail_usage("expected {} from {} to {}, found {}", name, low, high, found);
  return found;
}

TextRequest parse_request(const json::Value& line, const BatchFile& file, Model& model) {
  const json::Value* body = line.find("body");
  if (!body || !body->is_object()) fail_usage("expected an object \"body\"");
  for (const auto& [key, value] : body->as_object())
    if (std::find(std::begin(kFields), std::end(kFields), key) == std::end(kFields))
      fail_usage("the field {} of \"body\" is not supported", json::quoted(key));
  const json::Value* prompt = body->find("prompt");
  if (!prompt) fail_usage("expected \"prompt\" in \"body\"");
  TextRequest request{.params = file.defaults};
  if (prompt->is_string()) {
    request.prompt = prompt->as_string();
  } else if (prompt->is_array()) {
    std::vector<int32_t> ids;
    for (const json::Value& id : prompt->as_array())
      ids.push_back(static_cast<int32_t>(integer(id, "token ids", 0, model.spec().vocab - 1)));
    request.prompt = std::move(ids);
  } else {
    fail_usage("expected a prompt of text or token ids, found {}", prompt->type_name());
  }
  if (const auto* v = body->find("max_tokens"))
    request.params.max_tokens = static_cast<int32_t>(integer(*v, "max_tokens", 1, INT32_MAX));
  if (const auto* v = body->find("min_tokens"))
    request.params.min_tokens = static_cast<int32_t>(integer(*v, "min_tokens", 0, INT32_MAX));
  if (const auto* v = body->find("top_k"))
    request.params.top_k = static_cast<int32_t>(integer(*v, "top_k", -1, INT32_MAX));
  if (const auto* v = body->find("ignore_eos")) request.params.ignore_eos = v->as_bool();
  const auto number = [&](const char* name, double& value) {
    const json::Value* v = body->find(name);
    if (v && !v->is_number()) fail_usage("expected a number {}, found {}", name, v->type_name());
    if (v) value = v->as_number();
  };
  number("temperature", request.params.temperature);
  number("top_p", request.params.top_p);
  number("min_p", request.params.min_p);
  number("repetition_penalty", request.params.repetition_penalty);
  number("presence_penalty", request.params.presence_penalty);
  number("frequency_penalty", request.params.frequency_penalty);
  if (const auto* v = body->find("seed"))
    request.params.seed = static_cast<uint64_t>(integer(*v, "seed", 0, INT64_MAX));
  if (const auto* v = body->find("stop")) {
    if (v->is_string())
      request.stop = {v->as_string()};
    else
      for (const json::Value& stop : v->as_array()) request.stop.push_back(stop.as_string());
  }
  add_end_tokens(request.params, model);
  return request;
}

json::Value answer_line(const Line& line, size_t index) {
  json::Value out;
  out.set("id", fmt::format("batch_req_{}", index + 1));
  out.set("custom_id", line.custom_id);
  if (!line.error.empty()) {
    json::Value error;
    error.set("message", line.error);
    error.set("code", line.status);
    out.set("response", nullptr);
    out.set("error", std::move(error));
    return out;
  }
  json::Value choice, usage, body, response;
  choice.set("index", 0);
  choice.set("text", line.answer.text);
  choice.set("finish_reason", name_of(line.answer.finish));
  usage.set("prompt_tokens", static_cast<int64_t>(line.answer.prompt_tokens.size()));
  usage.set("completion_tokens", static_cast<int64_t>(line.answer.tokens.size()));
  usage.set("total_tokens",
            static_cast<int64_t>(line.answer.prompt_tokens.size() + line.answer.tokens.size()));
  body.set("object", "text_completion");
  body.set("choices", json::Array{std::move(choice)});
  body.set("usage", std::move(usage));
  body.set("logits_hash", to_hex(line.answer.logits_hash));
  response.set("status_code", 200);
  response.set("body", std::move(body));
  out.set("response", std::move(response));
  out.set("error", nullptr);
  return out;
}

class Collector final : public TextSink {
 public:
  explicit Collector(std::vector<Line>& lines) : lines_(lines) {}
  void expect(int64_t request, size_t line) { line_of_[request] = line; }
  void on_text(int64_t, std::string_view, const TokenOutput&) override { ++tokens; }
  void on_finished(int64_t request, const TextAnswer& answer) override {
    Line& line = lines_[line_of_.at(request)];
    line.answer = answer;
    if (answer.finish == FinishReason::failed) {
      line.error = "a key, a value or a logit was not finite";
      line.status = 500;
      ++failed;
    }
    ++finished;
  }
  size_t tokens = 0, finished = 0, failed = 0;

 private:
  std::vector<Line>& lines_;
  std::map<int64_t, size_t> line_of_;
};

}  // namespace

int run_batch_file(const BatchFile& file, TextEngine& engine) {
  std::ifstream input(file.input);
  if (!input) fail("{}: cannot be opened", file.input);
  std::error_code none;
  if (std::filesystem::equivalent(file.input, file.output, none))
    fail_usage("--input and --output are the same file, {}", file.output);
  AtomicFile output(file.output);  // before the work: an output that cannot be is known at once

  std::vector<Line> lines;
  Collector collector(lines);
  size_t errors = 0, number = 0;
  for (std::string text; std::getline(input, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    lines.emplace_back();
    Line& line = lines.back();
    try {
      const json::Value value = json::parse(text, fmt::format("{}, line {}", file.input, number));
      if (const auto* id = value.find("custom_id")) line.custom_id = id->as_string();
      const int64_t request = engine.submit(parse_request(value, file, engine.engine().model()));
      collector.expect(request, lines.size() - 1);
    } catch (const Error& error) {
      line.error = error.what();
      line.status = 400;
      ++errors;
    }
  }
  ProgressLine progress;
  Timer timer;
  const size_t total = lines.size() - errors;
  while (engine.step(collector)) {
    const double rate = static_cast<double>(collector.tokens) / timer.seconds();
    progress.show(fmt::format("{} of {} answers, {} tokens, {:.0f} tok/s, {} running",
                              collector.finished, total, collector.tokens, rate,
                              engine.engine().last_step().running));
  }
  progress.clear();
  std::string answers;
  for (size_t i = 0; i < lines.size(); ++i) answers += json::dump(answer_line(lines[i], i)) + '\n';
  output.write_at(0, std::as_bytes(std::span(answers)));
  output.commit();
  errors += collector.failed;
  fmt::print(stderr, "{} answers, {} errors, {} tokens, {:.0f} tok/s\n", lines.size() - errors,
             errors, collector.tokens, static_cast<double>(collector.tokens) / timer.seconds());
  return errors ? 1 : 0;
}

}  // namespace invar::cli
