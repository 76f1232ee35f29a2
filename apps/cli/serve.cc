// invar serve: the model behind an HTTP server that OpenAI's clients know.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "engine_processes.h"
#include "scheduler/policies.h"
#include "serve_flags.h"
#include "serve_models.h"
#include "served.h"
#include "server/lab.h"
#include "server/replicas.h"
#include "session/weight_receiver.h"

namespace invar::cli {

namespace {

// The options that the flags ask the factory for.
InstanceOptions options_of(const ServeFlags& flags) {
  InstanceOptions options = instance_options(flags.model, flags.engine);
  options.replicas = flags.replicas;
  EngineOptions& engine = options.engine;
  if (flags.engine_context) {
    engine.scheduler.max_model_len = flags.engine_context;
    engine.fit_context = false;
  }
  if (flags.has_adapters || !flags.adapters.empty()) engine.adapters = flags.adapter_limits;
  // A request that comes in the middle of a step waits for its rest and for the next one.
  engine.target_step_seconds = flags.target_tbt_ms / 1000 / 2;
  return options;
}

// Where the engines compute on every core, pins the calling thread, which talks to clients, to
// the last one: the worker there steps aside between shares, the other cores go on meanwhile.
void seat_server(const Instance& instance) {
  const std::vector<int> cores = ThreadPool::usable_cores();
  const int threads = instance.threads();
  if (threads > 1 && static_cast<size_t>(threads) * instance.replicas() == cores.size())
    ThreadPool::pin(cores.back());
}

// The drafter that the server was started with.
std::string drafter_of(const ServeFlags& flags) {
  const SpeculativeConfig config = config_of(flags.engine.speculation);
  return config.is_on() ? std::string(name_of(config.method)) : "none";
}

// The choices that a lab of these flags gives clients: no other weights, and nothing that a GPU or
// several replicas would need more memory for.
server::LabChoices lab_choices(const ServeFlags& flags) {
  const ModelOptions options = resolved(flags.model);
  const DecoderSpec spec = read_model_config(options).spec;
  const bool is_plain = options.device == "cpu" && options.ranks == 1 && !options.is_pipeline() &&
                        flags.replicas == 1;
  server::LabChoices choices{.policies = scheduler_names(),
                             .arithmetics = {options.arithmetic},
                             .drafters = {"none", "ngram", "suffix", "lookahead"},
                             .ranks = {options.ranks}};
  if (is_plain && options.arithmetic != "control") choices.arithmetics.emplace_back("control");
  if (is_plain && spec.layers > 1) choices.drafters.emplace_back("early_exit");
  const int most = is_plain ? most_ranks(spec) : 0;
  for (int ranks = 2; ranks <= std::min(most, 4); ranks *= 2) choices.ranks.push_back(ranks);
  const std::string own = drafter_of(flags);
  if (std::ranges::find(choices.drafters, own) == choices.drafters.end())
    choices.drafters.push_back(own);
  return choices;
}

// The flags with which an engine computes as the settings of a lab say. `context`: of the first
// engine; 0: this is the first.
ServeFlags lab_flags(ServeFlags flags, const server::LabSettings& settings, int context) {
  SchedulerOptions& scheduler = flags.engine.options.scheduler;
  flags.model.options.arithmetic = settings.arithmetic;
  flags.model.options.ranks = settings.ranks;
  if (settings.drafter != drafter_of(flags))
    flags.engine.speculation = {.method = settings.drafter == "none" ? "" : settings.drafter};
  flags.engine_context = context;
  scheduler.policy = settings.policy;
  if (computes_whole_prompts(settings.policy))
    scheduler.max_num_batched_tokens = std::max(scheduler.max_num_batched_tokens, context);
  else if (settings.step_rows > 0)
    flags.engine.options.step_rows = settings.step_rows;
  return flags;
}

std::unique_ptr<WeightReceiver> make_receiver(const ServeFlags& flags, Model& model) {
  if (!flags.weights_by_nccl) return nullptr;
  return std::make_unique<WeightReceiver>(model, std::chrono::seconds(flags.transfer_seconds));
}

// An instance in this process and the backend that answers by it.
struct Local {
  Local(const InstanceOptions& options, const std::shared_ptr<Model>& model,
        const Tokenizer& tokenizer, std::unique_ptr<WeightReceiver> receiver = nullptr)
      : model(model),
        receiver(std::move(receiver)),
        instance(options, model),
        backend(instance, tokenizer) {
    say_context(instance);
  }
  Local(const ServeFlags& flags, const std::shared_ptr<Model>& model, const Tokenizer& tokenizer)
      : Local(options_of(flags), model, tokenizer, make_receiver(flags, *model)) {}
  Local(const ServeFlags& flags, const Tokenizer& tokenizer)
      : Local(flags, open_with_progress(options_of(flags)), tokenizer) {}

