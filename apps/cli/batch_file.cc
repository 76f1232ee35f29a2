#include "batch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>

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

TextRequest parse_request(const json::Value& line, const BatchFile& file, Model& model) {
  const json::Value* body = line.find("body");
  if (!body || !body->is_object()) fail_usage("expected an object \"body\"");
  const json::Value* prompt = body->find("prompt");
  if (!prompt) fail_usage("expected \"prompt\" in \"body\"");
  TextRequest request{.params = file.defaults};
  if (prompt->is_string()) {
    request.prompt = prompt->as_string();
  } else {
    std::vector<int32_t> ids;
    for (const json::Value& id : prompt->as_array())
      ids.push_back(static_cast<int32_t>(id.as_integer()));
    request.prompt = std::move(ids);
  }
  if (const auto* v = body->find("max_tokens"))
    request.params.max_tokens = static_cast<int>(v->as_integer());
  if (const auto* v = body->find("temperature")) request.params.temperature = v->as_number();
  if (const auto* v = body->find("seed"))
    request.params.seed = static_cast<uint64_t>(v->as_integer());
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
    }
    ++finished;
  }
  size_t tokens = 0, finished = 0;

 private:
  std::vector<Line>& lines_;
  std::map<int64_t, size_t> line_of_;
};

}  // namespace

int run_batch_file(const BatchFile& file, TextEngine& engine) {
  std::ifstream input(file.input);
  if (!input) fail("{}: cannot be opened", file.input);
  std::ofstream output(file.output);
  if (!output) fail("{}: cannot be written", file.output);

  std::vector<Line> lines;
  Collector collector(lines);
  size_t errors = 0;
  for (std::string text; std::getline(input, text);) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    lines.emplace_back();
    Line& line = lines.back();
    try {
      const json::Value value =
          json::parse(text, fmt::format("{}, line {}", file.input, lines.size()));
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
  for (size_t i = 0; i < lines.size(); ++i) output << json::dump(answer_line(lines[i], i)) << '\n';
  if (!output.flush()) fail("{}: cannot be written", file.output);
  fmt::print(stderr, "{} answers, {} errors, {} tokens, {:.0f} tok/s\n", collector.finished, errors,
             collector.tokens, static_cast<double>(collector.tokens) / timer.seconds());
  return errors ? 1 : 0;
}

}  // namespace invar::cli
