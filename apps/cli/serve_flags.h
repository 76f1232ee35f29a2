// The flags of invar serve.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "server/api.h"

namespace invar::cli {

constexpr int kMostLogprobs = 1024;  // that a request may be let ask for

struct ServeFlags {
  std::vector<std::string> models;  // MODEL and NAME=MODEL (serve_models.h)
  double models_gib = 0;            // of memory for several; 0: most of what is free
  int models_max = 0;               // that are loaded at the same time; 0: as many as fit
  std::vector<std::string> passed;  // options for the process of each of several models
  std::pair<int, int> front_files = {-1, -1};  // of such a process: its orders, its log
  ModelFlags model;
  EngineFlags engine;
  server::ServerOptions server;
  std::string host;  // empty: 127.0.0.1 without keys, else all addresses
  std::optional<std::vector<std::string>> origins;  // none: all with keys, else none
  std::vector<std::string> names;
  std::vector<std::string> adapters;  // --lora-modules
  bool has_adapters = false;
  AdapterLimits adapter_limits{.most = 16, .most_rank = 256};
  std::string receipt_key;
  std::string template_file, tool_parser = "auto", thought_parser = "auto",
                             generation_config = "auto";
  // Values of fields that requests leave open, by the fields' names; the model has the others.
  json::Value sampling = json::Object();
  int header_seconds = 10, body_seconds = 30, idle_seconds = 75, write_seconds = 30;
  int comment_seconds = 15;
  int body_mib = 32, bodies_mib = 48, queued_mib = 256, update_gib = 64;
  std::string journal, journal_sync = "process";
  int journal_max_gib = 8;
  bool journal_accept_loss = false, journal_strict = false, engine_process = false, lab = false;
  std::string fair_by;  // empty: key with several keys
  bool share_prefixes = false;
  std::string logprobs_mode = "raw_logprobs";
  int replicas = 1, max_logprobs = 20;
  bool clamp_max_tokens = false, weights_by_nccl = false;
  int transfer_seconds = 300;  // for a trainer's next tensor
  double request_seconds = 0, target_tbt_ms = 200;
  std::pair<int, int> engine_files = {-1, -1};  // of an engine's process: socket, sign of life
  // The context of the engine before it was started again; 0: this is the first.
  int engine_context = 0;
  int engine_replica = -1;  // which of the replicas that are processes it is; -1: there are none
};

// Adds the flags to the command, with their defaults. `flags` outlives it.
void add_serve_flags(CLI::App& command, ServeFlags& flags);

}  // namespace invar::cli
