#include "lab.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/error.h"

namespace invar::server {

namespace {

template <typename T>
void check(const char* what, const T& found, const std::vector<T>& known) {
  if (std::ranges::find(known, found) == known.end())
    fail_usage("expected {} among {}, found \"{}\"", what, fmt::join(known, ", "), found);
}

}  // namespace

LabBackend::LabBackend(Build build, const LabSettings& first, LabChoices choices)
    : build_(std::move(build)), choices_(std::move(choices)) {
  install(first);
}

std::shared_ptr<LabBackend::Built> LabBackend::engine() const {
  const std::lock_guard lock(mutex_);
  return engine_;
}

void LabBackend::start(BackendSink& sink) {
  const auto built = engine();
  {
    const std::lock_guard lock(mutex_);
    sink_ = &sink;
  }
  built->backend->start(sink);
}

void LabBackend::stop() {
  if (const auto built = engine()) built->backend->stop();
}

BackendFacts LabBackend::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

BackendStats LabBackend::stats() const {
  const std::lock_guard lock(mutex_);
  BackendStats all = stats_before_;
  if (engine_) add_to(all, engine_->backend->stats());
  return all;
}

LabSettings LabBackend::settings() const {
  const std::lock_guard lock(mutex_);
  return settings_;
}

void LabBackend::submit(Request request) {
  engine()->backend->submit(std::move(request));
}

void LabBackend::cancel(int64_t id) {
  if (const auto built = engine()) built->backend->cancel(id);
}

void LabBackend::take_weights(const std::string& directory) {
  const auto built = engine();
  built->backend->take_weights(directory);
  const std::lock_guard lock(mutex_);
  facts_ = built->backend->facts();
}

void LabBackend::change(const LabSettings& settings) {
  check("a policy", settings.policy, choices_.policies);
  check("an arithmetic", settings.arithmetic, choices_.arithmetics);
  check("a drafter", settings.drafter, choices_.drafters);
  check("a number of ranks", settings.ranks, choices_.ranks);
  if (settings.step_rows < 0)
    fail_usage("expected rows of a step, 0 or more, found {}", settings.step_rows);
  const LabSettings before = this->settings();
  if (settings == before) return;
  std::shared_ptr<Built> old;
  {
    const std::lock_guard lock(mutex_);
    BackendStats stats = engine_->backend->stats();
    stats.blocks = stats.free_blocks = stats.running = stats.waiting = stats.max_running = 0;
    add_to(stats_before_, stats);
    old = std::move(engine_);
  }
  old.reset();  // its memory is the next one's
  try {
    install(settings);
  } catch (const std::exception&) {  // of too little memory, too
    install(before);
    throw;
  }
}

void LabBackend::install(const LabSettings& settings) {
  const auto built = std::make_shared<Built>(build_(settings));
  BackendSink* sink = nullptr;
  {
    const std::lock_guard lock(mutex_);
    engine_ = built;
    facts_ = built->backend->facts();
    settings_ = settings;
    sink = sink_;
  }
  if (sink) built->backend->start(*sink);
}

}  // namespace invar::server
