// Routes of the clients of Ollama and of llama.cpp's server, and of evaluations (docs/tools.md).
#include "doors.h"
#include "routes.h"

namespace invar::server {

const std::vector<Server::Route>& Server::tool_routes() {
  using namespace doors;
  using enum Keys::Need;
  using Rest = Route::Rest;
  static const std::vector<Route> kRoutes = {
      // Ollama's.
      {"POST", "/api/chat", &Server::ollama_answer, kAnswer},
      {"POST", "/api/generate", &Server::ollama_answer, kAnswer},
      {"GET", "/api/tags", &Server::ollama_tags, kFixed},
      {"GET", "/api/ps", &Server::ollama_ps, kFixed},
      {"POST", "/api/show", &Server::ollama_show, kFixed},
      {"GET", "/api/version", &Server::ollama_version, kFixed, none},
      {"POST", "/api/embed", &Server::ollama_embed, kEmbedding},
      {"POST", "/api/embeddings", &Server::ollama_embed, kEmbedding},
      {"POST", "/api/pull", &Server::refuse_library, kRefused},
      {"POST", "/api/push", &Server::refuse_library, kRefused},
      {"POST", "/api/create", &Server::refuse_library, kRefused},
      {"POST", "/api/copy", &Server::refuse_library, kRefused},
      {"DELETE", "/api/delete", &Server::refuse_library, kRefused},
      // llama.cpp's.
      {"POST", "/completion", &Server::answer, kAnswer},
      {"POST", "/infill", &Server::answer, kAnswer},
      {"GET", "/props", &Server::props, kFixed},
      {"GET", "/slots", &Server::slots_in_use, kFixed},
      {"POST", "/apply-template", &Server::apply_template, kTokens},
      {"POST", "/v1/reranking", &Server::ask, kScore},
      {"POST", "/reranking", &Server::ask, kScore},
      // OpenAI's files and batches.
      {"POST", "/v1/files", &Server::add_file, kFile},
      {"GET", "/v1/files", &Server::list_files, kLine},
      {"GET", "/v1/files/", &Server::show_file, kLine, client, Rest::id},
      {"GET", "/v1/files/", &Server::file_content, kLine, client, Rest::content},
      {"DELETE", "/v1/files/", &Server::remove_file, kLine, client, Rest::id},
      {"POST", "/v1/batches", &Server::add_batch, kBatch},
      {"GET", "/v1/batches", &Server::list_batches, kLine},
      {"GET", "/v1/batches/", &Server::show_batch, kLine, client, Rest::id},
      {"POST", "/v1/batches/", &Server::cancel_batch, kLine, client, Rest::cancel},
      // Evaluations'.
      {"GET", "/tokenizer_info", &Server::tokenizer_info, kFixed},
  };
  return kRoutes;
}

}  // namespace invar::server
