// vLLM's weight transfer: its back ends of a disk that both see and of NCCL, one of the bodies of
// requests, and the calls that stacks make by /collective_rpc.
#include "api.h"
#include "base/error.h"
#include "errors.h"
#include "trainer_bodies.h"

namespace invar::server {

namespace {

json::Value message(const char* text) {
  return json::Object{{"message", text}, {"status", "ok"}};
}

bool is_safetensors(const HttpRequest& request) {
  const std::string* type = request.header("content-type");
  return type && (type->starts_with("application/octet-stream") ||
                  type->starts_with("application/x-safetensors") ||
                  type->starts_with("application/vnd.safetensors"));
}

[[noreturn]] void refuse_tensors(const char* backend) {
  throw ApiError{400,
                 fmt::format("expected a directory (\"path\" in update_info) or safetensors as the "
                             "body, found tensors by {}, which is not supported",
                             backend),
                 "transport", "update_info"};
}

void expect_one_way(bool is_one) {
  if (!is_one)
    throw ApiError{400, "expected all of an update by one way, found tensors by NCCL beside others",
                   "transport", "update_info"};
}

// Refuses what only another kind of update has.
void refuse_ipc(const json::Value& info) {
  for (const char* name : {"ipc_handles", "ipc_handles_pickled"})
    if (info.find(name)) refuse_tensors("CUDA IPC");
}

}  // namespace

// {"init_info": {...}}
void Server::init_transfer(std::shared_ptr<Exchange> exchange) {
  const json::Value body = json_body(exchange->request);
  const json::Value* info = body.find("init_info");
  if (!info || !info->is_object())
    throw ApiError{400, "expected {\"init_info\": {...}}", "", "init_info"};
  const bool meets = info->find("master_address") || info->find("master_port");
  const std::string backend = text_of(*info, {"backend"}).value_or(meets ? "nccl" : "disk");
  constexpr const char* kSaid = "Weight transfer initialized";
  if (backend == "nccl")
    return transfers_.join(*info, [exchange](const auto& wrong, const auto&) {
      exchange->reply(wrong ? error_reply(*wrong) : HttpReply{.body = json::dump(message(kSaid))});
    });
  if (meets || (backend != "disk" && backend != "http"))
    throw ApiError{
        400,
        fmt::format("expected the back end nccl, disk or http, found {}", json::quoted(backend)),
        "transport", "init_info"};
  exchange->reply({.body = json::dump(message(kSaid))});
}

void Server::end_transfer(std::shared_ptr<Exchange> exchange) {
  transfers_.leave([exchange](const auto& wrong, const auto&) {
    exchange->reply(wrong ? error_reply(*wrong)
                          : HttpReply{.body = json::dump(message("Weight transfer ended"))});
  });
}

void Server::start_update(std::shared_ptr<Exchange> exchange) {
  begin_update();
  exchange->reply({.body = json::dump(message("Weight update started"))});
}

void Server::expect_no_transfer() const {
  if (transfers_.is_busy())
    throw ApiError{409, "expected the tensors of an update to have come, found them on their way",
                   "busy"};
}

void Server::begin_update() {
  expect_no_transfer();
  update_ = Update{};
}

// No bit depends on a drafter's weights.
void Server::start_draft_update(std::shared_ptr<Exchange>) {
  throw ApiError{400,
                 "expected an update of the model: a drafter's weights are those of the start, "
                 "and no answer depends on them",
                 "unsupported"};
}

// {"update_info": {"path": DIRECTORY}} or prime-rl's {"weight_dir": DIRECTORY}: within start_update
// and finish_update the last one counts, outside of them it is taken at once. Or a body of
// safetensors, whose tensors are all of the model's together with those of other bodies.
void Server::update_weights(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  if (is_safetensors(request)) return take_piece(std::move(exchange));
  offer(reading(request), [this, exchange] {
    guarded(exchange, [&] {
      const auto body = std::make_shared<json::Value>();
      try {
        *body = json_body(exchange->request);
      } catch (const ApiError& error) {
        if (options_.receiver) http_.post([this, why = error.message] { lose_announced(why); });
        throw;
      }
      http_.post(
          [this, exchange, body] { guarded(exchange, [&] { update_with(exchange, *body); }); });
    });
  });
}

void Server::update_with(std::shared_ptr<Exchange> exchange, const json::Value& body) {
  const json::Value* info = body.find("update_info");
  std::optional<std::string> directory = text_of(body, {"weight_dir"});
  if (info && info->is_object()) {
    refuse_ipc(*info);
    if (info->find("names") || info->find("dtype_names"))
      return receive_weights(std::move(exchange), *info);
    directory = text_of(*info, {"path", "model_path", "checkpoint_path", "directory"});
  }
  if (!directory || directory->empty()) {
    constexpr const char* kExpected =
        "expected {\"update_info\": {\"path\": DIRECTORY}}, or names, dtype_names and shapes of "
        "tensors by NCCL";
    if (options_.receiver) lose_announced(kExpected);
    throw ApiError{400, kExpected, "transport", "update_info"};
  }
  if (update_) {
    expect_one_way(!update_->is_received);
    update_->directory = *directory;
    return exchange->reply({.body = json::dump(message("Weights noted"))});
  }
  const std::string version = version_of(info ? *info : body, *directory);
  take_version(std::move(exchange), *directory, version,
               []() -> json::Value { return message("Weights updated"); });
}

void Server::lose_announced(const std::string& why) {
  if (update_) update_->wrong = why;
  transfers_.abandon();
}

void Server::receive_weights(std::shared_ptr<Exchange> exchange, const json::Value& info) {
  try {
    receive_announced(std::move(exchange), info);
  } catch (const ApiError& error) {
    lose_announced(error.message);
    throw;
  }
}

// Without start_update these are all of an update.
void Server::receive_announced(std::shared_ptr<Exchange> exchange, const json::Value& info) {
  transfers_.expect_receiver("update_info");
  expect_weights();
  if (swap_) throw ApiError{409, "the weights or the engine are being changed already", "busy"};
  if (update_) expect_one_way(!update_->spool && update_->directory.empty());
  const bool is_whole = !update_;
  const std::string version = version_of(info, "");
  transfers_.receive(
      info, is_whole || !update_->is_received,
      [this, exchange, is_whole, version](const auto& wrong, const WeightReceiver::Counts& counts) {
        if (wrong && update_) update_->wrong = wrong->message;
        if (wrong) return exchange->reply(error_reply(*wrong));
        if (is_whole)
          return guarded(exchange, [&] { take_received(exchange, version, "Weights updated"); });
        json::Value said = message("Weights noted");
        said.set("tensors", static_cast<int64_t>(counts.tensors));
        said.set("bytes", counts.bytes);
        exchange->reply({.body = json::dump(said)});
      });
  if (update_) update_->is_received = true;
}

void Server::take_received(std::shared_ptr<Exchange> exchange, const std::string& version,
                           const char* said) {
  expect_weights();
  take_update(
      std::move(exchange), [this] { backend_.take_received(*options_.receiver); }, spool_, version,
      said);
}

// Without start_update the piece is the whole.
void Server::take_piece(std::shared_ptr<Exchange> exchange) {
  const bool is_whole = !update_;
  if (update_) expect_one_way(!update_->is_received);
  const std::shared_ptr<WeightSpool> spool = is_whole ? nullptr : update_->spool;
  offer(reading(exchange->request), [this, exchange, spool, is_whole] {
    guarded(exchange, [&] {
      const auto to = spool ? spool : make_spool();
      const WeightSpool::Counts counts = to->add(exchange->request.body);
      http_.post([this, exchange, to, counts, is_whole] {
        guarded(exchange, [&] {
          exchange->drop_body();
          if (is_whole) return take_spool(exchange, to, "", "Weights updated");
          if (!update_) throw ApiError{409, "the update that this piece is of has ended", "busy"};
          if (!update_->spool) update_->spool = to;
          if (update_->spool != to)
            throw ApiError{409,
                           "expected the first piece of an update to be answered before the "
                           "others come, found two at once",
                           "busy"};
          json::Value said = message("Weights noted");
          said.set("tensors", static_cast<int64_t>(counts.tensors));
          said.set("bytes", static_cast<int64_t>(counts.bytes));
          exchange->reply({.body = json::dump(said)});
        });
      });
    });
  });
}

std::shared_ptr<WeightSpool> Server::make_spool() const {
  if (model_.directory.empty())
    throw ApiError{400, "expected a model of a directory, beside whose files new weights stand",
                   "transport"};
  return std::make_shared<WeightSpool>(
      WeightSpool::Options{.parent = options_.weight_spool,
                           .model = model_.directory,
                           .most_bytes = options_.max_update_bytes});
}

// It stays for as long as it is the checkpoint that was taken last: engines that begin again, and
// those that wake up, read it.
void Server::take_spool(std::shared_ptr<Exchange> exchange, std::shared_ptr<WeightSpool> spool,
                        const std::string& version, const char* said) {
  expect_weights();
  take_update(
      std::move(exchange), [this, spool] { backend_.take_weights(spool->finish()); }, spool,
      version, said);
}

void Server::take_update(std::shared_ptr<Exchange> exchange, std::function<void()> take,
                         std::shared_ptr<WeightSpool> spool, const std::string& version,
                         const char* said) {
  change_at_rest(
      std::move(exchange),
      [this, take = std::move(take), spool = std::move(spool), version, said]() -> json::Value {
        change_weights(take);
        const std::string digest = to_hex(backend_.facts().weights);
        http_.post([this, spool, name = version.empty() ? digest.substr(0, 16) : version] {
          spool_ = spool;
          weight_version_ = name;
        });
        json::Value reply = message(said);
        reply.set("weights", digest);
        return reply;
      });
}

void Server::finish_update(std::shared_ptr<Exchange> exchange) {
  const json::Value body = json_body(exchange->request);
  expect_no_transfer();
  if (update_ && !update_->wrong.empty()) {
    const std::string wrong = std::exchange(update_, std::nullopt)->wrong;
    throw ApiError{400, "the update is not taken, since a part of it failed: " + wrong, "transfer"};
  }
  if (!update_ || (!update_->spool && !update_->is_received && update_->directory.empty()))
    throw ApiError{400, "expected start_weight_update and update_weights before, found none"};
  const Update update = *update_;
  const std::string version = version_of(body, update.directory);
  update_.reset();
  constexpr const char* kSaid = "Weight update finished";
  if (update.is_received) return take_received(std::move(exchange), version, kSaid);
  if (update.spool) return take_spool(std::move(exchange), update.spool, version, kSaid);
  take_version(std::move(exchange), update.directory, version,
               []() -> json::Value { return message(kSaid); });
}

// {"new_version": TEXT}: the same weights under another name.
void Server::name_weights(std::shared_ptr<Exchange> exchange) {
  const json::Value body = json_body(exchange->request);
  const auto version = text_of(body, {"new_version"});
  if (!version || version->empty())
    throw ApiError{400, "expected {\"new_version\": TEXT}", "", "new_version"};
  weight_version_ = version_of(json::Object{{"weight_version", *version}}, "");
  exchange->reply({.body = json::dump(json::Object{
                       {"success", true}, {"message", "named"}, {"new_version", *version}})});
}

// {"method", "args", "kwargs"}: what workers do under the names of stacks that the server can do.
void Server::call_workers(std::shared_ptr<Exchange> exchange) {
  offer(reading(exchange->request), [this, exchange] {
    guarded(exchange, [&] {
      const auto body = std::make_shared<json::Value>(json_body(exchange->request));
      http_.post([this, exchange, body] {
        guarded(exchange, [&] { call_workers_with(exchange, *body); });
      });
    });
  });
}

namespace {

// The only argument, by its place or its name.
std::string directory_in(const json::Value& call, std::initializer_list<const char*> names) {
  const json::Value *args = call.find("args"), *kwargs = call.find("kwargs");
  if (args && args->is_array() && args->as_array().size() == 1 && args->as_array()[0].is_string())
    return args->as_array()[0].as_string();
  if (kwargs && kwargs->is_object())
    if (const auto found = text_of(*kwargs, names)) return *found;
  throw ApiError{400, "expected the directory of a checkpoint as the argument", "transport"};
}

}  // namespace

void Server::call_workers_with(std::shared_ptr<Exchange> exchange, const json::Value& call) {
  const std::string method = text_of(call, {"method"}).value_or("");
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::ranges::find(names, method) != names.end();
  };
  const json::Value done = json::Object{{"results", json::Array{nullptr}}};
  if (is_one_of({"skyrl_start_weight_update", "start_weight_update"})) {
    begin_update();
    return exchange->reply({.body = json::dump(done)});
  }
  if (is_one_of({"skyrl_finish_weight_update", "finish_weight_update"})) {
    exchange->request.body.clear();
    return finish_update(std::move(exchange));
  }
  if (is_one_of({"update_weights_from_path", "reload_weights"})) {
    const std::string directory = directory_in(call, {"weights_path", "weight_dir", "path"});
    return take_version(std::move(exchange), directory, directory, [done] { return done; });
  }
  if (is_one_of({"update_weights_nccl", "init_broadcaster"})) refuse_tensors("NCCL");
  if (method == "update_weights_ipc") refuse_tensors("CUDA IPC");
  throw ApiError{
      400,
      fmt::format("the method {} is not supported: workers run no Python", json::quoted(method)),
      "transport", "method"};
}

