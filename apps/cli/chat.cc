// invar chat: a conversation with a model, on a terminal or through a pipe.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>

#include "base/error.h"
#include "chat_answer.h"
#include "chat_settings.h"
#include "command.h"
#include "frontend/chat_template.h"
#include "frontend/text_engine.h"
#include "frontend/thoughts.h"
#include "help_format.h"
#include "line_reader.h"
#include "model_sampling.h"
#include "sampling/stop_strings.h"
#include "tokenizer/utf8.h"

namespace invar::cli {

namespace {

struct ChatFlags {
  ModelFlags model;
  EngineFlags engine;
  SamplingParams params;
  std::string system, template_file;
  std::vector<std::string> stop;
  bool shifts = false;          // --context-shift
  bool has_length = false;      // --max-tokens is what the user asked for
  std::set<std::string> named;  // options
};

constexpr const char* kHelp =
    "  /reset          forget the conversation\n"
    "  /retry          answer the last message once more, by the next seed\n"
    "  /system TEXT    the system message from now on; without TEXT none\n"
    "  /set [NAME VALUE]   show or change temperature, top_k, top_p, min_p, seed, max_tokens ...\n"
    "  /save FILE, /load FILE   keep the conversation, or go on with one that was kept\n"
    "  /help           show this\n"
    "  /exit           leave (also Ctrl-D, or Ctrl-C twice)\n"
    "  \"\"\"             begins and ends a message of several lines\n"
    "  Ctrl-C          stop an answer; what it said stays\n"
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

class Chat {
 public:
  // `asked`: what all answers have in common, checked.
  Chat(const ChatFlags& flags, Request asked, TextEngine& engine, const ChatTemplate& chat)
      : flags_(flags),
        asked_(std::move(asked)),
        engine_(engine),
        template_(chat),
        has_length_(flags.has_length),
        quiet_(flags.model.json),
        terminal_(isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !quiet_),
        styled_(terminal_ && shows_styles()) {
    reset();
  }

  // Reads turns until the input ends. Returns the exit status.
  int run() {
    if (terminal_) use_utf8();
    const InterruptScope interrupts;
    LineReader reader(terminal_, terminal_ ? state_file("chat_history") : "");
    if (terminal_) banner();
    std::string line;
    while (read_message(reader, line)) {
      if (line.starts_with('/')) line.erase(line.find_last_not_of(' ') + 1);
      if (line == "/exit") break;
      if (line == "/reset")
        reset();
      else if (line.starts_with('/') && terminal_ && line.find('\n') == line.npos)
        guarded([&] { command(line); });
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

  // False: the input ends, or a second Ctrl-C came in a row.
  bool read_message(LineReader& reader, std::string& message) {
    message.clear();
    bool is_open = false;  // between three quotes
    for (int interrupts = 0;;) {
      std::fflush(stdout);
      interrupted = 0;
      std::string line;
      const LineReader::Result result = reader.read(is_open ? ". " : "> ", line);
      if (result == LineReader::kEnd) return is_open && !message.empty();
      if (result == LineReader::kInterrupted) {
        if (++interrupts == 2) return false;
        message.clear();
        is_open = false;
        fmt::print(stderr, "\nCtrl-C again or /exit leaves\n");
        continue;
      }
      interrupts = 0;
      if (line.ends_with('\r')) line.pop_back();
      if (terminal_ && add_quoted(line, message, is_open)) {
        if (!is_open) return true;
        continue;
      }
      message = line;
      return true;
    }
  }

  // Says what goes wrong, and leaves the messages as before.
  void guarded(const std::function<void()>& action) {
    const json::Array before = messages_;
    try {
      action();
    } catch (const Error& error) {
      messages_ = before;
      ++errors_;
      std::fflush(stdout);
      fmt::print(stderr, "invar: {}\n", error.what());
    }
  }

  // One question and its answer.
  void turn(const std::string& line) {
    guarded([&] {
      if (const size_t at = utf8::find_invalid(line); at != std::string::npos)
        fail_usage("expected UTF-8, found a byte at {} that is not", at);
      add("user", line);
      answer();
    });
  }

  void command(const std::string& line) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, space);
    const std::string rest = line.substr(std::min(line.find_first_not_of(' ', space), line.size()));
    if (name == "/help") {
      fmt::print(stderr, "{}", kHelp);
    } else if (name == "/system") {
      set_system(rest);
    } else if (name == "/set") {
      set(rest);
    } else if (name == "/retry") {
      retry();
    } else if (name == "/save" || name == "/load") {
      if (rest.empty()) fail_usage("expected {} FILE, found no FILE", name);
      if (name == "/save") return save_conversation(rest, messages_);
      messages_ = load_conversation(rest);
      fmt::print(stderr, "{} messages\n", messages_.size());
    } else if (name == "/exit" || name == "/reset") {
      fail_usage("expected {} alone, found {} behind it", name, json::quoted(rest));
    } else {
      fail_usage("expected a command that /help lists, found {}", json::quoted(name));
    }
  }

  void set_system(const std::string& text) {
    std::erase_if(messages_, [](const json::Value& one) {
      return *one.find("role") == json::Value("system");
    });
    if (!text.empty())
      messages_.insert(messages_.begin(), json::Object{{"role", "system"}, {"content", text}});
  }