  const std::shared_ptr<Model> model;
  // It has its memory before the instance takes what is left.
  const std::unique_ptr<WeightReceiver> receiver;
  Instance instance;
  server::InprocReplicas backend;
};

// Engines by settings, one at a time. One that differs from the last in how it is scheduled has the
// same model.
std::unique_ptr<server::LabBackend> make_lab(const ServeFlags& flags, const Tokenizer& tokenizer) {
  if (flags.engine_process || has_replica_processes(flags))
    fail_usage(
        "--lab changes the engine in this process: leave out --engine-process, and replicas that "
        "are processes");
  struct Last {
    std::shared_ptr<Model> model;
    int context = 0;
  };
  auto build = [flags, &tokenizer, last = std::make_shared<Last>()](
                   const server::LabSettings& settings) -> server::LabBackend::Built {
    const InstanceOptions options = options_of(lab_flags(flags, settings, last->context));
    if (last->model && !is_loaded_for(*last->model, options))
      last->model = nullptr;  // before the next one is loaded
    if (!last->model) last->model = open_with_progress(options);
    auto local = std::make_shared<Local>(options, last->model, tokenizer);
    last->context = local->instance.engine().max_model_len();
    return {.owner = local, .backend = &local->backend};
  };
  return std::make_unique<server::LabBackend>(
      std::move(build),
      server::LabSettings{.policy = flags.engine.options.scheduler.policy,
                          .arithmetic = flags.model.options.arithmetic,
                          .drafter = drafter_of(flags),
                          .ranks = flags.model.options.ranks},
      lab_choices(flags));
}

std::unique_ptr<server::Journal> open_journal(const ServeFlags& flags) {
  using Sync = server::JournalOptions::Sync;
  if (flags.journal.empty()) return nullptr;
  const int64_t most = int64_t{flags.journal_max_gib} << 30;
  const auto keys = std::max<int64_t>(1, std::ssize(flags.server.keys.client));
  return std::make_unique<server::Journal>(
      flags.journal,
      server::JournalOptions{
          .sync = flags.journal_sync == "power" ? Sync::power_loss : Sync::process_death,
          .accept_loss = flags.journal_accept_loss,
          .strict = flags.journal_strict,
          .quota = {.all = most, .of_owner = most / keys}});
}

void say_step_rows(const ServeFlags& flags, Instance& instance) {
  if (flags.target_tbt_ms > 0)
    fmt::print(stderr, "steps of up to {} rows (--target-tbt-ms {})\n",
               instance.engine().step_rows(), flags.target_tbt_ms);
}

// Gives the memory of large bodies and answers back to the system. Left to itself the allocator
// takes each large piece that is freed as a reason to keep the next one (mallopt(3)), and 20 bodies
// of 10 MB leave 190 MiB behind.
void give_back_large_pieces() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

// In units of the server's options.
void set_server_options(ServeFlags& flags) {
  server::HttpOptions& http = flags.server.http;
  http.header_timeout = std::chrono::seconds(flags.header_seconds);
  http.body_timeout = std::chrono::seconds(flags.body_seconds);
  http.idle_timeout = std::chrono::seconds(flags.idle_seconds);
  http.comment_after = std::chrono::seconds(flags.comment_seconds);
  http.write_timeout = std::chrono::seconds(flags.write_seconds);
  flags.server.request_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(flags.request_seconds * 1000));
  http.max_body_bytes = static_cast<size_t>(flags.body_mib) << 20;
  flags.server.max_queued_bytes = static_cast<size_t>(flags.queued_mib) << 20;
  http.max_bodies_bytes = static_cast<size_t>(flags.bodies_mib) << 20;
  flags.server.max_update_bytes = static_cast<size_t>(flags.update_gib) << 30;
}

// A server without keys is for this machine, unless it is told otherwise; several keys have shares.
void set_reach(ServeFlags& flags) {
  server::ServerOptions& o = flags.server;
  const bool has_keys = !o.keys.client.empty();
  o.http.host = !flags.host.empty() ? flags.host : has_keys ? "0.0.0.0" : "127.0.0.1";
  using Origins = std::vector<std::string>;
  o.allowed_origins = flags.origins.value_or(has_keys ? Origins{"*"} : Origins{});
  o.fair_by_key = flags.fair_by.empty() ? o.keys.client.size() > 1 : flags.fair_by == "key";
  flags.engine.options.scheduler.urgent_take_slots = o.fair_by_key;
  const bool is_local =
      o.http.host == "localhost" || o.http.host == "::1" || o.http.host.starts_with("127.");
  if (flags.lab && !has_keys && !is_local)
    fail_usage(
        "--lab lets clients change the engine: expected --api-key or a --host of this machine "
        "alone, found --host {}",
        o.http.host);
  if (flags.lab && o.keys.client.size() > 1)
    fail_usage("--lab lets each client change the engine for all: expected one --api-key, found {}",
               o.keys.client.size());
}

// From the first second on: on a terminal a line that shows how far it is follows.
void say_what_is_loaded(const server::ModelCard& card, const ModelOptions& options) {
  fmt::print(stderr, "loading {}: {}, {:.1f} million parameters, {:.2f} GiB of {}, on {}\n",
             options.model, card.family, static_cast<double>(card.parameters) / 1e6,
             static_cast<double>(card.bytes) / (1 << 30), card.weights, options.device);
}

// The log says which values hold where a request is silent and the model's files are, too.
void say_sampling(const server::ServedModel& model) {
  if (!model.defaults_from.starts_with("the family")) return;
  std::vector<std::string> said;
  for_each_field<&FieldFacts::of_model>(model.defaults, [&](const auto& field, const auto& value) {
    said.push_back(fmt::format("{} {}", field.name, value));
  });
  fmt::print(stderr,
             "requests that do not say it have {}, as is recommended for {}; --generation-config "
             "vllm turns it off\n",
             fmt::join(said, ", "), model.defaults_from);
}

// Answers that are computed again must depend on the request alone.
void refuse_beside_rejection(const ServeFlags& flags) {
  if (!config_of(flags.engine.speculation).rejection) return;
  const char* asked = !flags.journal.empty()         ? "--journal"
                      : flags.engine_process         ? "--engine-process"
                      : has_replica_processes(flags) ? "--data-parallel-size with processes"
                      : !flags.receipt_key.empty()   ? "--receipt-key"
                      : flags.lab                    ? "--lab"
                                                     : nullptr;
  if (asked)
    fail_usage(
        "{} computes answers again, and with \"acceptance\": \"rejection\" they depend on the "
        "drafts; use the acceptance coupled",
        asked);
}

// One engine in this process takes weights by NCCL. On the CPU NCCL has nothing to do, unless a
// library of somebody's own is named.
void refuse_beside_nccl(const ServeFlags& flags) {
  if (!flags.weights_by_nccl) return;
  const char* asked = flags.lab                      ? "--lab"
                      : flags.engine_process         ? "--engine-process"
                      : has_replica_processes(flags) ? "--data-parallel-size with processes"
                      : flags.replicas > 1           ? "--data-parallel-size"
                      : flags.models.size() > 1      ? "several models"
                      : flags.has_adapters           ? "--enable-lora"
                      : !flags.adapters.empty()      ? "--lora-modules"
                                                     : nullptr;
  if (asked)
    fail_usage(
        "the --weight-transfer-config nccl needs one engine in the server's process, without "
        "adapters, found {}",
        asked);
  if (flags.model.options.device == "cpu" && !std::getenv("INVAR_NCCL"))
    fail_usage("the --weight-transfer-config nccl needs a GPU (--device cuda), found the cpu");
}

[[noreturn]] void run_engine_process(ServeFlags flags, const Tokenizer& tokenizer) {
  if (flags.engine_replica >= 0) become_replica(flags);
  Local local(flags, tokenizer);
  say_step_rows(flags, local.instance);
  seat_server(local.instance);
  server::serve_engine(flags.engine_files.first, local.backend);
}

// The one that is named, if one is.
void take_model(ServeFlags& flags) {
  if (flags.models.size() != 1) return;
  const ModelWord word = model_word(flags.models.front());
  flags.model.options.model = word.model;
  if (flags.names.empty()) flags.names = word.names;
}

void say_address(const ServeFlags& flags, int port) {
  const server::HttpOptions& http = flags.server.http;
  fmt::print("{}://{}:{}\n", http.certificate_file.empty() ? "http" : "https", http.host, port);
  std::fflush(stdout);
}

int run_serve(ServeFlags flags) {
  const bool is_engine_process = flags.engine_files.first >= 0;
  std::optional<server::SignOfLife> alive;
  if (is_engine_process) alive.emplace(flags.engine_files.second);
  give_back_large_pieces();
  const bool is_behind_front = flags.front_files.first >= 0 && !is_engine_process;
  if (is_behind_front) take_front(flags);
  take_model(flags);
  const bool is_named = !flags.model.options.model.empty();
  refuse_beside_rejection(flags);
  if (flags.engine_files.first < 0) refuse_beside_nccl(flags);
  set_server_options(flags);
  set_reach(flags);
  if (!is_engine_process) server::HttpServer::expect_free(flags.server.http);
  if (flags.models.size() > 1) return serve_models(flags);
  const ModelOptions options = resolved(flags.model);
  if (flags.names.empty())
    flags.names = {is_named ? flags.model.options.model
                            : std::filesystem::path(options.model).filename().string()};
  if (flags.names.front().find('*') != std::string::npos)
    fail_usage("expected the first of --served-model-name as a name without *, found {}",
               flags.names.front());
  const Tokenizer tokenizer = open_tokenizer(options);
  if (is_engine_process) run_engine_process(flags, tokenizer);
  const Served served(flags, options, tokenizer);
  say_what_is_loaded(served.model().card, options);
  say_sampling(served.model());
  std::optional<Local> local;
  std::unique_ptr<server::Backend> apart;
  std::unique_ptr<server::LabBackend> lab;
  if (flags.lab)
    flags.server.lab = (lab = make_lab(flags, tokenizer)).get();
  else
    apart = make_engine_processes(flags, tokenizer);
  server::Backend& backend = lab     ? static_cast<server::Backend&>(*lab)
                             : apart ? *apart
                                     : local.emplace(flags, tokenizer).backend;
  if (local) say_step_rows(flags, local->instance);
  if (local) flags.server.receiver = local->receiver.get();
  const auto journal = open_journal(flags);
  if (journal) flags.server.batch_file = flags.journal + "-batches";
  if (journal && served.model().adapters)
    served.model().adapters->keep_in(
        *journal, [](const std::string& wrong) { fmt::print(stderr, "invar: {}\n", wrong); });
  server::Server server(flags.server, served.model(), backend, journal.get());
  fmt::print(stderr, "{} as {} on {}\n", backend.facts().identity, flags.names.front(),
             backend.facts().instruction_set);
  is_behind_front ? tell_front(flags, server.port()) : say_address(flags, server.port());
  if (local) seat_server(local->instance);
  try {
    server.run();
  } catch (const server::EngineFailed& error) {
    // Without destructors: a device that failed may not give its memory back.
    fmt::print(stderr, "invar: {}\n", error.what());
    std::_Exit(1);
  }
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("serve",
                         "Serve a model over HTTP, for clients of OpenAI, Anthropic, Ollama and "
                         "llama.cpp");
  auto flags = std::make_shared<ServeFlags>();
  add_serve_flags(*command, *flags);
  command->callback([&action, flags, command] {
    if (command->count("--max-num-batched-tokens") > 0) flags->target_tbt_ms = 0;
    if (flags->models.size() > 1) flags->passed = passed_options(*command);
    action = [flags] { return run_serve(*flags); };
  });
}

}  // namespace invar::cli
