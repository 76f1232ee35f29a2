// invar bench text: what comes before and after the model, on one core.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/input_file.h"
#include "base/timer.h"
#include "cli/command.h"
#include "frontend/chat_template.h"
#include "frontend/constraint_compiler.h"
#include "median.h"
#include "tokenizer/make_tokenizer.h"
#include "tokenizer/utf8.h"

namespace invar::cli {

namespace {

struct BenchTextFlags {
  std::string model, text;
  int vocab = 32000, kib = 4096, rounds = 5;
  bool json = false;
};

// Words of the built-in text by Zipf's law, numbers, new words and a little that is not ASCII.
std::string made_text(size_t bytes) {
  std::vector<std::string> words;
  std::istringstream source(built_in_text());
  for (std::string word; source >> word;) words.push_back(word);
  const std::string other[] = {"caf\u00e9", "na\u00efve", "\u4f60\u597d", "\u043c\u0438\u0440",
                               "\U0001f600"};
  uint64_t state = 1;
  const auto random = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  std::string text;
  while (text.size() < bytes) {
    const uint64_t kind = random(100);
    if (kind < 3) {
      text += std::to_string(random(100000));
    } else if (kind < 5) {
      text += other[random(std::size(other))];
    } else if (kind < 10) {  // a word that no vocabulary has
      for (uint64_t letters = 4 + random(6); letters > 0; --letters)
        text += static_cast<char>('a' + random(26));
    } else {
      text += words[random(1 + random(words.size()))];
    }
    text += random(40) == 0 ? "\n" : " ";
  }
  return text;
}

std::string text_of(const BenchTextFlags& flags) {
  if (flags.text.empty()) return made_text(static_cast<size_t>(flags.kib) << 10);
  std::string text = read_whole_file(flags.text);
  if (text.empty()) fail("{}: expected a text, found none", flags.text);
  if (const size_t at = utf8::find_invalid(text); at != std::string::npos)
    fail("{}: expected UTF-8, found a byte at {} that is not", flags.text, at);
  return text;
}

// Seconds of the median round.
template <typename F>
double median_seconds(int rounds, F run) {
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) {
    const Timer timer;
    run();
    seconds.push_back(timer.seconds());
  }
  return median(std::move(seconds));
}

double template_seconds(int rounds) {
  const ChatTemplate chat = ChatTemplate::from_texts(
      {.tokenizer_config_json = make_tokenizer(512, 1).texts.tokenizer_config_json}, "made");
  json::Array messages;
  for (int i = 0; i < 100; ++i)
    messages.push_back(
        json::Object{{"role", i % 2 ? "assistant" : "user"}, {"content", made_text(1000)}});
  return median_seconds(rounds, [&] { chat.render({.messages = messages}, local_time); });
}

// The vocabulary's table, made once, and the mask inside of a JSON string, where most tokens are
// allowed.
std::pair<double, double> mask_seconds(const Tokenizer& tokenizer, int rounds) {
  const auto quote = tokenizer.encode("\"", {.add_special_tokens = false});
  const auto compile = [&](ConstraintCompiler& compiler, int title) {
    json::Value what;
    what.set("json", json::Object{{"type", "string"}, {"title", title}});
    return compiler.compile(what);
  };
  const double table = median_seconds(rounds, [&] {
    ConstraintCompiler compiler(tokenizer);
    compile(compiler, 0);
  });
  ConstraintCompiler compiler(tokenizer);
  compile(compiler, 0);
  int title = 0;
  const double mask = median_seconds(rounds, [&] {
    const auto constraint = compile(compiler, ++title);  // as if it were another language
    constraint->allowed(constraint->next(constraint->start(), quote.at(0)));
  });
  return {table, mask};
}

int run_bench_text(const BenchTextFlags& flags) {
  if (flags.rounds < 1 || flags.kib < 1 || flags.kib > 1 << 20)
    fail_usage("expected 1 or more rounds and 1 to {} KiB, found {} and {}", 1 << 20, flags.rounds,
               flags.kib);
  const Tokenizer tokenizer =
      flags.model.empty()
          ? Tokenizer::from_texts(make_tokenizer(flags.vocab, 1).texts, "made tokenizer")
          : Tokenizer::load(flags.model);
  const std::string text = text_of(flags);
  std::vector<int32_t> ids;
  const double encode = median_seconds(flags.rounds, [&] { ids = tokenizer.encode(text); });
  const double decode = median_seconds(flags.rounds, [&] {
    StreamDecoder decoder(tokenizer);
    std::string out;
    for (const int32_t id : ids) decoder.push(id, out);
    decoder.finish(out);
  });
  const auto [table, mask] = mask_seconds(tokenizer, flags.rounds);
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  const json::Object report = {
      {"vocabulary", static_cast<int64_t>(tokenizer.vocab_size())},
      {"bytes_per_token", static_cast<double>(text.size()) / static_cast<double>(ids.size())},
      {"encode_mb_per_s", megabytes / encode},
      {"decode_mb_per_s", megabytes / decode},
      {"template_100_messages_ms", 1e3 * template_seconds(flags.rounds)},
      {"token_table_ms", 1e3 * table},
      {"mask_inside_a_json_string_ms", 1e3 * mask}};
  if (flags.json) {
    fmt::print("{}\n", json::dump(report, 2));
    return 0;
  }
  fmt::print("{:.1f} MB of text, medians of {} rounds, one core\n", megabytes, flags.rounds);
  for (const auto& [name, value] : report)
    fmt::print("  {:36} {:10.2f}\n", name, value.as_number());
  return 0;
}

}  // namespace

void add_bench_text(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "text", "Measure tokenizer, chat template and grammar masks on one core");
  auto flags = std::make_shared<BenchTextFlags>();
  command->add_option("MODEL", flags->model,
                      "A directory with a tokenizer (default: a generated one)");
  command->add_option("--text", flags->text, "A file to encode (default: generated text)");
  command->add_option("--vocab", flags->vocab, "Size of the generated tokenizer")
      ->capture_default_str();
  command->add_option("--kib", flags->kib, "KiB of generated text")->capture_default_str();
  command->add_option("--rounds", flags->rounds, "Rounds; the medians are shown")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([&action, flags] { action = [flags] { return run_bench_text(*flags); }; });
}

}  // namespace invar::cli
