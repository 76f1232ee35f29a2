// The server before several models, each of which a process of its own serves (model_process.h)
// while it is asked for (model_room.h). It knows who may ask, finds out which model is meant, and
// hands requests and answers on as they are; docs/decisions/0020 says why.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api.h"
#include "model_card.h"
#include "model_room.h"

namespace invar::server {

struct FrontModel {
  std::vector<std::string> names;    // the first without a *
  std::vector<std::string> command;  // of its process, without the two files
  ModelCard card;
  int64_t bytes = 0;  // of memory once it is loaded
  int64_t context = 0;
  bool has_journal = false;  // by which an answer that was cut off goes on
};

class ModelsFront {
 public:
  // Listens. Throws Error when the address cannot be had.
  ModelsFront(const ServerOptions& options, std::vector<FrontModel> models,
              ModelRoom::Limits limits);
  ~ModelsFront();

  int port() const;
  // Serves until SIGTERM or SIGINT, then until every answer that has begun is sent and every
  // process has ended.
  void run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace invar::server