  void set(const std::string& rest) {
    if (rest.empty()) {
      fmt::print(stderr, "{}", shown_settings(asked_.params));
      return;
    }
    const size_t space = rest.find(' ');
    if (space == rest.npos) fail_usage("expected /set NAME VALUE, found {}", json::quoted(rest));
    const std::string name = rest.substr(0, space);
    change_setting(asked_.params, name, rest.substr(rest.find_first_not_of(' ', space)));
    if (name == "max_tokens") has_length_ = true;
    check_params(asked_, engine_.engine().model().spec().vocab);
  }

  void retry() {
    const auto is_of = [&](const char* role) {
      return !messages_.empty() && *messages_.back().find("role") == json::Value(role);
    };
    if (is_of("assistant")) messages_.pop_back();
    if (!is_of("user")) fail_usage("expected a message to answer once more, found none");
    ++asked_.params.seed;
    answer();
  }

  // Tokens of the context that are kept for the answer.
  int room() const {
    if (has_length_) return asked_.params.max_tokens;
    return flags_.shifts ? std::max(1, engine_.engine().max_model_len() / 4) : 1;
  }

  // The oldest messages go, the system's not, until the rest and the answer's room fit.
  std::vector<int32_t> fitting_prompt() {
    const int64_t context = engine_.engine().max_model_len();
    const size_t count = messages_.size();
    std::vector<int32_t> prompt;
    while (true) {
      const std::string text = template_.render({.messages = messages_}, local_time);
      prompt = engine_.tokenizer().encode(text, {.add_special_tokens = false});
      if (std::ssize(prompt) + room() <= context) break;
      const auto oldest = std::ranges::find_if(messages_, [](const json::Value& one) {
        return *one.find("role") != json::Value("system");
      });
      if (!flags_.shifts || oldest == messages_.end() || oldest + 1 == messages_.end()) {
        if (!has_length_ && std::ssize(prompt) < context) break;
        fail_usage("the conversation has {} tokens{}, and the context {}: {}", prompt.size(),
                   has_length_ ? fmt::format(", its answer up to {}", room()) : "", context,
                   what_fits());
      }
      const bool is_pair = oldest + 2 < messages_.end();
      messages_.erase(oldest, oldest + (is_pair ? 2 : 1));
    }
    if (messages_.size() < count)
      fmt::print(stderr, "the context is full: the oldest messages are dropped\n");
    return prompt;
  }

  // It says what makes a conversation fit.
  std::string what_fits() const {
    if (flags_.shifts)
      return fmt::format("{}a shorter message fits",
                         has_length_ ? "a smaller --max-tokens or " : "");
    return fmt::format("{}--context-shift drops the oldest messages",
                       terminal_ ? "/reset forgets it, and " : "");
  }

  // Thoughts are parted from the answer, whose text is all that the next turn has of it in most
  // templates.
  void set_thoughts(Request& request) const {
    const ThoughtFormat format = thought_format_of(template_.source());
    request.thoughts = thoughts_behind(format, request.prompt.get(), false, engine_.tokenizer());
    if (request.thoughts.format != ThoughtFormat::none)
      request.shown_special = special_marks(style_of(format).marks, engine_.tokenizer());
  }

  void answer() {
    Request request = asked_;
    request.prompt = fitting_prompt();
    const auto prompt_tokens = std::ssize(request.prompt.get());
    settle_length(request, has_length_, engine_.engine());
    set_thoughts(request);
    AnswerSink sink(
        {.quiet = quiet_, .columns = terminal_ ? terminal_columns() : 0, .styled = styled_});
    const int64_t id = engine_.submit(std::move(request));
    while (sink.finish == FinishReason::none && !interrupted && engine_.step(sink)) {
    }
    if (sink.finish == FinishReason::none) engine_.abort(id);
    sink.end();
    if (sink.finish == FinishReason::failed)
      fail("the answer failed: a key, a value or a logit was not finite");
    add("assistant", sink.text);
    if (!sink.thought.empty()) messages_.back().set("reasoning_content", sink.thought);
    if (terminal_ && sink.finish == FinishReason::length &&
        prompt_tokens + sink.tokens >= engine_.engine().max_model_len())
      fmt::print(stderr, "the context of {} tokens is full: {}\n", engine_.engine().max_model_len(),
                 flags_.shifts
                     ? "the next message drops the oldest"
                     : "/reset forgets the conversation, --context-shift drops the oldest");
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
  Request asked_;
  TextEngine& engine_;
  const ChatTemplate& template_;
  bool has_length_, quiet_, terminal_, styled_;
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
  command->add_flag("--context-shift", flags->shifts,
                    "Drop the oldest messages where the conversation does not fit into the "
                    "context");
  command->add_flag("--ignore-eos", flags->params.ignore_eos,
                    "Continue after end-of-sequence tokens");
  show_first(*command, {{"Conversation", {"--system", "--max-tokens", "--stop", "--context-shift"}},
                        {"Sampling", {"--temperature", "--top-p", "--top-k", "--seed"}},
                        {"Speed and memory",
                         {"--device", "--threads", "--tensor-parallel-size", "--max-model-len"}}});
  command->callback([&action, flags, command] {
    flags->has_length = command->count("--max-tokens") > 0;
    flags->named = named_options(*command);
    action = [flags] { return run_chat(*flags); };
  });
}

}  // namespace invar::cli
