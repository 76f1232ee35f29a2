// Questions of RL stacks beside answers and weights: the configuration under vLLM's and SGLang's
// names, the loads.
#include "api.h"
#include "base/ends.h"
#include "query.h"

namespace invar::server {

// As vLLM's configuration has it, of which trainers read whether weights can be transferred and
// what log-probabilities are of.
json::Value Server::vllm_config() const {
  const BackendFacts facts = backend_.facts();
  const std::string name = first_of(model_.names);
  return json::Object{
      {"model_config", json::Object{{"model", name},
                                    {"tokenizer", name},
                                    {"served_model_name", name},
                                    {"dtype", "bfloat16"},
                                    {"max_model_len", int64_t{facts.max_model_len}},
                                    {"max_logprobs", int64_t{model_.max_logprobs}},
                                    {"logprobs_mode", name_of(model_.defaults.logprobs_mode)},
                                    {"enable_return_routed_experts", facts.routed_layers > 0},
                                    {"enable_sleep_mode", true}}},
      {"cache_config", json::Object{{"block_size", int64_t{facts.block_size}},
                                    {"num_gpu_blocks", int64_t{backend_.stats().blocks}},
                                    {"enable_prefix_caching", facts.prefix_caching}}},
      {"parallel_config", json::Object{{"tensor_parallel_size", 1},
                                       {"pipeline_parallel_size", 1},
                                       {"data_parallel_size", 1},
                                       {"world_size", 1}}},
      {"weight_transfer_config", json::Object{{"backend", options_.receiver ? "nccl" : "http"}}},
      {"instance_id", facts.identity}};
}

// Under the names of both, since both ask here; `config_format=json` is how vLLM's clients ask for
// an object.
void Server::server_info(std::shared_ptr<Exchange> exchange) {
  const BackendFacts facts = backend_.facts();
  const int64_t slots = int64_t{backend_.stats().blocks} * facts.block_size;  // of all replicas
  const std::string name = first_of(model_.names);
  const bool as_json = query_parameter(exchange->request.query, "config_format") == "json";
  const json::Value config = vllm_config();
  exchange->reply({.body = json::dump(json::Object{
                       {"model_path", name},
                       {"served_model_name", name},
                       {"tokenizer_path", name},
                       {"is_generation", true},
                       {"version", INVAR_VERSION},
                       {"tp_size", 1},
                       {"pp_size", 1},
                       {"dp_size", 1},
                       {"ep_size", 1},
                       {"num_gpus", 1},
                       {"nnodes", 1},
                       {"disaggregation_mode", "null"},
                       {"max_total_num_tokens", slots},
                       {"context_length", int64_t{facts.max_model_len}},
                       {"weight_version", weight_version_},
                       {"identity", facts.identity},
                       {"weights", to_hex(facts.weights)},
                       {"vllm_config", as_json ? config : json::Value(json::dump(config))},
                       {"vllm_env", json::Object{}},
                       {"system_env", json::Object{}}})});
}

// Ranks are threads of the server: to a trainer it is one.
void Server::world_size(std::shared_ptr<Exchange> exchange) {
  exchange->reply({.body = json::dump(json::Object{{"world_size", 1}})});
}

void Server::weight_info(std::shared_ptr<Exchange> exchange) {
  exchange->reply(
      {.body = json::dump(json::Object{{"weight_version", weight_version_},
                                       {"weights", to_hex(backend_.facts().weights)}})});
}

// SGLang's: what runs and waits, and what is left of the cache. All replicas are one.
void Server::loads(std::shared_ptr<Exchange> exchange) {
  const BackendFacts facts = backend_.facts();
  const BackendStats stats = backend_.stats();
  const int64_t slots = int64_t{stats.blocks} * facts.block_size;
  const int64_t used = int64_t{stats.blocks - stats.free_blocks} * facts.block_size;
  const json::Value one = json::Object{
      {"dp_rank", 0},
      {"num_running_reqs", int64_t{stats.running}},
      {"num_waiting_reqs", int64_t{stats.waiting} + static_cast<int64_t>(behind_swap_.size())},
      {"num_total_reqs", static_cast<int64_t>(streams_.size() + behind_swap_.size())},
      {"num_used_tokens", used},
      {"max_total_num_tokens", slots},
      {"token_usage", slots ? static_cast<double>(used) / static_cast<double>(slots) : 0.0}};
  exchange->reply({.body = json::dump(json::Object{{"version", INVAR_VERSION},
                                                   {"dp_rank_count", 1},
                                                   {"loads", json::Array{one}},
                                                   {"aggregate", one}})});
}

// A profile of steps is a file that the server was started to write.
void Server::refuse_profile(std::shared_ptr<Exchange>) {
  throw ApiError{400,
                 "expected a server that was started with --trace-steps FILE, which has each step; "
                 "profiles do not begin and end while it runs",
                 "unsupported"};
}

}  // namespace invar::server
