// A conversation: a line of input is a question, its answer is shown as it is made.
#include <invar/invar.h>

#include <cstdio>
#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: chat MODEL\n");
    return 2;
  }
  try {
    invar::Session session({.model = argv[1], .max_model_len = -1});
    std::vector<invar::Message> messages;
    for (std::string line; std::getline(std::cin, line);) {
      messages.push_back({"user", line});
      const auto answer = session.chat(messages, {.max_tokens = 60, .temperature = 0},
                                       [](const invar::GeneratedToken& token) {
                                         std::printf("%s", token.text.c_str());
                                         std::fflush(stdout);
                                         return true;
                                       });
      std::printf("\n");
      messages.push_back({"assistant", answer.text});
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
