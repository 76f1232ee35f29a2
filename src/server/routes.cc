#include "routes.h"

namespace invar::server {

const std::vector<Server::Route>& Server::routes() {
  using enum Keys::Need;
  using Rest = Route::Rest;
  static const std::vector<Route> kRoutes = {
      {"GET", "/", &Server::page, none},
      {"GET", "/docs", &Server::page, none},
      {"GET", "/openapi.json", &Server::page, none},
      {"GET", "/page/", &Server::page, none, Rest::name},
      {"GET", "/health", &Server::health, none},
      {"GET", "/ping", &Server::health, none},
      {"POST", "/ping", &Server::health, none},
      {"GET", "/load", &Server::load, none},
      {"GET", "/version", &Server::version, none},
      {"GET", "/metrics", &Server::metrics, none},
      {"GET", "/v1/engine", &Server::engine},
      {"POST", "/v1/engine", &Server::change_engine},
      {"GET", "/v1/engine/steps", &Server::steps},
      {"GET", "/v1/models", &Server::models},
      {"GET", "/v1/models/", &Server::model, client, Rest::name},
      {"POST", "/v1/completions", &Server::answer},
      {"POST", "/v1/chat/completions", &Server::answer},
      {"POST", "/v1/responses", &Server::answer},
      {"POST", "/v1/messages", &Server::answer},
      {"POST", "/v1/messages/count_tokens", &Server::count_tokens},
      {"POST", "/v1/chat/completions/render", &Server::render},
      {"POST", "/v1/responses/render", &Server::render},
      {"POST", "/v1/messages/render", &Server::render},
      {"POST", "/v1/embeddings", &Server::embeddings},
      {"POST", "/tokenize", &Server::tokenize},
      {"POST", "/detokenize", &Server::detokenize},
      {"POST", "/admin/weights", &Server::take_weights, admin},
      {"GET", "/v1/completions/", &Server::retrieve, client, Rest::id},
      {"GET", "/v1/chat/completions/", &Server::retrieve, client, Rest::id},
      {"GET", "/v1/receipts/", &Server::retrieve, client, Rest::id},
      {"GET", "/v1/responses/", &Server::retrieve, client, Rest::id},
      {"GET", "/v1/responses/", &Server::input_items, client, Rest::input_items},
      {"DELETE", "/v1/responses/", &Server::forget_response, client, Rest::id},
      {"GET", "/v1/messages/", &Server::retrieve, client, Rest::id},
  };
  return kRoutes;
}

// What RL stacks ask for, under the names of theirs (docs/rl_stacks.md). Whoever may change the
// weights may also stop the answers.
const std::vector<Server::Route>& Server::trainer_routes() {
  using enum Keys::Need;
  static const std::vector<Route> kRoutes = {
      // SGLang's: slime.
      {"POST", "/generate", &Server::generate_sglang},
      {"GET", "/health_generate", &Server::health, none},
      {"GET", "/server_info", &Server::server_info},
      {"GET", "/get_server_info", &Server::server_info},
      {"GET", "/model_info", &Server::server_info},
      {"GET", "/get_model_info", &Server::server_info},
      {"GET", "/get_weight_version", &Server::get_weight_version},
      {"POST", "/update_weights_from_disk", &Server::update_from_disk, trainer},
      {"GET", "/flush_cache", &Server::reset_prefix_cache, trainer},
      {"POST", "/flush_cache", &Server::reset_prefix_cache, trainer},
      {"POST", "/pause_generation", &Server::pause, trainer},
      {"POST", "/continue_generation", &Server::go_on_generating, trainer},
      {"POST", "/abort_request", &Server::abort_requests, trainer},
      {"POST", "/weights_checker", &Server::check_weights, trainer},
      {"POST", "/release_memory_occupation", &Server::release_memory, trainer},
      {"POST", "/resume_memory_occupation", &Server::resume_memory, trainer},
      {"POST", "/update_weights_from_tensor", &Server::refuse_transport, trainer},
      {"POST", "/update_weights_from_distributed", &Server::refuse_transport, trainer},
      {"POST", "/init_weights_update_group", &Server::refuse_transport, trainer},
      // vLLM's: SkyRL, OpenRLHF.
      {"POST", "/init_weight_transfer_engine", &Server::init_transfer, trainer},
      {"POST", "/start_weight_update", &Server::start_update, trainer},
      {"POST", "/update_weights", &Server::update_weights, trainer},
      {"POST", "/finish_weight_update", &Server::finish_update, trainer},
      {"POST", "/weight_checker", &Server::check_weights, trainer},
      {"POST", "/pause", &Server::pause, trainer},
      {"POST", "/resume", &Server::go_on_generating, trainer},
      {"GET", "/is_paused", &Server::is_paused},
      {"POST", "/abort_requests", &Server::abort_requests, trainer},
      {"POST", "/sleep", &Server::sleep, trainer},
      {"POST", "/wake_up", &Server::wake_up, trainer},
      {"GET", "/is_sleeping", &Server::is_paused},
      {"POST", "/reset_prefix_cache", &Server::reset_prefix_cache, trainer},
      {"GET", "/get_world_size", &Server::world_size},
      {"POST", "/collective_rpc", &Server::refuse_transport, trainer},
      // TRL's vllm-serve.
      {"GET", "/health/", &Server::health, none},
      {"GET", "/get_world_size/", &Server::world_size},
      {"POST", "/generate/", &Server::generate_trl},
      {"POST", "/reset_prefix_cache/", &Server::reset_prefix_cache, trainer},
      {"POST", "/init_communicator/", &Server::refuse_transport, trainer},
      {"POST", "/update_named_param/", &Server::refuse_transport, trainer},
      {"POST", "/batch_update_named_params/", &Server::refuse_transport, trainer},
      {"POST", "/close_communicator/", &Server::refuse_transport, trainer},
  };
  return kRoutes;
}

}  // namespace invar::server
