// invar convert: a model stored in another way.
#include <fmt/format.h>

#include "base/error.h"
#include "command.h"
#include "model/families/gguf_checkpoint.h"
#include "model/families/quantised_checkpoint.h"
#include "model/merged_checkpoint.h"

namespace invar::cli {

namespace {

struct ConvertFlags {
  std::string from, to;
  bool w8a8 = false, fp8 = false, fp8_row = false, dequantize = false;
  std::string gguf, adapter;
  std::vector<std::string> ignored_config_keys;
  int threads = 0;
};

// The types of --gguf.
constexpr DType kGgufTypes[] = {DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k};

DType gguf_type(const std::string& name) {
  std::string known;
  for (const DType type : kGgufTypes) {
    if (name_of(type) == name) return type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name_of(type));
  }
  fail_usage("--gguf: expected {}, found {}", known, json::quoted(name));
}

// Converts the model and says what was made of it.
std::string convert(const ConvertFlags& flags, ThreadPool& pool, const Conversion& how) {
  if (flags.w8a8 + flags.fp8 + flags.fp8_row + flags.dequantize + !flags.gguf.empty() +
          !flags.adapter.empty() !=
      1)
    fail_usage(
        "expected what to convert to, one of --w8a8, --fp8, --fp8-row, --gguf TYPE, --dequantize "
        "and --merge-lora DIRECTORY");
  if (!flags.adapter.empty()) {
    write_merged(flags.from, flags.adapter, flags.to, pool, how);
    return fmt::format("with the adapter {} in its weights, another model with other bits",
                       flags.adapter);
  }
  if (flags.w8a8) {
    write_w8a8(flags.from, flags.to, pool, how);
    return "with products of integers (W8A8)";
  }
  if (flags.fp8) {
    write_fp8(flags.from, flags.to, pool, how);
    return "with weights of e4m3 (FP8)";
  }
  if (flags.fp8_row) {
    write_fp8_row(flags.from, flags.to, pool, how);
    return "with weights of e4m3 and a scale for each output (FP8)";
  }
  if (flags.dequantize) {
    write_dequantised(flags.from, flags.to, pool, how);
    return "as the bf16 model that it stands for";
  }
  write_gguf_model(flags.from, flags.to, gguf_type(flags.gguf), pool, how);
  return fmt::format("as a GGUF file of {}", flags.gguf);
}

int run_convert(const ConvertFlags& flags) {
  ThreadPool pool(flags.threads);
  ProgressLine progress;
  const auto show = [&](int64_t done, int64_t total) {
    progress.show_share("writing", static_cast<double>(done) / (1 << 20),
                        static_cast<double>(total) / (1 << 20), "MiB");
  };
  const std::string made = convert(flags, pool, {show, flags.ignored_config_keys});
  progress.clear();
  fmt::print("{}: {} {}\n", flags.to, flags.from, made);
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("convert", "Write a model that is stored in another way");
  auto flags = std::make_shared<ConvertFlags>();
  command->add_option("MODEL", flags->from, "Directory to read, or with --dequantize a GGUF file")
      ->required();
  command
      ->add_option("TO", flags->to,
                   "Directory to write, without weights yet; with --gguf a new file")
      ->required();
  command->add_flag("--w8a8", flags->w8a8,
                    "Weights of the layers' products as integers of 8 bits with a scale for each "
                    "output, multiplied with integers of the activations");
  command->add_flag("--fp8", flags->fp8,
                    "Those weights as numbers of e4m3 with a scale for each block of 128 x 128, "
                    "which --weights fp8 multiplies as such");
  command->add_flag("--fp8-row", flags->fp8_row,
                    "The same with a scale for each output, which --weights fp8-row multiplies as "
                    "such; of a bf16 model that makes the same numbers itself");
  // A directory behind --gguf, as with other programs' convert, would be its type, and TO missing.
  command
      ->add_option("--gguf", flags->gguf,
                   "A GGUF file whose matrices are of this type: bf16, q8_0, q4_0 or q4_k")
      ->check([](const std::string& name) {
        gguf_type(name);
        return std::string();
      });
  command->add_option("--merge-lora", flags->adapter,
                      "The model with this adapter, as PEFT saves it, added to its weights: "
                      "another model, without the bits of the adapter beside the model");
  command->add_flag("--dequantize", flags->dequantize,
                    "The bf16 model that a quantised one stands for, which has its bits");
  add_ignored_config_keys(*command, flags->ignored_config_keys,
                          "a directory that is written has them, too");
  command->add_option("--threads", flags->threads, "Threads; 0 means one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->callback([&action, flags] { action = [flags] { return run_convert(*flags); }; });
}

}  // namespace invar::cli
