#include "trainer_flags.h"

#include "base/error.h"
#include "base/json.h"

namespace invar::cli {

namespace {

// {"backend": "disk", "http" or "nccl"}: how weights come while the server runs.
bool is_by_nccl(const std::string& text) {
  const json::Value config = json::parse(text, "--weight-transfer-config");
  const json::Value* backend = config.is_object() ? config.find("backend") : nullptr;
  const auto is = [&](const char* name) { return backend && *backend == json::Value(name); };
  if (!is("disk") && !is("http") && !is("nccl"))
    fail_usage(
        "expected a --weight-transfer-config with the backend disk, http or nccl, found {}: "
        "weights by CUDA IPC are not supported",
        json::excerpt(config));
  return is("nccl");
}

}  // namespace

void add_trainer_flags(CLI::App& command, ServeFlags& flags) {
  command.add_option_function<std::string>(
      "--weight-transfer-config",
      [&flags](const std::string& text) { flags.weights_by_nccl = is_by_nccl(text); },
      "How a trainer's weights come, as vLLM has it: {\"backend\": \"disk\"} or \"http\", which "
      "are "
      "always there, or \"nccl\", from its GPU");
  command
      .add_option("--weight-transfer-timeout", flags.transfer_seconds,
                  "Seconds that a trainer has to join by NCCL, and to send each tensor or piece")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--weight-spool", flags.server.weight_spool,
                     "Directory in which weights that come in requests are kept while they are "
                     "served (default: the system's for temporary files)");
  command
      .add_option("--max-update-gib", flags.update_gib,
                  "Largest weights of an update that come in requests, in GiB")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  // Always so: stacks that ask for it may.
  for (const char* name :
       {"--enable-scale-out", "--enable-return-routed-experts", "--enable-sleep-mode"})
    command.add_flag(name)->group("");
}

}  // namespace invar::cli
