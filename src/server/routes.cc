#include "routes.h"

#include <algorithm>

#include "doors.h"

namespace invar::server {

const std::vector<Server::Route>& Server::routes() {
  using namespace doors;
  using enum Keys::Need;
  using Rest = Route::Rest;
  static const std::vector<Route> kRoutes = {
      {"GET", "/", &Server::page, kFixed, none},
      {"GET", "/docs", &Server::page, kFixed, none},
      {"GET", "/openapi.json", &Server::page, kFixed, none},
      {"GET", "/page/", &Server::page, kFixed, none, Rest::name},
      {"GET", "/health", &Server::health, kFixed, none},
      {"GET", "/ping", &Server::health, kFixed, none},
      {"POST", "/ping", &Server::health, kFixed, none},
      {"GET", "/load", &Server::load, kFixed, none},
      {"GET", "/version", &Server::version, kFixed, none},
      {"GET", "/metrics", &Server::metrics, kFixed, none},
      {"GET", "/v1/engine", &Server::engine, kFixed},
      {"POST", "/v1/engine", &Server::change_engine, kChange},
      {"GET", "/v1/engine/steps", &Server::steps, kFixed},
      {"GET", "/v1/models", &Server::models, kFixed},
      {"GET", "/v1/models/", &Server::model, kFixed, client, Rest::name},
      {"POST", "/v1/completions", &Server::answer, kAnswer},
      {"POST", "/v1/chat/completions", &Server::answer, kAnswer},
      {"POST", "/v1/responses", &Server::answer, kAnswer},
      {"POST", "/v1/responses/input_tokens", &Server::count_input, kTokens},
      {"POST", "/v1/responses/", &Server::cancel_response, kKept, client, Rest::cancel},
      {"POST", "/v1/messages", &Server::answer, kAnswer},
      {"POST", "/v1/messages/count_tokens", &Server::count_tokens, kTokens},
      {"POST", "/v1/chat/completions/render", &Server::render, kTokens},
      {"POST", "/v1/responses/render", &Server::render, kTokens},
      {"POST", "/v1/messages/render", &Server::render, kTokens},
      {"POST", "/v1/completions/render", &Server::render, kTokens},
      {"POST", "/v1/chat/completions/derender", &Server::derender, kTokens},
      {"POST", "/v1/completions/derender", &Server::derender, kTokens},
      {"POST", "/v1/embeddings", &Server::ask, kEmbedding},
      {"POST", "/pooling", &Server::ask, kEmbedding},
      {"POST", "/v1/rerank", &Server::ask, kScore},
      {"POST", "/rerank", &Server::ask, kScore},
      {"POST", "/v1/score", &Server::ask, kScore},
      {"POST", "/score", &Server::ask, kScore},
      {"POST", "/v1/decisions", &Server::ask, kScore},
      {"POST", "/tokenize", &Server::tokenize, kTokens},
      {"POST", "/detokenize", &Server::detokenize, kTokens},
      {"POST", "/admin/weights", &Server::take_weights, kChange, admin},
      {"POST", "/v1/load_lora_adapter", &Server::load_adapter, kAdapter, admin},
      {"POST", "/v1/unload_lora_adapter", &Server::unload_adapter, kAdapter, admin},
      {"GET", "/v1/completions/", &Server::retrieve, kKept, client, Rest::id},
      {"GET", "/v1/chat/completions/", &Server::retrieve, kKept, client, Rest::id},
      {"GET", "/v1/receipts/", &Server::retrieve, kKept, client, Rest::id},
      {"GET", "/v1/responses/", &Server::retrieve, kKept, client, Rest::id},
      {"GET", "/v1/responses/", &Server::input_items, kLine, client, Rest::input_items},
      {"DELETE", "/v1/responses/", &Server::forget_response, kLine, client, Rest::id},
      {"GET", "/v1/messages/", &Server::retrieve, kKept, client, Rest::id},
  };
  return kRoutes;
}

// Routes of RL stacks, under their names (docs/rl_stacks.md). A key that may change the weights may
// also stop the answers.
const std::vector<Server::Route>& Server::trainer_routes() {
  static const std::vector<Route> kRoutes = [] {
    std::vector<Route> all = Route::of_sglang();
    for (const Route& route : Route::of_vllm()) all.push_back(route);
    return all;
  }();
  return kRoutes;
}

// slime, AReaL.
std::vector<Server::Route> Server::Route::of_sglang() {
  using namespace doors;
  using enum Keys::Need;
  return {
      {"POST", "/generate", &Server::generate_sglang, kAnswer},
      {"GET", "/health_generate", &Server::health, kFixed, none},
      {"GET", "/server_info", &Server::server_info, kFixed},
      {"GET", "/get_server_info", &Server::server_info, kFixed},
      {"GET", "/model_info", &Server::server_info, kFixed},
      {"GET", "/get_model_info", &Server::server_info, kFixed},
      {"GET", "/get_weight_version", &Server::get_weight_version, kFixed},
      {"POST", "/update_weights_from_disk", &Server::update_from_disk, kChange, trainer},
      {"GET", "/flush_cache", &Server::reset_prefix_cache, kFixed, trainer},
      {"POST", "/flush_cache", &Server::reset_prefix_cache, kFixed, trainer},
      {"POST", "/pause_generation", &Server::pause, kChange, trainer},
      {"POST", "/continue_generation", &Server::go_on_generating, kChange, trainer},
      {"POST", "/abort_request", &Server::abort_requests, kChange, trainer},
      {"POST", "/weights_checker", &Server::check_weights, kChange, trainer},
      {"POST", "/release_memory_occupation", &Server::release_memory, kChange, trainer},
      {"POST", "/resume_memory_occupation", &Server::resume_memory, kChange, trainer},
      {"POST", "/update_weights_from_tensor", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/update_weights_from_distributed", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/update_weights_from_ipc", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/init_weights_update_group", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/destroy_weights_update_group", &Server::end_session, kChange, trainer},
      {"POST", "/begin_weight_update", &Server::begin_session, kChange, trainer},
      {"POST", "/end_weight_update", &Server::end_session, kChange, trainer},
      {"POST", "/update_weight_version", &Server::name_weights, kChange, trainer},
      {"GET", "/v1/loads", &Server::loads, kFixed},
      {"POST", "/start_profile", &Server::refuse_profile, kFixed, trainer},
      {"POST", "/stop_profile", &Server::refuse_profile, kFixed, trainer},
  };
}

// TRL, SkyRL, prime-rl, AReaL.
std::vector<Server::Route> Server::Route::of_vllm() {
  using namespace doors;
  using enum Keys::Need;
  return {
      {"POST", "/inference/v1/generate", &Server::generate_vllm, kAnswer},
      {"POST", "/skyrl/v1/generate", &Server::generate_skyrl, kAnswer},
      {"POST", "/init_weight_transfer_engine", &Server::init_transfer, kChange, trainer},
      {"POST", "/shutdown_weight_transfer_engine", &Server::end_transfer, kChange, trainer},
      {"POST", "/start_weight_update", &Server::start_update, kChange, trainer},
      {"POST", "/start_draft_weight_update", &Server::start_draft_update, kChange, trainer},
      {"POST", "/update_weights", &Server::update_weights, kWeights, trainer},
      {"POST", "/finish_weight_update", &Server::finish_update, kChange, trainer},
      {"GET", "/weight_info", &Server::weight_info, kFixed},
      {"POST", "/init_broadcaster", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/areal_update_weights", &Server::update_from_disk, kChange, trainer},
      {"POST", "/areal_pause_generation", &Server::pause, kChange, trainer},
      {"POST", "/areal_continue_generation", &Server::go_on_generating, kChange, trainer},
      {"POST", "/areal_init_weights_update_group", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/areal_set_update_weight_meta", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/areal_update_weights_xccl", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/weight_checker", &Server::check_weights, kChange, trainer},
      {"POST", "/pause", &Server::pause, kChange, trainer},
      {"POST", "/resume", &Server::go_on_generating, kChange, trainer},
      {"GET", "/is_paused", &Server::is_paused, kFixed},
      {"POST", "/abort_requests", &Server::abort_requests, kChange, trainer},
      {"POST", "/sleep", &Server::sleep, kChange, trainer},
      {"POST", "/wake_up", &Server::wake_up, kChange, trainer},
      {"GET", "/is_sleeping", &Server::is_paused, kFixed},
      {"POST", "/reset_prefix_cache", &Server::reset_prefix_cache, kFixed, trainer},
      {"GET", "/get_world_size", &Server::world_size, kFixed},
      {"POST", "/collective_rpc", &Server::call_workers, kWeights, trainer},
      // TRL's own server, before 1.16.
      {"GET", "/health/", &Server::health, kFixed, none},
      {"GET", "/get_world_size/", &Server::world_size, kFixed},
      {"POST", "/generate/", &Server::generate_trl, kAnswer},
      {"POST", "/reset_prefix_cache/", &Server::reset_prefix_cache, kFixed, trainer},
      {"POST", "/init_communicator/", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/update_named_param/", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/batch_update_named_params/", &Server::refuse_transport, kRefused, trainer},
      {"POST", "/close_communicator/", &Server::refuse_transport, kRefused, trainer},
  };
}

std::vector<DoorRow> Server::doors() {
  std::vector<DoorRow> rows;
  for (const auto* table : {&routes(), &trainer_routes(), &tool_routes()})
    for (const Route& route : *table) {
      std::string path = route.path;
      if (route.rest != PathRest::none) path += route.rest == PathRest::name ? "{name}" : "{id}";
      if (const char* word = word_of(route.rest)) path += std::string("/") + word;
      rows.push_back({route.method, path, route.door});
    }
  return rows;
}

size_t Server::most_body(const Route& route) const {
  const size_t all = options_.http.max_body_bytes;
  switch (route.door.body) {
    case Door::Body::small:
      return std::min(all, Door::kSmall);
    case Door::Body::tokens:
      return std::min(all, admission_.most_counted_body());
    case Door::Body::whole:
      return all;
  }
  return all;
}

// One that came with its header, before the gate saw it.
void Server::check_body(const Route& route, const HttpRequest& request) const {
  if (request.body.size() > most_body(route))
    throw ApiError{413, fmt::format("expected a body of at most {} bytes, found one of {}",
                                    most_body(route), request.body.size())};
}

}  // namespace invar::server
