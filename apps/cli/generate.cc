// invar generate: text whose bits depend on the request alone, with its speed and its hash.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/input_file.h"
#include "base/timer.h"
#include "batch_file.h"
#include "command.h"
#include "engine/trace_file.h"
#include "frontend/constraint_compiler.h"
#include "frontend/openai.h"
#include "frontend/text_engine.h"
#include "help_format.h"
#include "model_sampling.h"
#include "session/adapter.h"
#include "session/sampling_defaults.h"
#include "weights/lora_adapter.h"

namespace invar::cli {

namespace {

struct GenerateFlags {
  ModelFlags model;
  EngineFlags engine;
  SamplingParams params;
  std::optional<std::string> prompt;
  std::string input, output, trace;
  int64_t trace_values_mib = 1024;
  std::string adapter;  // a directory, or empty
  std::vector<std::string> stop, choices;
  std::string regex, json_schema_file, grammar_file;
  bool has_length = false;      // --max-tokens is what the user asked for
  std::set<std::string> named;  // options
};

// Prints the text of one answer as it comes and remembers when; of several, only remembers.
class Printer final : public TextSink {
 public:
  explicit Printer(const GenerateFlags& flags)
      : quiet_(flags.model.json || flags.params.n > 1), answers_(std::max(flags.params.n, 1)) {}

  void expect(int64_t request, int choice) { choice_of_[request] = choice; }
  void on_text(int64_t, std::string_view piece, const TokenOutput&) override {
    if (tokens_++ == 0) first_token_ = timer_.seconds();
    if (!quiet_) write_out(piece);
  }
  void on_finished(int64_t request, const TextAnswer& answer) override {
    answers_[choice_of_.at(request)] = answer;
    seconds_ = timer_.seconds();
  }

  void on_step(const StepStats& step) {
    drafts_ += step.drafts;
    drafted_ += step.draft_tokens;
    accepted_ += step.accepted_tokens;
  }

  int32_t max_tokens = 0;  // what the answers are held to
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }
  // Tokens of a step of the model that checks drafts: its own one and those accepted.
  double tokens_a_step() const {
    return drafts_ > 0 ? 1 + static_cast<double>(accepted_) / static_cast<double>(drafts_) : 1.0;
  }
  std::span<const TextAnswer> answers() const { return answers_; }
  const TextAnswer& answer() const { return answers_[0]; }
  double first_token() const { return first_token_; }
  double decode_rate() const {
    return tokens_ > 1 ? (tokens_ - 1) / (seconds_ - first_token_) : 0.0;
  }

