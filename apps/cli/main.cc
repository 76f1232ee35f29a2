// invar: the command line. Exit status 0 on success, 1 when something outside is wrong, 2 for a
// wrong call.
#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "command.h"

namespace {

int run(int argc, char** argv) {
  using namespace invar::cli;
  CLI::App app{"Invar: language models whose answers' bits depend on the request alone."};
  app.require_subcommand(1);
  app.set_version_flag("--version", INVAR_VERSION);
  Action action;
  add_generate(app, action);
  add_score(app, action);
  add_make_model(app, action);
  add_inspect(app, action);
  add_doctor(app, action);
  add_audit(app, action);
  add_bench(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::fputs("invar: expected a processor with AVX2 and FMA, found one without\n", stderr);
    return 1;
  }
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const invar::UsageError& error) {
    std::fprintf(stderr, "invar: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "invar: %s\n", error.what());
    return 1;
  }
}
