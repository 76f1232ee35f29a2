// --lab: a client that may ask may also change how answers are computed, to see which bits that
// changes. Policy, chunk, drafter and ranks change no bit; the arithmetic "control" is the baseline
// that promises nothing.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend.h"

namespace invar::server {

struct LabSettings {
  std::string policy;      // of the scheduler
  int32_t step_rows = 0;   // rows of a step; 0: as the server was started
  std::string arithmetic;  // as --arith has it
  std::string drafter;     // as --spec-method has it, or none
  int32_t ranks = 1;       // --tensor-parallel-size

  bool operator==(const LabSettings&) const = default;
};

// The choices that a client has.
struct LabChoices {
  std::vector<std::string> policies, arithmetics, drafters;
  std::vector<int32_t> ranks;
};

class Lab {
 public:
  virtual ~Lab() = default;
  virtual LabSettings settings() const = 0;
  virtual const LabChoices& choices() const = 0;
  // Returns when answers are computed so; only while no request is live. Throws Error, with one
  // sentence; the settings are then those of before.
  virtual void change(const LabSettings& settings) = 0;
};

// A backend whose engine makes way for another one while nothing is live.
class LabBackend final : public Backend, public Lab {
 public:
  // An engine that computes as settings say; `owner` keeps the backend.
  struct Built {
    std::shared_ptr<void> owner;
    Backend* backend = nullptr;
  };
  using Build = std::function<Built(const LabSettings&)>;

  // `first`: the settings that the server was started with.
  LabBackend(Build build, const LabSettings& first, LabChoices choices);

  void start(BackendSink& sink) override;
  void stop() override;
  BackendFacts facts() const override;
  BackendStats stats() const override;
  void submit(Request request) override;
  void cancel(int64_t id) override;
  void take_weights(const std::string& directory) override;
  void sleep(const Sleep& what) override { engine()->backend->sleep(what); }
  void wake(const Wake& what) override { engine()->backend->wake(what); }

  LabSettings settings() const override;
  const LabChoices& choices() const override { return choices_; }
  void change(const LabSettings& settings) override;

 private:
  void install(const LabSettings& settings);
  std::shared_ptr<Built> engine() const;

  const Build build_;
  const LabChoices choices_;

  mutable std::mutex mutex_;       // guards what follows
  std::shared_ptr<Built> engine_;  // null while one makes way for another
  LabSettings settings_;
  BackendFacts facts_;
  BackendStats stats_before_;  // of engines that made way
  BackendSink* sink_ = nullptr;
};

}  // namespace invar::server
