// invar corpus: documents of the training corpus, to be looked at.
#include "train/corpus/corpus.h"

#include <fmt/format.h>

#include <algorithm>

#include "command.h"
#include "number_flags.h"

namespace invar::cli {

namespace {

struct CorpusFlags {
  uint64_t seed = 1;
  int64_t first = 0, count = 5;
  bool held_out = false, json = false;
  std::string kind;
};

int run_corpus(const CorpusFlags& flags) {
  const auto split = flags.held_out ? corpus::Split::held_out : corpus::Split::training;
  int64_t shown = 0;
  for (int64_t i = flags.first; shown < flags.count; ++i) {
    const corpus::Sample sample = corpus::make_sample(flags.seed, split, i);
    const std::string kind = corpus::kKindNames[static_cast<size_t>(sample.kind)];
    if (!flags.kind.empty() && flags.kind != kind) continue;
    if (flags.json)
      fmt::print("{}\n", json::dump(json::Object{
                             {"number", i}, {"kind", kind}, {"text", corpus::text_of(sample)}}));
    else
      fmt::print("==== {} {}\n{}\n", i, kind, corpus::text_of(sample));
    ++shown;
  }
  return 0;
}

}  // namespace

void add_corpus(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("corpus", "Print documents of the training corpus");
  auto flags = std::make_shared<CorpusFlags>();
  command->add_option("--seed", flags->seed, "Seed of the corpus")->capture_default_str();
  command->add_option("--first", flags->first, "Number of the first document")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--count", flags->count, "Number of documents")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON, one document a line");
  command->add_flag("--held-out", flags->held_out, "Use the held-out split");
  command->add_option("--kind", flags->kind, "Only documents of this kind")
      ->check(CLI::IsMember(
          std::vector<std::string>(corpus::kKindNames.begin(), corpus::kKindNames.end())));
  command->callback([&action, flags] { action = [flags] { return run_corpus(*flags); }; });
}

}  // namespace invar::cli