 private:
  bool quiet_;
  Timer timer_;
  int tokens_ = 0;
  int64_t drafts_ = 0, drafted_ = 0, accepted_ = 0;
  double first_token_ = 0, seconds_ = 0;
  std::map<int64_t, int> choice_of_;
  std::vector<TextAnswer> answers_;
};

// One token has no speed, and what memory could give it is not measured.
double share_of_bandwidth(const Printer& printer, Model& model) {
  const double rate = printer.decode_rate();
  if (rate <= 0) return 0;
  return rate * static_cast<double>(model.weight_bytes_per_token()) / measure_read_bandwidth(model);
}

// The parameters of the draws. A seed that signed integers have no room for is a text.
json::Value sampling_json(const SamplingParams& p) {
  json::Value v = defaults_json(p);
  if (p.presence_penalty != 0) v.set("presence_penalty", double{p.presence_penalty});
  if (p.frequency_penalty != 0) v.set("frequency_penalty", double{p.frequency_penalty});
  const auto seed = static_cast<int64_t>(p.seed);
  v.set("seed", seed >= 0 ? json::Value(seed) : json::Value(std::to_string(p.seed)));
  return v;
}

json::Value report(const Printer& printer, Model& model, const GenerateFlags& flags,
                   const Tokenizer& tokenizer) {
  const TextAnswer& a = printer.answer();
  json::Value v;
  v.set("text", a.text);
  v.set("finish_reason", name_of(a.finish));
  v.set("prompt_tokens", static_cast<int64_t>(a.prompt_tokens.size()));
  v.set("completion_tokens", static_cast<int64_t>(a.tokens.size()));
  v.set("max_tokens", printer.max_tokens);
  v.set("first_token_seconds", printer.first_token());
  v.set("decode_tokens_per_second", printer.decode_rate());
  v.set("share_of_read_bandwidth", share_of_bandwidth(printer, model));
  v.set("sampling", sampling_json(flags.params));
  if (printer.drafted() > 0) {
    v.set("draft_tokens", printer.drafted());
    v.set("accepted_tokens", printer.accepted());
    v.set("tokens_a_step", printer.tokens_a_step());
  }
  v.set("identity", model.identity());
  v.set("instruction_set", model.instruction_set());
  v.set("logits_hash", to_hex(a.logits_hash));
  if (flags.params.n > 1 || flags.params.logprobs || flags.params.prompt_logprobs) {
    const openai::Request request{.base = {.params = flags.params}};
    v.set("choices", *openai::answer_body(request, printer.answers(), tokenizer).find("choices"));
  }
  return v;
}

// The temperature of the answer, and of its other parameters those that filter or penalise.
std::string sampling_words(const SamplingParams& p, const ModelOptions& model) {
  if (p.temperature == 0) return "the most likely token (temperature 0)";
  std::string text = fmt::format("temperature {:g}", p.temperature);
  if (p.top_k > 0) text += fmt::format(", top_k {}", p.top_k);
  if (p.top_p < 1) text += fmt::format(", top_p {:g}", p.top_p);
  if (p.min_p > 0) text += fmt::format(", min_p {:g}", p.min_p);
  if (p.repetition_penalty != 1)
    text += fmt::format(", repetition_penalty {:g}", p.repetition_penalty);
  if (p.presence_penalty != 0) text += fmt::format(", presence_penalty {:g}", p.presence_penalty);
  if (p.frequency_penalty != 0)
    text += fmt::format(", frequency_penalty {:g}", p.frequency_penalty);
  const std::string from = find_sampling_defaults(model).from;
  return fmt::format("{}, seed {}{}", text, p.seed,
                     from == "none" ? "" : "; what no option says is of " + from);
}

void print_report(const json::Value& v, const Printer& printer, Model& model,
                  const GenerateFlags& flags) {
  const auto number = [&](const char* key) { return v.find(key)->as_number(); };
  if (printer.answers().size() > 1)
    for (size_t i = 0; i < printer.answers().size(); ++i)
      fmt::print("--- answer {}\n{}\n", i, printer.answers()[i].text);
  else
    fmt::print("\n\n");
  std::fflush(stdout);
  fmt::print(
      stderr,
      "loaded in {:.2f} s; {} + {} tokens, first after {:.3f} s, then {:.1f} tok/s ({:.0f} % of "
      "read bandwidth)\n",
      number("load_seconds"), v.find("prompt_tokens")->as_integer(),
      v.find("completion_tokens")->as_integer(), number("first_token_seconds"),
      number("decode_tokens_per_second"), 100 * number("share_of_read_bandwidth"));
  const std::string threads =
      model.ranks() == 1
          ? fmt::format("{} threads", model.pool().size())
          : fmt::format("{} ranks of {} threads", model.ranks(), model.threads_of_rank());
  if (printer.drafted() > 0)
    fmt::print(
        stderr, "drafts      {} of {} tokens accepted ({:.0f} %), {:.2f} tokens a step\n",
        printer.accepted(), printer.drafted(),
        100.0 * static_cast<double>(printer.accepted()) / static_cast<double>(printer.drafted()),
        printer.tokens_a_step());
  else if (!flags.engine.speculation.json.empty() || !flags.engine.speculation.method.empty())
    fmt::print(stderr, "drafts      none was proposed\n");
  fmt::print(stderr, "sampling    {}\narithmetic  {} on {}, {}\nlogits hash {}\n",
             sampling_words(flags.params, model.options()), model.identity(),
             model.instruction_set(), threads, to_hex(printer.answer().logits_hash));
}

// The description of a recording that `invar diff` prints.
json::Value describe_run(const GenerateFlags& flags, Model& model) {
  json::Value v;
  v.set("model", model.options().model);
  v.set("load_format", model.options().load_format);
  v.set("identity", model.identity());
  v.set("instruction_set", model.instruction_set());
  v.set("threads", model.pool().size());
  v.set("ranks", model.ranks());
  v.set("block_size", flags.engine.options.block_size);
  v.set("max_num_batched_tokens", flags.engine.options.scheduler.max_num_batched_tokens);
  return v;
}

void finish(TraceWriter& trace, const GenerateFlags& flags) {
  trace.finish();
  fmt::print(stderr, "trace       {}: {} records, {:.1f} MiB", flags.trace, trace.records(),
             static_cast<double>(trace.bytes()) / (1 << 20));
  if (trace.records_without_values() > 0)
    fmt::print(stderr, "; of the last {} only hashes, since --trace-values is {} MiB",
               trace.records_without_values(), flags.trace_values_mib);
  fmt::print(stderr, "\n");
}

std::shared_ptr<Constraint> constraint_of(const GenerateFlags& flags, const Tokenizer& tokenizer) {
  json::Value what;
  if (!flags.regex.empty()) what.set("regex", flags.regex);
  if (!flags.choices.empty()) {
    json::Array choices;
    for (const std::string& choice : flags.choices) choices.push_back(choice);
    what.set("choice", std::move(choices));
  }
  if (!flags.json_schema_file.empty()) what.set("json", json::parse_file(flags.json_schema_file));
  if (!flags.grammar_file.empty()) what.set("grammar", read_whole_file(flags.grammar_file));
  if (what.is_null()) return nullptr;
  check_form(what);
  return ConstraintCompiler(tokenizer).compile(what);
}

void answer_one(const GenerateFlags& flags, Request request, TextEngine& engine, Printer& printer) {
  request.prompt = engine.tokenizer().encode(*flags.prompt);
  request.stop = flags.stop;
  settle_length(request, flags.has_length, engine.engine());
  printer.max_tokens = request.params.max_tokens;
  request.constraint = constraint_of(flags, engine.tokenizer());
  for (; request.choice < flags.params.n; ++request.choice)
    printer.expect(engine.submit(request), request.choice);
  while (engine.step(printer)) printer.on_step(engine.engine().last_step());
}

int answer_file(const GenerateFlags& flags, TextEngine& engine) {
  BatchFile file{.input = flags.input,
                 .output = flags.output,
                 .defaults = flags.params,
                 .has_length = flags.has_length};
  std::optional<ChatTemplate> chat;
  try {
    chat = open_chat_template(engine.engine().model());
    file.chat = &*chat;
  } catch (const Error& error) {  // only lines with messages need it, and they say so
    file.no_chat = error.what();
  }
  return run_batch_file(file, engine);
}

// The prompt is easily taken for the argument without a name, which is the model.
std::string model_or_prompt(const std::string& word) {
  std::error_code ignored;
  if (word.empty() || std::filesystem::exists(word, ignored)) return {};
  return fmt::format("; {} is no model directory: to continue that text, say -p {}",
                     json::quoted(word), json::quoted(word));
}

int run_generate(GenerateFlags flags) {
  if (flags.prompt.has_value() != flags.input.empty())
    fail_usage("expected either --prompt TEXT or --input FILE, found {}{}",
               flags.prompt ? "both" : "neither",
               flags.prompt ? "" : model_or_prompt(flags.model.options.model));
  if (flags.prompt == "-") {
    flags.prompt.emplace(std::istreambuf_iterator<char>(std::cin),
                         std::istreambuf_iterator<char>());
    if (flags.prompt->ends_with('\n')) flags.prompt->pop_back();
  }
  if (flags.prompt && flags.prompt->empty())
    fail_usage("expected a --prompt of at least one character, found an empty one");
  if (!flags.adapter.empty() && !flags.input.empty())
    fail_usage("--lora goes with --prompt; a file of requests is answered by the model alone");
  if (flags.input.empty() != flags.output.empty()) fail_usage("--input and --output go together");
  if (flags.trace_values_mib < 0 || flags.trace_values_mib > 1 << 30)
    fail_usage("expected trace-values in MiB, 0 or more, found {}", flags.trace_values_mib);
  InstanceOptions options = instance_options(flags.model, flags.engine);
  options.engine.prompt_logprobs = flags.params.prompt_logprobs.has_value();
  const Timer load_timer;
  auto tokenizer_beside = open_tokenizer_beside(options.model);
  if (!flags.adapter.empty()) options.engine.adapters = {.most = 1, .most_rank = kMostAdapterRank};
  const auto model = open_with_progress(options);
  flags.params = with_model_sampling(flags.params, flags.named, model->options());
  const double load_seconds = load_timer.seconds();
  Request request{.params = flags.params};
  if (!flags.adapter.empty())
    request.adapter =
        open_adapter(flags.adapter, flags.adapter, model->spec(), model->adapter_user());
  const Tokenizer tokenizer = tokenizer_beside.get();
  add_end_tokens(request.params, *model, tokenizer);
  check_params(request, model->spec().vocab);  // before there is room for n answers
  Instance instance(options, model);
  say_context(instance);
  TextEngine text(instance.engine(), tokenizer);
  std::optional<TraceWriter> trace;
  if (!flags.trace.empty()) {
    trace.emplace(flags.trace, describe_run(flags, *model), flags.trace_values_mib << 20);
    instance.engine().set_trace(&*trace);
  }
  int status = 0;
  Printer printer(flags);
  if (flags.input.empty())
    answer_one(flags, std::move(request), text, printer);
  else
    status = answer_file(flags, text);
  if (trace) finish(*trace, flags);
  if (!flags.input.empty()) return status;

  json::Value v = report(printer, *model, flags, tokenizer);
  v.set("load_seconds", load_seconds);
  if (flags.model.json)
    fmt::print("{}\n", json::dump(v, 2));
  else
    print_report(v, printer, *model, flags);
  for (const TextAnswer& answer : printer.answers())
    if (answer.finish == FinishReason::failed) fail("the answer failed: {}", answer.error);
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("generate", "Continue a text, or answer a file of requests");
  auto flags = std::make_shared<GenerateFlags>();
  flags->params.max_tokens = 128;
  add_model_flags(*command, flags->model);
  add_engine_flags(*command, flags->engine);
  add_sampling_flags(*command, flags->params);
  command->add_option("-p,--prompt", flags->prompt,
                      "The text to continue; - is the standard input");
  command->add_option(
      "--lora", flags->adapter,
      "A low-rank adapter to compute with: a directory as PEFT saves it, or a GGUF file");
  command->add_option("--stop", flags->stop, "Text that ends the answer; may be repeated");
  command->add_flag("--ignore-eos", flags->params.ignore_eos,
                    "Continue after end-of-sequence tokens");
  command->add_option("-n,--n", flags->params.n, "Number of independently sampled answers")
      ->capture_default_str();
  command->add_option("--guided-regex", flags->regex,
                      "Constrain the answer to this regular expression");
  command->add_option("--guided-choice", flags->choices,
                      "Constrain the answer to one of these texts; may be repeated");
  command->add_option("--guided-json", flags->json_schema_file,
                      "Constrain the answer to the JSON schema in this file");
  command->add_option("--guided-grammar", flags->grammar_file,
                      "Constrain the answer to the grammar (GBNF) in this file");
  command->add_option("--logprobs", flags->params.logprobs,
                      "With --json: log-probabilities of each token and of the K most likely ones");
  command->add_option("--prompt-logprobs", flags->params.prompt_logprobs,
                      "The same for the prompt; lines of --input may then request it too");
  command->add_option_function<std::string>(
      "--logprobs-mode",
      [flags](const std::string& name) { flags->params.logprobs_mode = logprobs_mode_of(name); },
      "Their kind: raw_logprobs, scaled_logprobs, processed_logprobs, raw_logits or "
      "processed_logits");
  command->add_option("--input", flags->input,
                      "Requests, one JSON object a line (OpenAI batch format)");
  command->add_option("--output", flags->output, "File for the answers, one JSON object a line");
  command->add_option("--trace", flags->trace,
                      "Record the output of every operation in this file, for invar diff");
  command
      ->add_option("--trace-values", flags->trace_values_mib,
                   "MiB of values to record; beyond that, only hashes")
      ->capture_default_str();
  show_first(*command, {{"Prompt and answer",
                         {"--prompt", "--input", "--output", "--max-tokens", "--stop",
                          "--guided-json", "--lora", "--json"}},
                        {"Sampling", {"--temperature", "--top-p", "--top-k", "--seed"}},
                        {"Speed and memory",
                         {"--device", "--threads", "--tensor-parallel-size", "--max-model-len"}}});
  command->callback([&action, flags, command] {
    flags->has_length = command->count("--max-tokens") > 0;
    flags->named = named_options(*command);
    action = [flags] { return run_generate(*flags); };
  });
}

}  // namespace invar::cli
