#include "trainer_flags.h"

#include "base/error.h"
#include "base/json.h"

namespace invar::cli {

namespace {

// {"backend": "disk" or "http"}: how weights come while the server runs.
void check_transfer(const std::string& text) {
  const json::Value config = json::parse(text, "--weight-transfer-config");
  const json::Value* backend = config.is_object() ? config.find("backend") : nullptr;
  if (!backend || (*backend != json::Value("disk") && *backend != json::Value("http")))
    fail_usage(
        "expected a --weight-transfer-config with the backend disk or http, found {}: weights by "
        "NCCL and CUDA IPC are not supported",
        json::excerpt(config));
}

}  // namespace

void add_trainer_flags(CLI::App& command, ServeFlags& flags) {
  command.add_option_function<std::string>(
      "--weight-transfer-config", check_transfer,
      "How a trainer's weights come, as vLLM has it: {\"backend\": \"disk\"} or \"http\"; both are "
      "always there");
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
