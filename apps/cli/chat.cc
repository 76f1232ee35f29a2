// invar chat: a conversation with a model, on a terminal or through a pipe.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/timer.h"
#include "command.h"
#include "frontend/chat_template.h"
#include "frontend/text_engine.h"
#include "line_reader.h"
#include "model_sampling.h"
#include "sampling/stop_strings.h"
#include "tokenizer/utf8.h"
#include "word_wrap.h"

namespace invar::cli {

namespace {

struct ChatFlags {
  ModelFlags model;
  EngineFlags engine;
  SamplingParams params;
  std::string system, template_file;
  std::vector<std::string> stop;
  bool has_length = false;      // --max-tokens is what the user asked for
  std::set<std::string> named;  // options
};

constexpr const char* kHelp =
    "  /reset   forget the conversation\n"
    "  /help    show this\n"
    "  /exit    leave (also Ctrl-D)\n"
    "  Ctrl-C   stop an answer; what it said stays\n"
    "  Up, Down, Ctrl-R   earlier lines\n";

volatile std::sig_atomic_t interrupted = 0;

// While it lives Ctrl-C sets `interrupted` and wakes a waiting read.
class InterruptScope {
 public:
  InterruptScope() {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = 1; };
    sigaction(SIGINT, &action, &old_);
  }
  ~InterruptScope() { sigaction(SIGINT, &old_, nullptr); }

 private:
  struct sigaction old_ {};
};

// One answer as it comes.
class AnswerSink final : public TextSink {
 public:
  // With `columns` of a terminal lines break between words; 0: the text as it is.
  AnswerSink(bool quiet, int columns) : quiet_(quiet), wraps_(columns > 0), wrap_(columns) {}

  void on_text(int64_t, std::string_view piece, const TokenOutput& token) override {
    if (tokens++ == 0) first_token_ = timer_.seconds();
    hash = token.logits_hash;
    text += piece;
    seconds_ = timer_.seconds();
    if (!quiet_) write_out(wraps_ ? wrap_.add(piece) : piece);
  }
  // Shows what is left and ends the line.
  void end() {
    if (!quiet_) write_out((wraps_ ? wrap_.finish() : std::string()) + "\n");
  }
  void on_finished(int64_t, const TextAnswer& answer) override { finish = answer.finish; }
  double decode_seconds() const { return tokens > 1 ? seconds_ - first_token_ : 0.0; }

  std::string text;
  int tokens = 0;
  Digest hash{};
  FinishReason finish = FinishReason::none;  // none: interrupted

 private:
  bool quiet_, wraps_;
  WordWrap wrap_;
  Timer timer_;
  double first_token_ = 0, seconds_ = 0;
};

class Chat {
 public:
  // `asked`: what all answers have in common, checked.
  Chat(const ChatFlags& flags, Request asked, TextEngine& engine, const ChatTemplate& chat)
      : flags_(flags),
        asked_(std::move(asked)),
        engine_(engine),
        template_(chat),
        quiet_(flags.model.json),
        terminal_(isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !quiet_) {
    reset();
  }

  // Reads turns until the input ends. Returns the exit status.
  int run() {
    if (terminal_) use_utf8();
    const InterruptScope interrupts;
    LineReader reader(terminal_, terminal_ ? state_file("chat_history") : "");
    if (terminal_) banner();
    std::string line;
    while (true) {
      std::fflush(stdout);
      interrupted = 0;
      const LineReader::Result result = reader.read("> ", line);
      if (result == LineReader::kEnd) break;
      if (result == LineReader::kInterrupted) {
        fmt::print(stderr, "\n/exit leaves\n");
        continue;
      }
      if (line.ends_with('\r')) line.pop_back();
      if (line == "/exit") break;
      if (line == "/reset")
        reset();
      else if (line.starts_with('/') && terminal_)
        fmt::print(stderr, "{}", kHelp);
      else if (!line.empty())
        turn(line);
    }
    if (terminal_) fmt::print("\n");
    report();
    return errors_ ? 1 : 0;
  }

 private:
  void banner() const {
    const Model& model = engine_.engine().model();
    fmt::print(stderr, "{}\n{} on {}, context {} tokens\n/help lists the commands\n\n",
               model.options().model, model.identity(), model.instruction_set(),
               engine_.engine().max_model_len());
  }

  void reset() {
    messages_.clear();
    if (!flags_.system.empty()) add("system", flags_.system);
  }
  void add(const char* role, const std::string& content) {
    messages_.push_back(json::Object{{"role", role}, {"content", content}});
  }

