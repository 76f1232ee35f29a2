// Only models_front.cc, models_asked.cc and models_lists.cc include this.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "auth.h"
#include "door.h"
#include "errors.h"
#include "fair_pool.h"
#include "forward.h"
#include "model_process.h"
#include "models_front.h"
#include "request_rules.h"
#include "stop_signals.h"

namespace invar::server {

struct ModelsFront::Impl {
  using ExchangePtr = std::shared_ptr<Exchange>;

  Impl(const ServerOptions& options, std::vector<FrontModel> models, ModelRoom::Limits limits);

  void run();
  void stop();

  // Requests, before it is known which model they mean (models_asked.cc).
  Passage gate(const HttpRequest& request);
  void handle(const ExchangePtr& exchange);
  void route(const ExchangePtr& exchange, const Door& door);
  void guarded(const ExchangePtr& exchange, const std::function<void()>& action);
  void refuse(Exchange& exchange, const ApiError& error);
  void set_deadline(const ExchangePtr& exchange);
  void ask_by_body(const ExchangePtr& exchange, const Door& door);
  // Throws ApiError where no model has the name, or where several could be meant.
  size_t find(const std::string& name) const;
  [[noreturn]] void refuse_nameless(const std::string& where) const;
  std::string all_names() const;

  // Answers of the server itself (models_lists.cc). False: a model is to be asked.
  bool answers_itself(const ExchangePtr& exchange);
  void show_model(const ExchangePtr& exchange, const std::string& name);
  boost::asio::awaitable<void> list(ExchangePtr exchange);
  boost::asio::awaitable<void> show_loaded(ExchangePtr exchange, size_t model);
  boost::asio::awaitable<std::optional<json::Value>> asked(const HttpRequest& request,
                                                           size_t model);
  json::Array unloaded(const std::string& path, size_t model) const;
  json::Value unloaded_object(size_t model, const std::string& name) const;
  json::Value unloaded_tag(size_t model, const std::string& name) const;
  void set_status(json::Value& object, size_t model) const;
  std::string metrics_text() const;

  // Answers by models (models_front.cc).
  struct Held;
  std::shared_ptr<Held> hold(const ExchangePtr& exchange);
  // The models that may have the answer; `repeats`: a second attempt gives the same.
  void begin(const ExchangePtr& exchange, std::vector<size_t> models, bool repeats,
             std::shared_ptr<Held> held);
  boost::asio::awaitable<void> answer(ExchangePtr exchange, std::vector<size_t> models,
                                      bool repeats, std::shared_ptr<Held> held);
  boost::asio::awaitable<void> answer_by(ExchangePtr exchange, size_t model, bool repeats,
                                         std::shared_ptr<Forward> forward);
  boost::asio::awaitable<bool> answer_by_one_of(ExchangePtr exchange, std::vector<size_t> models,
                                                std::shared_ptr<Forward> forward);
  // Waits until the model may begin. False: nobody waits for the answer any longer. Throws
  // ApiError.
  boost::asio::awaitable<bool> take_place(ExchangePtr exchange, size_t model);
  boost::asio::awaitable<bool> died(size_t model, int64_t lives);
  std::shared_ptr<Forward> forward_of(const ExchangePtr& exchange, bool repeats);

  // The processes.
  void act();
  void load(size_t model);
  boost::asio::awaitable<void> live(size_t model, std::shared_ptr<ModelProcess> process);
  boost::asio::awaitable<void> put_away(size_t model);
  boost::asio::awaitable<bool> is_busy(size_t model);
  boost::asio::awaitable<void> wait_for_rest(size_t model);
  void note_end(size_t model, bool was_ready, const std::string& how);
  void end_all();
  boost::asio::awaitable<void> end_in_order();
  void say(size_t model, const std::string& line) const;
  const std::string& name(size_t model) const { return models[model].names.front(); }
  bool is_running(size_t model) const { return room.state(model) == ModelRoom::State::loaded; }

  // The life of one model.
  struct Running {
    explicit Running(boost::asio::io_context& loop) : changed(loop) {}
    std::shared_ptr<ModelProcess> process;
    int port = 0;
    Signal changed;                    // whoever waits for the model looks again
    int64_t loads = 0, lives = 0;      // that were ready; that are over
    int64_t deaths = 0, failures = 0;  // that ended though nobody ended them: ready, or before
    bool must_return = false;          // its journal may have answers that were cut off
    std::optional<boost::asio::steady_timer> patience;  // with one that is told to end
    std::chrono::steady_clock::time_point started;
    double load_seconds = 0;  // of all lives
  };

  const ServerOptions options;
  const std::vector<FrontModel> models;
  ModelRoom room;
  const std::string secret, setup;
  const int64_t began;
  AdmissionSlots slots;
  size_t active = 0;  // requests that models answer, or that wait for one
  bool ending = false;
  const StopSignals signals;
  HttpServer http;
  boost::asio::io_context& loop;
  std::vector<std::unique_ptr<Running>> running;
  FairPool pool;
};

}  // namespace invar::server
