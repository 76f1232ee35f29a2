// invar worker: what a process that is one worker of another one's model runs. Started by that
// process alone.
#include "command.h"
#include "engine/process_workers.h"

namespace invar::cli {

void add_worker(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("worker", "A worker of another process");
  command->group("");
  auto socket = std::make_shared<int>();
  command->add_option("SOCKET", *socket, "Its messages")->required();
  command->callback([&action, socket] {
    action = [socket] {
      serve_worker(*socket);
      return 0;
    };
  });
}

}  // namespace invar::cli
