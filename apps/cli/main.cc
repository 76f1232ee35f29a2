// invar: the command line. Exit status 0 on success, 1 when something outside is wrong, 2 for a
// wrong call.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "call_error.h"
#include "collectives/mpi/library.h"
#include "command.h"
#include "engine/host_workers.h"
#include "engine/mpi_workers.h"
#include "help_format.h"
#include "llama_flags.h"
#include "number_flags.h"

namespace {

using Words = std::vector<std::string>;  // of the call, behind the program's name

// "help", "help COMMAND" and "version" are what other programs have for --help and --version.
void understand_help(Words& words) {
  if (words.empty()) return;
  if (words[0] == "version") words[0] = "--version";
  if (words[0] != "help") return;
  words.erase(words.begin());
  words.emplace_back("--help");
}

// A command of few options shows all of them by --help.
void understand_help_all(const CLI::App& app, Words& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    const auto inner =
        command->get_subcommands([&](const CLI::App* one) { return one->get_name() == word; });
    if (!inner.empty()) command = inner.front();  // else an option, or what it takes
  }
  if (!command->get_help_all_ptr())
    std::ranges::replace(words, std::string("--help-all"), std::string("--help"));
}

int run(Words words) {
  using namespace invar::cli;
  CLI::App app{
      "Invar: an engine for language models. The bits of an answer depend on the request alone.",
      "invar"};
  app.formatter(help_format());  // subcommands inherit it
  app.require_subcommand(1);
  app.set_config("--config", "", "Read options from this file (TOML); [serve] has those of serve")
      ->configurable(false);
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.set_version_flag("--version", INVAR_VERSION);
  Action action;
  add_generate(app, action);
  add_chat(app, action);
  add_score(app, action);
  add_verify(app, action);
  add_receipt_key(app, action);
  add_diff(app, action);
  add_pull(app, action);
  add_list(app, action);
  add_rm(app, action);
  add_make_model(app, action);
  add_convert(app, action);
  add_inspect(app, action);
  add_doctor(app, action);
  add_audit(app, action);
  add_bench(app, action);
  add_corpus(app, action);
  add_train(app, action);
  add_rl(app, action);
  add_evaluate(app, action);
  add_worker(app, action);
#ifdef INVAR_HAVE_SERVER
  add_serve(app, action);
#endif
  check_numbers(app);
  understand_help(words);
  understand_help_all(app, words);
  rename_llama_flags(words);
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    throw invar::UsageError(call_error(app, error));
  }
  return action();
}

// A rank of `train`, which all processes of a job compute alike. A process that fails ends the job,
// since the others wait for it. The first process alone says what is wrong with the call.
int run_alike(const Words& words, bool is_first) {
  try {
    return run(words);
  } catch (const invar::UsageError& error) {
    if (!is_first) return 2;
    std::fprintf(stderr, "invar: %s\n", error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "invar: %s\n", error.what());
  }
  std::fflush(stderr);
  invar::mpi::Job::join().abort();
}

// Under mpirun or srun the first process does what the command line says; the others are its
// workers.
int run_in_job(const Words& words) {
  if (invar::join_host_job()) {
    invar::serve_host_workers();
    return 0;
  }
  const bool is_first = !invar::join_mpi_job();
  const bool is_alike = invar::mpi::launch().size > 1 && !words.empty() && words[0] == "train";
  if (!is_first) {
    if (is_alike) run_alike(words, false);
    invar::serve_mpi_workers();  // until the first has come to its end
    return 0;
  }
  const struct JobEnd {
    ~JobEnd() {
      invar::end_mpi_job();
      invar::end_host_job();
    }
  } end;
  const int status = is_alike ? run_alike(words, true) : run(words);
  invar::cli::flush_out();
  return status;
}

// Where a standard stream is closed, the first file that is opened would take its place, and what
// is printed would go there.
void keep_standard_streams() {
  int file = 0;
  do file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  while (file >= 0 && file <= STDERR_FILENO);
  if (file >= 0) close(file);
}

}  // namespace

int main(int argc, char** argv) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::fputs("invar: expected a processor with AVX2 and FMA, found one without\n", stderr);
    return 1;
  }
  std::signal(SIGPIPE, SIG_IGN);
  keep_standard_streams();
  try {
    Words words(argv + 1, argv + argc);
    invar::take_node_flags(words);
    return run_in_job(words);
  } catch (const invar::UsageError& error) {
    std::fprintf(stderr, "invar: %s\n", error.what());
    return 2;
  } catch (const std::system_error& error) {
    const bool is_output = std::ferror(stdout);  // from fmt, where a buffer was full
    std::fprintf(stderr, "invar: %s%s\n",
                 is_output ? "the standard output cannot be written: " : "",
                 is_output ? error.code().message().c_str() : error.what());
    return 1;
  } catch (const std::bad_alloc&) {
    std::fputs("invar: not enough memory\n", stderr);
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "invar: %s\n", error.what());
    return 1;
  }
}
