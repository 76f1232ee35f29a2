// The options that a server is started with.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "auth.h"
#include "http.h"

namespace invar {
class WeightReceiver;
}

namespace invar::server {

class Lab;

struct ServerOptions {
  HttpOptions http;
  Keys keys;
  size_t max_queued = 1024;             // answers at the same time; requests for more are refused
  size_t max_queued_bytes = 256 << 20;  // of memory that the requests for them hold
  // Keys have equal shares: half of the slots at most, and the k-th answer of one comes before the
  // next one of another. Else `priority` orders the requests of all.
  bool fair_by_key = false;
  std::vector<std::string> allowed_origins;  // of pages that may ask (CORS), beside the own ones
  // Names by which a server without keys is asked, beside addresses and those of this machine.
  std::vector<std::string> allowed_hosts;
  std::chrono::milliseconds request_timeout{0};  // longest for an answer; 0: no limit
  int64_t journal_keep = 7 * 24 * 3600;          // seconds for which lines that have ended are kept
  std::string step_trace, request_log;           // files (StepTrace, RequestLog); empty: none
  std::string batch_file;                        // of BatchStore, beside the journal; empty: none
  std::string weight_spool;                      // WeightSpool::Options
  size_t max_update_bytes = size_t{64} << 30;
  // A server before this one (models_front.h) shows the secret with each request, and makes the
  // file readable when this server is to end; empty and -1: clients ask this server themselves.
  std::string front_secret;
  int stop_file = -1;
  // By which weights come from a trainer's GPU; null: they do not. It outlives the server.
  WeightReceiver* receiver = nullptr;
  Lab* lab = nullptr;  // --lab: clients may change the engine; outlives the server
};

}  // namespace invar::server
