// invar rank-worker: what a process that plays a further tensor-parallel rank runs. Started by the
// process of rank 0 alone.
#include "command.h"
#include "engine/rank_processes.h"

namespace invar::cli {

void add_rank_worker(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("rank-worker", "A rank of another process");
  command->group("");
  auto numbers = std::make_shared<std::vector<int>>();
  command->add_option("NUMBERS", *numbers, "Its rank and its sockets; 0: none")->required();
  command->callback([&action, numbers] {
    action = [numbers] {
      std::vector<int> sockets(numbers->begin() + 1, numbers->end());
      for (int& socket : sockets)
        if (socket == 0) socket = -1;
      serve_rank(numbers->front(), sockets);
      return 0;
    };
  });
}

}  // namespace invar::cli
