// invar convert: a model directory stored in another way.
#include <fmt/format.h>

#include "base/error.h"
#include "command.h"
#include "model/families/int8_checkpoint.h"

namespace invar::cli {

namespace {

struct ConvertFlags {
  std::string from, to;
  bool w8a8 = false;
  int threads = 0;
};

int run_convert(const ConvertFlags& flags) {
  if (!flags.w8a8) fail_usage("expected what to convert to, --w8a8, found nothing");
  ThreadPool pool(flags.threads);
  ProgressLine progress;
  write_w8a8(flags.from, flags.to, pool, [&](int64_t done, int64_t total) {
    progress.show_share("writing", static_cast<double>(done) / (1 << 20),
                        static_cast<double>(total) / (1 << 20), "MiB");
  });
  progress.clear();
  fmt::print("{}: {} with products of integers (W8A8)\n", flags.to, flags.from);
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("convert", "Write a model directory that is stored in another way");
  auto flags = std::make_shared<ConvertFlags>();
  command->add_option("MODEL", flags->from, "Directory to read, of bf16 weights")->required();
  command->add_option("DIRECTORY", flags->to, "Directory to write, without weights yet")
      ->required();
  command->add_flag("--w8a8", flags->w8a8,
                    "Weights of the layers' products as integers of 8 bits with a scale for each "
                    "output, multiplied with integers of the activations");
  command->add_option("--threads", flags->threads, "Threads; 0 means one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->callback([&action, flags] { action = [flags] { return run_convert(*flags); }; });
}

}  // namespace invar::cli
