#include "batch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "base/timer.h"
#include "command.h"
#include "frontend/failure.h"
#include "frontend/openai.h"

namespace invar::cli {

namespace {

struct Line {
  std::string custom_id, error;
  int status = 200;
  openai::Request request;
  std::vector<TextAnswer> answers;  // one for each choice
  size_t finished = 0;
};

openai::Endpoint endpoint_of(const json::Value& line, const json::Value& body) {
  const json::Value* url = line.find("url");
  if (!url) return body.find("messages") ? openai::Endpoint::chat : openai::Endpoint::completions;
  if (url->is_string() && url->as_string() == "/v1/chat/completions") return openai::Endpoint::chat;
  if (url->is_string() && url->as_string() == "/v1/completions")
    return openai::Endpoint::completions;
  fail_usage("expected the url /v1/completions or /v1/chat/completions, found {}",
             json::excerpt(*url));
}

openai::Request parse_line(const json::Value& line, const openai::Context& context) {
  const json::Value* body = line.find("body");
  if (!body || !body->is_object()) fail_usage("expected an object \"body\"");
  return openai::parse_request(*body, endpoint_of(line, *body), context);
}

// The end of the JSON string that begins at `at`, its quotes included; the text's end if it has
// none.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
  return std::min(at + 1, text.size());
}

// The custom_id of a line that is no JSON, so that its error can be told from others'; empty where
// it cannot be read. Strings and brackets before it must be sound, what comes behind need not be.
std::string custom_id_in(std::string_view line) {
  const auto skip_space = [&](size_t at) {
    return std::min(line.find_first_not_of(" \t\r", at), line.size());
  };
  int depth = 0;
  for (size_t at = 0, end; at < line.size(); at = end) {
    end = at + 1;
    depth += line[at] == '{' || line[at] == '[';
    depth -= line[at] == '}' || line[at] == ']';
    if (line[at] != '"') continue;
    end = end_of_string(line, at);
    if (depth != 1 || line.substr(at, end - at) != "\"custom_id\"") continue;
    const size_t colon = skip_space(end), value = skip_space(colon + 1);
    if (colon >= line.size() || line[colon] != ':' || value >= line.size() || line[value] != '"')
      continue;
    try {
      const auto text = line.substr(value, end_of_string(line, value) - value);
      return json::parse(text, "custom_id").as_string();
    } catch (const Error&) {  // cut, or not UTF-8
      return {};
    }
  }
  return {};
}

void read_custom_id(const json::Value& value, Line& line) {
  const json::Value* id = value.find("custom_id");
  if (!id) return;
  if (!id->is_string()) fail_usage("expected custom_id as a string, found {}", json::excerpt(*id));
  line.custom_id = id->as_string();
}

json::Value answer_line(const Line& line, size_t index, const Tokenizer& tokenizer) {
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
  json::Value response;
  response.set("status_code", 200);
  response.set("body", openai::answer_body(line.request, line.answers, tokenizer));
  out.set("response", std::move(response));
  out.set("error", nullptr);
  return out;
}

// The tokens of each of its prompts; where those were cut, an echo shows what is left of them.
std::vector<Shared<std::vector<int32_t>>> encode(openai::Request& request, TextEngine& engine) {
  std::vector<Shared<std::vector<int32_t>>> tokens;
  for (const openai::Prompt& prompt : request.prompts)
    tokens.push_back(
        openai::tokens_of(request, prompt, engine.tokenizer(), engine.engine().max_model_len()));
  if (request.truncate_prompt_tokens == 0) return tokens;
  request.prompts.clear();
  for (const auto& one : tokens) request.prompts.emplace_back(one.get());
  return tokens;
}

class LineCollector final : public TextSink {
 public:
  explicit LineCollector(std::vector<Line>& lines) : lines_(lines) {}

  // Submits every choice of a line, or none.
  void submit(TextEngine& engine, size_t index) {
    Line& line = lines_[index];
    std::vector<int64_t> ids;
    openai::Request& request = line.request;
    const std::vector<Shared<std::vector<int32_t>>> prompts = encode(request, engine);
    openai::settle_length(
        request,
        std::ranges::max(prompts, {}, [](const auto& prompt) { return prompt.size(); }).size(),
        engine.engine().max_model_len());
    check_params(request.base, engine.engine().model().spec().vocab);
    const auto n = static_cast<size_t>(request.base.params.n);
    try {
      for (size_t i = 0; i < request.answers(); ++i)
        ids.push_back(engine.submit(request.answer(i, prompts[i / n])));
    } catch (const Error&) {
      for (const int64_t id : ids) engine.abort(id);
      throw;
    }
    line.answers.resize(ids.size());
    for (size_t choice = 0; choice < ids.size(); ++choice) place_of_[ids[choice]] = {index, choice};
  }

  void on_text(int64_t, std::string_view, const TokenOutput&) override { ++tokens; }
  void on_finished(int64_t request, const TextAnswer& answer) override {
    const auto [index, choice] = place_of_.at(request);
    Line& line = lines_[index];
    line.answers[choice] = answer;
    if (answer.finish == FinishReason::failed && line.error.empty()) {
      const Failure failure = failure_of(answer.error);
      line.error = failure.message;
      line.status = failure.status;
      ++failed;
    }
    if (++line.finished == line.answers.size()) ++finished;
  }
  size_t tokens = 0, finished = 0, failed = 0;

 private:
  std::vector<Line>& lines_;
  std::map<int64_t, std::pair<size_t, size_t>> place_of_;  // line and choice of a request
};

}  // namespace

int run_batch_file(const BatchFile& file, TextEngine& engine) {
  std::istringstream input(read_whole_file(file.input));
  std::error_code none;
  if (std::filesystem::equivalent(file.input, file.output, none))
    fail_usage("--input and --output are the same file, {}", file.output);
  AtomicFile output(file.output);  // before the work: an output that cannot be is known at once

  const Model& model = engine.engine().model();
  ConstraintCompiler constraints(engine.tokenizer());
  const openai::Context context{.vocab = static_cast<int32_t>(model.spec().vocab),
                                .tokenizer = &engine.tokenizer(),
                                .end_tokens = end_tokens(model, engine.tokenizer()),
                                .defaults = file.defaults,
                                .chat = file.chat,
                                .no_chat = file.no_chat,
                                .clock = local_time,
                                .constraints = &constraints};
  std::vector<Line> lines;
  LineCollector collector(lines);
  size_t errors = 0, number = 0;
  for (std::string text; std::getline(input, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    lines.emplace_back();
    Line& line = lines.back();
    try {
      line.custom_id = custom_id_in(text);
      const json::Value value = json::parse(text, fmt::format("{}, line {}", file.input, number));
      read_custom_id(value, line);
      line.request = parse_line(value, context);
      line.request.has_length |= file.has_length;
      collector.submit(engine, lines.size() - 1);
    } catch (const Error& error) {
      line.error = error.what();
      line.status = 400;
      ++errors;
    }
  }
  if (lines.empty()) fail("{}: expected requests, one JSON object a line, found none", file.input);
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
  for (size_t i = 0; i < lines.size(); ++i)
    answers += json::dump(answer_line(lines[i], i, engine.tokenizer())) + '\n';
  output.write_at(0, std::as_bytes(std::span(answers)));
  output.commit();
  errors += collector.failed;
  fmt::print(stderr, "{} answers, {} errors, {} tokens, {:.0f} tok/s\n", lines.size() - errors,
             errors, collector.tokens, static_cast<double>(collector.tokens) / timer.seconds());
  return errors ? 1 : 0;
}

}  // namespace invar::cli
