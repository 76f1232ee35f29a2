#include "models_front.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <ctime>

#include "base/ends.h"
#include "models_front_impl.h"

namespace invar::server {

namespace asio = boost::asio;

namespace {

constexpr int kMostAttempts = 4;  // for one answer, of processes that died at it
constexpr double kGiB = 1 << 30;

std::vector<int64_t> bytes_of(const std::vector<FrontModel>& models) {
  std::vector<int64_t> bytes;
  for (const FrontModel& model : models) bytes.push_back(model.bytes);
  return bytes;
}

json::Array texts_of(const std::vector<std::string>& all) {
  return {all.begin(), all.end()};
}

// A line that a model's process reads first.
std::string setup_of(const std::string& secret, const Keys& keys) {
  return json::dump(json::Object{{"secret", secret},
                                 {"api_keys", texts_of(keys.client)},
                                 {"admin_keys", texts_of(keys.admin)}});
}

asio::awaitable<void> pause(asio::io_context& loop, std::chrono::milliseconds time) {
  asio::steady_timer timer(loop, time);
  boost::system::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

}  // namespace

// A request holds it from when it has come until its answer ends.
struct ModelsFront::Impl::Held {
  Held(Impl& of, const std::string& owner) : front(of), slots(of.slots, owner) { ++of.active; }
  ~Held() {
    --front.active;
    if (front.ending) front.end_all();
  }
  Impl& front;
  HeldSlots slots;
};

ModelsFront::ModelsFront(const ServerOptions& options, std::vector<FrontModel> models,
                         ModelRoom::Limits limits)
    : impl_(std::make_unique<Impl>(options, std::move(models), limits)) {}

ModelsFront::~ModelsFront() = default;

int ModelsFront::port() const {
  return impl_->http.port();
}

void ModelsFront::run() {
  impl_->run();
}

ModelsFront::Impl::Impl(const ServerOptions& o, std::vector<FrontModel> all,
                        ModelRoom::Limits limits)
    : options(o),
      models(std::move(all)),
      room(bytes_of(models), limits),
      secret(random_id("front_") + random_id("")),
      setup(setup_of(secret, o.keys)),
      began(static_cast<int64_t>(std::time(nullptr))),
      slots(o.max_queued, o.max_queued_bytes, o.fair_by_key ? 2 : 1),
      http(
          o.http, [this](const HttpRequest& request) { return gate(request); },
          [this](ExchangePtr exchange) { handle(exchange); },
          [](int status, const std::string& sentence, const std::string& path) {
            return error_reply({.status = status, .message = sentence}, path);
          }),
      loop(http.loop()) {
  for (size_t i = 0; i < models.size(); ++i) running.push_back(std::make_unique<Running>(loop));
}

void ModelsFront::Impl::run() {
  http.on_readable(signals.file(), [this] { stop(); });
  http.run();
}

void ModelsFront::Impl::stop() {
  ending = true;
  http.stop();
  for (const auto& one : running) one->changed.give();
  end_all();
}

void ModelsFront::Impl::end_all() {
  if (active == 0) asio::co_spawn(loop, end_in_order(), asio::detached);
}

asio::awaitable<void> ModelsFront::Impl::end_in_order() {
  for (size_t i = 0; i < models.size(); ++i) {
    Running& one = *running[i];
    const bool is_loading = room.state(i) == ModelRoom::State::loading;
    if (one.process) is_loading ? one.process->kill() : one.process->end();
    while (one.process) co_await one.changed.wait();
  }
}

void ModelsFront::Impl::say(size_t model, const std::string& line) const {
  fmt::print(stderr, "[{}] {}\n", name(model), line);
}

std::shared_ptr<ModelsFront::Impl::Held> ModelsFront::Impl::hold(const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request;
  auto held = std::make_shared<Held>(*this, options.keys.owner(request));
  if (!held->slots.grow_to(1) || !held->slots.hold(request.body.size()))
    throw ApiError{429,
                   fmt::format("expected at most {} unfinished requests and {} MiB of their bodies "
                               "of all clients, and of one key {} and {}, found more",
                               slots.most(), slots.most_bytes() >> 20, slots.most_of_owner(),
                               slots.most_bytes_of_owner() >> 20),
                   "queue_full"};
  exchange->body_place = nullptr;
  return held;
}

std::shared_ptr<Forward> ModelsFront::Impl::forward_of(const ExchangePtr& exchange, bool repeats) {
  Headers more;
  for (const auto& [name, value] : exchange->more_headers)
    if (name == "X-Request-Id") more.emplace_back(name, value);
  // By which a process that is started again knows the answer that it was making.
  if (repeats && !exchange->request.header("idempotency-key"))
    more.emplace_back("Idempotency-Key", random_id("front_"));
  auto forward =
      std::make_shared<Forward>(loop, exchange, forwarded_head(exchange->request, secret, more));
  const auto look_again = [this, weak = std::weak_ptr(forward)] {
    if (const auto one = weak.lock()) one->stop();
    for (const auto& one : running) one->changed.give();
  };
  exchange->on_gone = look_again;
  exchange->on_deadline = [this, look_again, weak = std::weak_ptr(exchange)] {
    const auto late = weak.lock();
    if (!late || late->is_answered()) return;
    refuse(*late, {504, kTooLate, "deadline_exceeded"});
    look_again();
  };
  return forward;
}

void ModelsFront::Impl::begin(const ExchangePtr& exchange, std::vector<size_t> asked, bool repeats,
                              std::shared_ptr<Held> held) {
  asio::co_spawn(loop, answer(exchange, std::move(asked), repeats, std::move(held)),
                 asio::detached);
}

asio::awaitable<void> ModelsFront::Impl::answer(ExchangePtr exchange, std::vector<size_t> asked,
                                                bool repeats, std::shared_ptr<Held> held) {
  std::shared_ptr<Forward> forward;
  const auto refuse_or_end = [&](const ApiError& error) {
    forward && forward->has_begun() ? forward->fail(error.message) : refuse(*exchange, error);
  };
  try {
    forward = forward_of(exchange, repeats);
    if (asked.size() == 1)
      co_await answer_by(exchange, asked.front(), repeats, forward);
    else if (!co_await answer_by_one_of(exchange, std::move(asked), forward))
      throw ApiError{404,
                     fmt::format("no model that is loaded has what {} names: ?model=NAME asks one "
                                 "that is not ({})",
                                 exchange->request.path, all_names())};
  } catch (const ApiError& error) {
    refuse_or_end(error);
  } catch (const std::exception& error) {
    refuse_or_end({500, error.what()});
  }
  held = nullptr;
}

asio::awaitable<void> ModelsFront::Impl::answer_by(ExchangePtr exchange, size_t model, bool repeats,
                                                   std::shared_ptr<Forward> forward) {
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (!co_await take_place(exchange, model)) co_return;
    const int64_t lives = running[model]->lives;
    const Forward::Outcome outcome = co_await forward->ask(running[model]->port, true);
    room.end(model);
    act();
    if (outcome == Forward::Outcome::answered) co_return;
    if (outcome == Forward::Outcome::different)
      co_return forward->fail(
          fmt::format("the process of the model {} ended, and the next one began another answer",
                      json::quoted(name(model))));
    const bool is_over = co_await died(model, lives);
    if (!is_over || !repeats) break;
  }
  forward->fail(fmt::format("the process of the model {} ended while it answered: ask once more",
                            json::quoted(name(model))));
}

asio::awaitable<bool> ModelsFront::Impl::answer_by_one_of(ExchangePtr exchange,
                                                          std::vector<size_t> asked,
                                                          std::shared_ptr<Forward> forward) {
  for (const size_t model : asked) {
    if (!room.is_open(model)) continue;
    if (!co_await take_place(exchange, model)) co_return true;
    const Forward::Outcome outcome = co_await forward->ask(running[model]->port, false);
    room.end(model);
    act();
    if (outcome == Forward::Outcome::absent) continue;
    if (outcome != Forward::Outcome::answered)
      forward->fail(
          fmt::format("the process of the model {} ended while it answered: ask once more",
                      json::quoted(name(model))));
    co_return true;
  }
  co_return false;
}

asio::awaitable<bool> ModelsFront::Impl::take_place(ExchangePtr exchange, size_t model) {
  struct Waiting {
    Impl& front;
    size_t model;
    bool waits = true;
    ~Waiting() {
      if (!waits) return;
      front.room.leave(model);
      front.act();
    }
  };
  room.ask(model);
  Waiting waiting{*this, model};
  Running& one = *running[model];
  const int64_t failures = one.failures;
  const bool goes_on = exchange->is_answered();  // a stream that was cut off
  act();
  while (!room.is_open(model)) {
    if (one.failures != failures)
      throw ApiError{503,
                     fmt::format("the model {} could not be loaded: the server's log says why",
                                 json::quoted(name(model))),
                     "model_not_loaded"};
    if (ending) throw ApiError{503, "the server is ending"};
    co_await one.changed.wait();
    if (exchange->is_gone() || (!goes_on && exchange->is_answered())) co_return false;
  }
  waiting.waits = false;
  room.begin(model);
  co_return true;
}

// Whether the process of that life ends: what it cut off, it did not cut off on purpose.
asio::awaitable<bool> ModelsFront::Impl::died(size_t model, int64_t lives) {
  constexpr int kLooks = 200;
  for (int i = 0; i < kLooks && running[model]->lives == lives; ++i)
    co_await pause(loop, std::chrono::milliseconds(10));
  co_return running[model]->lives != lives;
}

void ModelsFront::Impl::act() {
  while (!ending) {
    const ModelRoom::Step step = room.next();
    if (step.kind == ModelRoom::Step::Kind::none) return;
    if (step.kind == ModelRoom::Step::Kind::load)
      load(step.model);
    else
      asio::co_spawn(loop, put_away(step.model), asio::detached);
  }
}

void ModelsFront::Impl::load(size_t model) {
  Running& one = *running[model];
  one.started = std::chrono::steady_clock::now();
  say(model, fmt::format("is loaded: {:.2f} GiB at most, with the others {:.2f} of {:.2f} GiB",
                         static_cast<double>(room.bytes(model)) / kGiB,
                         static_cast<double>(room.bytes_taken()) / kGiB,
                         static_cast<double>(room.limits().bytes) / kGiB));
  try {
    one.process = ModelProcess::start(loop, models[model].command, setup,
                                      [this, model](const std::string& line) { say(model, line); });
  } catch (const std::exception& error) {
    return note_end(model, false, error.what());
  }
  asio::co_spawn(loop, live(model, one.process), asio::detached);
}

asio::awaitable<void> ModelsFront::Impl::live(size_t model, std::shared_ptr<ModelProcess> process) {
  Running& one = *running[model];
  const std::optional<int> port = co_await process->ready();
  if (port) {
    one.port = *port;
    ++one.loads;
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - one.started;
    one.load_seconds += time.count();
    room.loaded(model);
    if (std::exchange(one.must_return, false)) room.leave(model);
    say(model, fmt::format("is ready after {:.1f} s", time.count()));
    one.changed.give();
    act();
  }
  const std::string how = co_await process->gone();
  note_end(model, port.has_value(), how);
}

void ModelsFront::Impl::note_end(size_t model, bool was_ready, const std::string& how) {
  Running& one = *running[model];
  const bool is_expected = ending || room.state(model) == ModelRoom::State::ending;
  one.process = nullptr;
  one.patience.reset();
  ++one.lives;
  say(model,
      is_expected ? std::string("is put away") : fmt::format("its process has ended: {}", how));
  if (is_expected || was_ready) {
    room.unloaded(model);
  } else {
    room.failed(model);
    ++one.failures;
    if (std::exchange(one.must_return, false)) room.leave(model);
  }
  if (!is_expected && was_ready) {
    ++one.deaths;
    if (models[model].has_journal) {
      one.must_return = true;
      room.ask(model);
    }
  }
  one.changed.give();
  asio::post(loop, [this] { act(); });
}

// Answers that no client waits for (in the background, of batches, after a crash) are computed to
// their end first.
asio::awaitable<void> ModelsFront::Impl::put_away(size_t model) {
  constexpr std::chrono::seconds kPatience{30};
  Running& one = *running[model];
  const bool is_at_work = co_await is_busy(model);
  if (room.state(model) != ModelRoom::State::ending || !one.process) co_return;
  if (is_at_work) {
    room.loaded(model);
    room.hold(model);
    one.changed.give();
    asio::co_spawn(loop, wait_for_rest(model), asio::detached);
    co_return act();
  }
  one.process->end();
  one.patience.emplace(loop, kPatience);
  one.patience->async_wait([&one](const boost::system::error_code& error) {
    if (!error && one.process) one.process->kill();
  });
}

asio::awaitable<void> ModelsFront::Impl::wait_for_rest(size_t model) {
  const int64_t lives = running[model]->lives;
  bool is_at_work = true;
  while (is_at_work && !ending && running[model]->lives == lives) {
    co_await pause(loop, std::chrono::seconds(1));
    is_at_work = co_await is_busy(model);
  }
  if (running[model]->lives != lives) co_return;
  room.release(model);
  act();
}

asio::awaitable<bool> ModelsFront::Impl::is_busy(size_t model) {
  if (!models[model].has_journal) co_return false;
  const HttpRequest request{.method = "GET", .path = "/load"};
  const auto body = co_await fetch(loop, running[model]->port, forwarded_head(request, secret, {}));
  const json::Value* load = nullptr;
  const json::Value reply = body ? json::parse(*body, "/load") : json::Value();
  if (reply.is_object()) load = reply.find("server_load");
  co_return load && load->is_number() && load->as_number() > 0;
}

}  // namespace invar::server
