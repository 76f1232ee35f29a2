#include "engine/remote_workers.h"

#include <map>
#include <mutex>

#include "base/fields.h"
#include "engine/agreement.h"
#include "engine/wires.h"

namespace invar {

namespace {

// Bytes of messages that a worker may leave unread: a socket holds three times as much. So home
// waits for no worker that waits for home.
constexpr size_t kMostUnread = 64 << 10;

// Workers are numbered by stage and rank, so that ranks of a stage have neighbouring GPUs.
DeviceTurn turn_of(const WorkerPlace& place) {
  return {place.stage * place.ranks + place.rank, place.ranks * place.stages};
}

// A device lives as long as the process, since links between workers outlive these.
std::shared_ptr<Device> device_of(const ModelDescription& model, DeviceTurn turn) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<Device>> devices;
  const std::lock_guard lock(mutex);
  const int first = model.options.first_gpu;
  std::shared_ptr<Device>& device =
      devices[fmt::format("{} {}", model.options.device, first + turn.number)];
  if (!device) device = open_device(model.options.device, turn, first);
  return device;
}

}  // namespace

RemoteWorkers::RemoteWorkers(const ModelDescription& model, int threads_of_rank,
                             std::optional<DeviceTurn> turn)
    : model_(model),
      ranks_(model.options.ranks),
      stages_(model.stages()),
      threads_of_rank_(threads_of_rank),
      turn_(turn ? *turn : turn_of(place_of(size() - 1, ranks_, stages_))),
      threads_(threads_of_rank_) {}

int RemoteWorkers::workers_on_device_of_home() const {
  return workers_beside(model_.options.device, turn_);
}

void RemoteWorkers::load_home(const TensorSource& source, ThreadPool& pool,
                              const LoadProgress& progress) {
  const WorkerPlace place = place_of(size() - 1, ranks_, stages_);
  home_ = std::make_unique<Worker>(model_, place, device_of(model_, turn_), pool, threads_, source,
                                   progress);
  here_ = {home_.get()};
}

LoadModel RemoteWorkers::load_message(int number) const {
  return {.options = model_.options,
          .place = place_of(number, ranks_, stages_),
          .threads = threads_of_rank_,
          .first_core = place_of(number, ranks_, stages_).rank * threads_of_rank_};
}

// Every answer is read, whatever goes wrong.
void RemoteWorkers::order(const WorkerMessage& message, AsWorker work) {
  std::exception_ptr wrong;
  const auto attempt = [&](auto part) {
    try {
      part();
    } catch (...) {
      if (!wrong) wrong = std::current_exception();
    }
  };
  const std::string bytes = to_bytes(message);
  for (const auto& link : links_) attempt([&] { link->send(bytes); });
  attempt([&] { work(*home_); });
  attempt([&] { expect_done(); });
  if (wrong) std::rethrow_exception(wrong);
}

void RemoteWorkers::run(const WorkerMessage& message, AsWorker work) {
  try {
    if (told_.empty()) send(to_bytes(message));
    expect_agreement(home_->place(), home_->links(), told_.front());
    work(*home_);
    told_.pop_front();
  } catch (...) {
    home_->leave();
    throw;
  }
}

bool RemoteWorkers::send_ahead(const WorkerMessage& message) {
  std::string bytes = to_bytes(message);
  size_t unread = bytes.size();
  for (const std::string& told : told_) unread += told.size();
  if (unread > kMostUnread) return false;
  send(std::move(bytes));
  return true;
}

void RemoteWorkers::send(std::string bytes) {
  for (const auto& link : links_) link->send(bytes);
  told_.push_back(std::move(bytes));
}

void RemoteWorkers::expect_done() {
  std::string wrong;
  for (int i = 0; i < std::ssize(links_); ++i) {
    std::string said;
    try {
      said = links_[i]->receive().value_or("it has ended");
    } catch (const Error& error) {
      said = error.what();
    }
    if (!said.empty() && wrong.empty())
      wrong = fmt::format("{}: {}", name_of(place_of(i, ranks_, stages_)), said);
  }
  if (!wrong.empty()) fail("{}", wrong);
}

// ---- The other side ----

namespace {

// Whether a worker says how it went; what goes wrong in a step its neighbours find.
bool is_answered(const WorkerMessage& message) {
  return !std::holds_alternative<RunBatch>(message) && !std::holds_alternative<CopySlots>(message);
}

class WorkerServer {
 public:
  WorkerServer(MessageLink& link, const Connect& connect, std::optional<DeviceTurn> turn)
      : link_(link), connect_(connect), turn_(turn) {}

  void serve() {
    while (const std::optional<std::string> bytes = link_.receive()) {
      auto message = from_bytes<WorkerMessage>(*bytes, "a worker's message");
      if (is_answered(message))
        answer(message);
      else
        step(message, *bytes);
    }
  }

 private:
  // Nobody waits for an answer: the others find that this worker has left.
  void step(const WorkerMessage& message, std::string_view bytes) {
    if (!worker_) fail("expected a worker's model before its first step");
    try {
      expect_agreement(worker_->place(), worker_->links(), bytes);
      worker_->handle(message);
    } catch (...) {
      worker_->leave();
      throw;
    }
  }

  void answer(WorkerMessage& message) {
    std::string wrong;
    try {
      if (auto* load = std::get_if<LoadModel>(&message); load && !worker_)
        open(*load);
      else if (worker_)
        worker_->handle(message);
      else
        fail("expected a worker's model first");
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    link_.send(wrong);
  }

  void open(LoadModel& message) {
    const WorkerLinks links = connect_(message);
    std::unique_ptr<TensorSource> source;
    model_ = std::make_unique<ModelDescription>(message.options, source);
    threads_ = std::make_unique<ThreadPool>(message.threads, message.first_core);
    worker_ = std::make_unique<Worker>(*model_, message.place,
                                       device_of(*model_, turn_ ? *turn_ : turn_of(message.place)),
                                       *threads_, *threads_, *source);
    threads_->pin_caller();
    worker_->join(links);
  }

  MessageLink& link_;
  const Connect& connect_;
  const std::optional<DeviceTurn> turn_;
  std::unique_ptr<ModelDescription> model_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace

void serve_worker(MessageLink& link, const Connect& connect, std::optional<DeviceTurn> turn) {
  WorkerServer(link, connect, turn).serve();
}

}  // namespace invar
