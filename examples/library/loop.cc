// Drives the steps itself: adds requests while others run, and cancels one.
#include <invar/invar.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: loop MODEL\n");
    return 2;
  }
  try {
    invar::Session session({.model = argv[1], .max_model_len = -1});
    const invar::GenerateOptions options{.max_tokens = 24, .seed = 3, .ignore_eos = true};
    const int64_t first = session.add("Once upon a time", options);
    int64_t second = 0;
    int tokens = 0;
    while (session.has_work()) {
      for (const invar::Update& update : session.step()) {
        if (update.token && ++tokens == 4) second = session.add("There was a house", options);
        if (update.id == second && update.token && update.token->index == 9) session.cancel(second);
        if (update.generation)
          std::printf("request %d: %s [%s]\n", update.id == first ? 1 : 2,
                      update.generation->text.c_str(), update.generation->finish_reason.c_str());
      }
    }
    std::printf("%d tokens in all\n", tokens);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
