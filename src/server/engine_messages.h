// The messages between the server and its engine's process. Every reader trusts nothing and throws
// Error for bytes that are no such message.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend.h"
#include "base/frames.h"

namespace invar::server {

enum class Message : uint8_t {
  hello = 1,  // engine: BackendFacts, BackendStats; it is ready
  submit,     // server: Request
  cancel,     // server: the request's id
  outputs,    // engine: what it computed since the last such message
  take,       // server: the directory of a checkpoint
  taken,      // engine: Taken
  sleep,      // server: Sleep; the answer is Taken
  wake,       // server: Wake; the answer is Taken
};

// A token, a prompt's log-probability or a vector, with its bytes: equal outputs have equal bytes.
struct RequestOutput {
  enum class Kind : uint8_t { token, prompt, pooled };
  Kind kind = Kind::token;
  TokenOutput token;
  PromptOutput prompt;
  PooledOutput pooled;
  std::string error;  // of a token: what TokenOutput::error points to, where it is not empty
  std::string bytes;

  int64_t request() const {
    return kind == Kind::token    ? token.request
           : kind == Kind::prompt ? prompt.request
                                  : pooled.request;
  }
  // Whether it is its request's last word.
  bool is_last() const {
    return kind == Kind::pooled || (kind == Kind::token && token.finish != FinishReason::none);
  }
};

struct StepOutputs {
  std::vector<RequestOutput> outputs;  // in the order in which they were computed
  std::vector<RequestBegun> begun;
  std::vector<StepRecord> steps;
  BackendStats stats;
};

struct Hello {
  BackendFacts facts;
  BackendStats stats;
};

// The result of taking a checkpoint, or of giving memory back or taking it.
struct Taken {
  Digest weights{};
  std::string error;  // a sentence: the weights are those of before
};

std::string to_bytes(const Hello& hello);
Hello hello_from(std::string_view bytes);
std::string to_bytes(const Request& request);
Request request_from(std::string_view bytes);
std::string to_bytes(const Taken& taken);
Taken taken_from(std::string_view bytes);
std::string to_bytes(const Sleep& sleep);
Sleep sleep_from(std::string_view bytes);
std::string to_bytes(const Wake& wake);
Wake wake_from(std::string_view bytes);
std::string cancel_bytes(int64_t request);
int64_t cancel_from(std::string_view bytes);

// The bytes of one output, and a message of several such.
std::string to_bytes(const TokenOutput& output);
std::string to_bytes(const PromptOutput& output);
std::string to_bytes(const PooledOutput& output);
std::string outputs_bytes(const std::vector<std::string>& outputs,
                          const std::vector<RequestBegun>& begun,
                          const std::vector<StepRecord>& steps, const BackendStats& stats);
StepOutputs outputs_from(std::string_view bytes);

}  // namespace invar::server
