// invar serve: the model behind an HTTP server that OpenAI's clients know.
#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "command.h"
#include "server/api.h"
#include "server/inproc_backend.h"

namespace invar::cli {

namespace {

struct ServeFlags {
  ModelFlags model;
  EngineFlags engine;
  server::ServerOptions server;
  std::vector<std::string> names;
  std::string template_file;
  std::string journal;
};

int run_serve(const ServeFlags& flags) {
  const auto model = load_model(flags.model);
  const Tokenizer tokenizer = load_tokenizer(*model);
  server::ServedModel served{.names = flags.names, .tokenizer = &tokenizer};
  if (served.names.empty()) served.names = {model->options().model};
  std::optional<ChatTemplate> chat;
  try {
    chat = load_chat_template(*model, flags.template_file);
    served.chat = &*chat;
  } catch (const Error& error) {
    if (!flags.template_file.empty()) throw;
    served.no_chat = error.what();
  }
  const auto engine = make_engine(*model, flags.engine);
  server::InprocBackend backend(*engine, tokenizer,
                                {.identity = model->identity(),
                                 .weights = weights_digest(model->options(), model->pool()),
                                 .instruction_set = model->instruction_set(),
                                 .vocab = static_cast<int32_t>(model->spec().vocab),
                                 .end_tokens = model->config().eos_ids,
                                 .prompt_logprobs = flags.engine.options.prompt_logprobs});
  std::unique_ptr<server::Journal> journal;
  if (!flags.journal.empty()) journal = std::make_unique<server::Journal>(flags.journal);
  server::Server server(flags.server, served, backend, journal.get());
  fmt::print(stderr, "{} as {} on {}\n", model->identity(), served.names.front(),
             model->instruction_set());
  fmt::print("http://{}:{}\n", flags.server.http.host, server.port());
  std::fflush(stdout);
  server.run();
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("serve", "Answer over HTTP as OpenAI's clients ask");
  auto flags = std::make_shared<ServeFlags>();
  flags->engine.options.prompt_logprobs = true;
  add_model_flags(*command, flags->model);
  add_engine_flags(*command, flags->engine);
  server::ServerOptions& o = flags->server;
  command->add_option("--host", o.http.host, "IP address to listen on")->capture_default_str();
  command->add_option("--port", o.http.port, "Port; 0 is any")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--served-model-name", flags->names,
                      "Names under which clients ask for the model");
  command->add_option("--api-key", o.api_keys, "Keys of which a client must show one")
      ->envname("INVAR_API_KEY");
  command->add_option("--chat-template", flags->template_file,
                      "A Jinja file instead of the model's own template");
  command->add_option("--journal", flags->journal,
                      "A file that keeps a line for each request, from which its answer can be "
                      "computed again");
  command->callback([&action, flags] { action = [flags] { return run_serve(*flags); }; });
}

}  // namespace invar::cli