  // One question and its answer. What goes wrong is said and the question forgotten.
  void turn(const std::string& line) {
    const size_t before = messages_.size();
    try {
      if (const size_t at = utf8::find_invalid(line); at != std::string::npos)
        fail_usage("expected UTF-8, found a byte at {} that is not", at);
      add("user", line);
      answer();
    } catch (const Error& error) {
      messages_.resize(before);
      ++errors_;
      std::fflush(stdout);
      fmt::print(stderr, "invar: {}\n", error.what());
    }
  }

  void answer() {
    const std::string prompt = template_.render({.messages = messages_}, local_time);
    Request request = asked_;
    request.prompt = engine_.tokenizer().encode(prompt, {.add_special_tokens = false});
    settle_length(request, flags_.has_length, engine_.engine());
    AnswerSink sink(quiet_, terminal_ ? terminal_columns() : 0);
    const int64_t id = engine_.submit(std::move(request));
    while (sink.finish == FinishReason::none && !interrupted && engine_.step(sink)) {
    }
    if (sink.finish == FinishReason::none) engine_.abort(id);
    sink.end();
    if (sink.finish == FinishReason::failed)
      fail("the answer failed: a key, a value or a logit was not finite");
    add("assistant", sink.text);
    remember(sink);
  }

  void remember(const AnswerSink& sink) {
    json::Value v;
    v.set("completion_tokens", sink.tokens);
    v.set("finish_reason",
          sink.finish == FinishReason::none ? "interrupted" : name_of(sink.finish));
    v.set("logits_hash", to_hex(sink.hash));
    answers_.push_back(std::move(v));
    tokens_ += sink.tokens;
    decoded_ += std::max(0, sink.tokens - 1);
    seconds_ += sink.decode_seconds();
  }

  void report() const {
    const Model& model = engine_.engine().model();
    const double rate = seconds_ > 0 ? decoded_ / seconds_ : 0.0;
    if (quiet_) {
      json::Value v;
      v.set("messages", messages_);
      v.set("answers", answers_);
      v.set("decode_tokens_per_second", rate);
      v.set("identity", model.identity());
      v.set("instruction_set", model.instruction_set());
      fmt::print("{}\n", json::dump(v, 2));
      return;
    }
    std::fflush(stdout);
    fmt::print(stderr, "{} answers, {} tokens, {:.1f} tok/s; {} on {}\n", answers_.size(), tokens_,
               rate, model.identity(), model.instruction_set());
    if (!answers_.empty())
      fmt::print(stderr, "logits hash of the last answer {}\n",
                 answers_.back().find("logits_hash")->as_string());
  }

  const ChatFlags& flags_;
  const Request asked_;
  TextEngine& engine_;
  const ChatTemplate& template_;
  bool quiet_, terminal_;
  json::Array messages_, answers_;
  int64_t tokens_ = 0, decoded_ = 0;
  double seconds_ = 0;
  int errors_ = 0;
};

int run_chat(ChatFlags flags) {
  if (const size_t at = utf8::find_invalid(flags.system); at != std::string::npos)
    fail_usage("expected --system as UTF-8, found a byte at {} that is not", at);
  const InstanceOptions options = instance_options(flags.model, flags.engine);
  auto tokenizer_beside = open_tokenizer_beside(options.model);
  const auto model = open_with_progress(options);
  flags.params = with_model_sampling(flags.params, flags.named, model->options());
  Request asked{.params = flags.params, .stop = flags.stop};
  const Tokenizer tokenizer = tokenizer_beside.get();
  add_end_tokens(asked.params, *model, tokenizer);
  check_params(asked, model->spec().vocab);
  const ChatTemplate chat = open_chat_template(*model, flags.template_file);
  Instance instance(options, model);
  say_context(instance);
  TextEngine text(instance.engine(), tokenizer);
  if (model->options().load_format != "auto")
    fmt::print(stderr, "the model has random weights: its answers mean nothing\n");
  return Chat(flags, std::move(asked), text, chat).run();
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("chat", "Hold a conversation with a model; /help lists its commands");
  auto flags = std::make_shared<ChatFlags>();
  flags->params.max_tokens = 512;
  add_model_flags(*command, flags->model);
  add_engine_flags(*command, flags->engine);
  add_sampling_flags(*command, flags->params);
  command->add_option("--system", flags->system, "System message of the conversation");
  command->add_option("--chat-template", flags->template_file,
                      "Jinja file to use instead of the model's chat template");
  command->add_option("--stop", flags->stop, "Text that ends an answer; may be repeated");
  command->add_flag("--ignore-eos", flags->params.ignore_eos,
                    "Continue after end-of-sequence tokens");
  command->callback([&action, flags, command] {
    flags->has_length = command->count("--max-tokens") > 0;
    flags->named = named_options(*command);
    action = [flags] { return run_chat(*flags); };
  });
}

}  // namespace invar::cli
