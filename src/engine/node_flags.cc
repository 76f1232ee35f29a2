// vLLM's flags of several hosts: each host starts its own processes.
#include <sys/wait.h>

#include <cstdlib>
#include <map>

#include "base/child_process.h"
#include "base/error.h"
#include "base/number_of.h"
#include "engine/host_job.h"
#include "engine/host_workers.h"

namespace invar {

namespace {

// The value of the last `name VALUE` or `name=VALUE` among the words; `takes`: they are left out.
std::string value_of(std::vector<std::string>& words, const std::string& name, bool takes) {
  std::string value;
  for (size_t i = 0; i < words.size();) {
    const bool is_whole = words[i].starts_with(name + "=");
    if (!is_whole && (words[i] != name || i + 1 == words.size())) {
      ++i;
      continue;
    }
    value = is_whole ? words[i].substr(name.size() + 1) : words[i + 1];
    const auto at = words.begin() + static_cast<std::ptrdiff_t>(i);
    if (takes)
      words.erase(at, at + (is_whole ? 1 : 2));
    else
      ++i;
  }
  return value;
}

int number(const std::string& name, const std::string& text, int otherwise, int least) {
  if (text.empty()) return otherwise;
  const auto value = number_of<int>(text);
  if (!value || *value < least)
    fail_usage("expected a number of {} or more for {}, found {}", least, name, text);
  return *value;
}

void set(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

// Sets the environment as torchrun does.
void say(int rank, int size, int local_rank, int local_size) {
  set("RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(size));
  set("LOCAL_RANK", std::to_string(local_rank));
  set("LOCAL_WORLD_SIZE", std::to_string(local_size));
}

pid_t start_rank(int rank, int size, int local_rank, int local_size) {
  say(rank, size, local_rank, local_size);
  const std::string command[] = {"/proc/self/exe", "worker"};
  return start({.command = command, .sockets = {}});
}

// The processes of a host that is not the first; this one only waits for them. Ends.
[[noreturn]] void run_host(int first, int size, int local_size) {
  for (int i = 0; i < local_size; ++i) start_rank(first + i, size, i, local_size);
  int worst = 0, status = 0;
  for (int i = 0; i < local_size; ++i) {
    if (::wait(&status) < 0) break;
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    if (worst != 0) break;  // the others end with this process
  }
  std::exit(worst);
}

}  // namespace

void take_node_flags(std::vector<std::string>& words) {
  std::map<std::string, std::string> found;
  for (const char* name : {"--nnodes", "--node-rank", "--master-addr", "--master-port"})
    found[name] = value_of(words, name, true);
  const int nodes = number("--nnodes", found["--nnodes"], 1, 1);
  if (nodes == 1) return;
  int workers = 1;
  for (const char* name : {"--tensor-parallel-size", "--pipeline-parallel-size"})
    workers *= number(name, value_of(words, name, false), 1, 1);
  const int node = number("--node-rank", found["--node-rank"], 0, 0);
  if (node >= nodes || workers % nodes != 0)
    fail_usage(
        "expected a --node-rank below --nnodes and as many workers on each host, found host {} of "
        "{} and {} workers (--tensor-parallel-size, --pipeline-parallel-size)",
        node, nodes, workers);
  if (!std::getenv("INVAR_SECRET"))
    fail_usage("--nnodes needs INVAR_SECRET in the environment, the same on all hosts, found none");
  hosts::expect_good_secret();
  set("MASTER_ADDR", found["--master-addr"].empty() ? "127.0.0.1" : found["--master-addr"]);
  set("MASTER_PORT", std::to_string(number("--master-port", found["--master-port"], 29501, 1)));
  ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  const int here = workers / nodes;
  if (node > 0) run_host(node * here, workers, here);
  for (int i = 1; i < here; ++i) start_rank(i, workers, i, here);
  say(0, workers, 0, here);
}

}  // namespace invar