namespace {

// One digest of all tensors, under one name: their names, types, shapes and bits are in it.
constexpr const char* kAllWeights = "all";

json::Value compared(const json::Value& baseline, const std::string& digest) {
  json::Array mismatches;
  for (const auto& [name, expected] : baseline.as_object())
    if (name != kAllWeights || expected != json::Value(digest)) mismatches.push_back(name);
  const bool is_there = baseline.find(kAllWeights) != nullptr;
  if (!is_there) mismatches.push_back(kAllWeights);
  return json::Object{{"match", mismatches.empty()}, {"mismatches", std::move(mismatches)}};
}

}  // namespace

// "checksum" says the weights' digest, "snapshot" remembers it, "compare" holds it against that,
// against "expected", or against vLLM's "baseline". A digest can be told without overwriting any
// weight.
void Server::check_weights(std::shared_ptr<Exchange> exchange) {
  const json::Value body = json_body(exchange->request);
  const std::string action = text_of(body, {"action"}).value_or("checksum");
  const std::string digest = to_hex(backend_.facts().weights);
  json::Value reply = json::Object{{"success", true},
                                   {"message", action},
                                   {"checksum", digest},
                                   {"checksums", json::Object{{kAllWeights, digest}}},
                                   {"weight_version", weight_version_}};
  if (action == "snapshot") remembered_weights_ = digest;
  const json::Value* baseline = body.find("baseline");
  if (action == "compare" && baseline && !baseline->is_null()) {
    if (!baseline->is_object())
      throw ApiError{400, "expected the baseline as an object of digests", "", "baseline"};
    const json::Value found = compared(*baseline, digest);
    for (const auto& [name, value] : found.as_object()) reply.set(name, value);
  } else if (action == "compare") {
    const std::string expected =
        text_of(body, {"expected", "checksum"}).value_or(remembered_weights_);
    if (expected != digest)
      throw ApiError{400, fmt::format("the weights differ: expected {}, found {}",
                                      json::quoted(expected), digest)};
    reply.set("match", true);
  } else if (action != "snapshot" && action != "checksum") {
    throw ApiError{400,
                   fmt::format("expected the action checksum, snapshot or compare, found {}",
                               json::quoted(action)),
                   "", "action"};
  }
  exchange->reply({.body = json::dump(reply)});
}

}  // namespace invar::server
