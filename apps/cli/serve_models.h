// invar serve with several models: the server before them, and what its processes are told.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "serve_flags.h"

namespace invar::cli {

// A word of the command line that names a model.
struct ModelWord {
  std::vector<std::string> names;  // of NAME[,NAME...]=MODEL; empty: it says none
  std::string model;
};
ModelWord model_word(const std::string& word);

// The options that the user gave, as words, but for those that are the front server's own.
std::vector<std::string> passed_options(const CLI::App& command);

// Serves all of them until it is told to end.
int serve_models(const ServeFlags& flags);

// For a process of one of them: what the server before it has told it. The log goes to that server.
void take_front(ServeFlags& flags);
// Tells that server where this process serves.
void tell_front(const ServeFlags& flags, int port);

}  // namespace invar::cli
