// A program that uses Invar as an installed library: streams a story and prints its hash.
#include <invar/invar.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: story MODEL [PROMPT]\n");
    return 2;
  }
  try {
    invar::Session session({.model = argv[1], .max_model_len = -1});
    const char* prompt = argc > 2 ? argv[2] : "Once upon a time";
    std::printf("%s", prompt);
    const auto answer =
        session.generate(prompt, {.max_tokens = 40, .temperature = 0.8, .seed = 7},
                         [](const invar::GeneratedToken& token) {
                           std::printf("%.*s", int(token.text.size()), token.text.data());
                           std::fflush(stdout);
                           return true;
                         });
    std::printf("\n%s\n%s\n", session.identity().c_str(), answer.logits_hash.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
