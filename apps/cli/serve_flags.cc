// The flags of invar serve.
#include "serve_flags.h"

#include <fmt/ranges.h>

#include <ranges>

#include "base/error.h"
#include "base/json.h"
#include "foreign_flags.h"
#include "frontend/request_limits.h"
#include "frontend/style_names.h"
#include "frontend/thoughts.h"
#include "frontend/tool_calls.h"
#include "help_format.h"
#include "hub_cache.h"
#include "model_sampling.h"
#include "session/sampling_defaults.h"
#include "trainer_flags.h"

namespace invar::cli {

namespace {

// Words, or vLLM's form: a JSON list, of which the parser of flags has taken the brackets off and
// cut the rest at its commas.
std::vector<std::string> list_of(const std::vector<std::string>& words) {
  if (words.empty() || !words.front().starts_with('"')) return words;
  const json::Value list =
      json::parse(fmt::format("[{}]", fmt::join(words, ",")), "a list of texts");
  std::vector<std::string> texts;
  for (const json::Value& text : list.as_array()) {
    if (!text.is_string())
      fail_usage("expected texts in a list of JSON, found {}", json::excerpt(text));
    texts.push_back(text.as_string());
  }
  return texts;
}

// Where clients connect, and who may.
void add_client_flags(CLI::App& command, ServeFlags& flags) {
  server::ServerOptions& o = flags.server;
  command.add_option(
      "--host", flags.host,
      "IP address to listen on (default: 127.0.0.1 without --api-key, else 0.0.0.0)");
  command.add_option("--port", o.http.port, "Port; 0 picks a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  CLI::Option* certificate = command.add_option("--ssl-certfile", o.http.certificate_file,
                                                "Serve TLS with this certificate chain (PEM)");
  CLI::Option* key =
      command.add_option("--ssl-keyfile", o.http.key_file, "Private key of the certificate (PEM)");
  certificate->needs(key);
  key->needs(certificate);
  // An empty key, of a variable that is not set, would be shown by everyone.
  const CLI::Validator not_empty(
      [](const std::string& key) { return key.empty() ? "expected a key, found none" : ""; }, "");
  command.add_option("--api-key", o.keys.client, "API keys, one of which a client must send")
      ->envname("INVAR_API_KEY")
      ->check(not_empty);
  command
      .add_option("--admin-key", o.keys.admin,
                  "API keys for what changes the server for everybody: weights, pauses, ends of "
                  "others' answers (default: that of --api-key, where it is one)")
      ->envname("INVAR_ADMIN_KEY")
      ->check(not_empty);
  command.add_flag("--trust-trainers", o.keys.trusts_trainers,
                   "RL stacks need no key to change weights, pause and end answers "
                   "(docs/rl_stacks.md): for networks that nobody else reaches");
  command
      .add_option_function<std::vector<std::string>>(
          "--allowed-origins",
          [&flags](const std::vector<std::string>& words) { flags.origins = list_of(words); },
          "Origins of pages that may send requests (CORS), as a list or as JSON (default: none "
          "without --api-key, else *)")
      ->delimiter(',');
  command
      .add_option("--allowed-hosts", o.allowed_hosts,
                  "Names by which clients may ask a server without --api-key, beside addresses and "
                  "the machine's own names; * stands for anything, as in *.internal")
      ->delimiter(',');
}

// Limits on clients' use of the server.
void add_limit_flags(CLI::App& command, ServeFlags& flags) {
  server::ServerOptions& o = flags.server;
  command
      .add_option("--max-queued-requests", o.max_queued,
                  "Most unfinished answers; more requests are refused with 429")
      ->capture_default_str();
  command
      .add_option("--max-queued-mib", flags.queued_mib,
                  "Memory in MiB that the requests of unfinished answers may hold; more requests "
                  "are refused with 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--max-connections", o.http.max_connections, "Most concurrent connections")
      ->capture_default_str();
  const auto positive = CLI::Range(1, 1 << 20);
  command
      .add_option("--max-body-mib", flags.body_mib,
                  "Largest request body in MiB, chunk headers included")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      .add_option("--max-bodies-mib", flags.bodies_mib,
                  "Memory in MiB for all bodies beyond 64 KiB that arrive or wait to be parsed, "
                  "counted twice; further ones wait unread")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--header-timeout", flags.header_seconds, "Seconds to receive a request's header")
      ->check(positive)
      ->capture_default_str();
  command
      .add_option("--body-timeout", flags.body_seconds,
                  "Seconds to receive each 64 KiB of its body")
      ->check(positive)
      ->capture_default_str();
  command
      .add_option("--timeout-keep-alive", flags.idle_seconds,
                  "Seconds that a connection may be idle between requests")
      ->check(positive)
      ->capture_default_str();
  command
      .add_option("--stream-comment-seconds", flags.comment_seconds,
                  "Seconds after which a stream that has nothing to say sends a comment, so that "
                  "nobody between takes its connection for dead")
      ->check(positive)
      ->capture_default_str();
  command
      .add_option("--write-timeout", flags.write_seconds,
                  "Seconds in which a client must read some of its answer")
      ->check(positive)
      ->capture_default_str();
  command
      .add_option("--request-timeout", flags.request_seconds,
                  "Deadline of an answer in seconds; 0 is no limit. A client can request less "
                  "with the header X-Request-Timeout")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
}

// vLLM's way to say them all, as JSON.
void take_sampling(const std::string& text, ServeFlags& flags) {
  const json::Value all = json::parse(text, "--override-generation-config");
  if (!all.is_object())
    fail_usage("expected --override-generation-config as an object of JSON, found {}",
               all.type_name());
  for (const auto& [name, value] : all.as_object()) {
    if (!has_field<SamplingParams, &FieldFacts::of_model>(name) || !value.is_number()) {
      const json::Value defaults = defaults_json({});
      std::vector<std::string> known;
      for (const auto& field : defaults.as_object()) known.push_back(field.first);
      fail_usage("expected numbers under {} in --override-generation-config, found {}: {}",
                 fmt::join(known, ", "), json::quoted(name), json::excerpt(value));
    }
    flags.sampling.set(name, value);
  }
}

// Adds flags for the parameters that requests leave open.
void add_default_sampling(CLI::App& command, ServeFlags& flags) {
  const SamplingParams unsaid;
  for_each_field<&FieldFacts::of_model>(unsaid, [&](const auto& field, const auto&) {
    command.add_option_function<double>(
        flag_of(field.name),
        [&flags, name = field.name](double value) { flags.sampling.set(name, value); },
        fmt::format("{} of requests that leave it open (default: the model's)", field.name));
  });
  command.add_option_function<std::string>(
      "--override-generation-config",
      [&flags](const std::string& text) { take_sampling(text, flags); },
      "The same as JSON: {\"temperature\": 0.7}");
}

// How answers are made.
void add_answer_flags(CLI::App& command, ServeFlags& flags) {
  command.add_option("--served-model-name", flags.names,
                     "Names by which clients request the model; in any but the first * stands for "
                     "anything, as in claude-*");
  command.add_flag("--clamp-max-tokens", flags.clamp_max_tokens,
                   "max_tokens beyond the context means as many as fit, at every endpoint; "
                   "/v1/messages and /v1/responses always do so");
  command
      .add_option("--tool-call-parser", flags.tool_parser,
                  "How the model writes tool calls: auto (from its template) or one of " +
                      names_of(tool_styles()))
      ->capture_default_str();
  command
      .add_option("--reasoning-parser", flags.thought_parser,
                  "How the model writes its thoughts: auto (from its template), none, which leaves "
                  "them in the text, or one of " +
                      names_of(thought_styles()))
      ->capture_default_str();
  command
      .add_option(
          "--generation-config", flags.generation_config,
          "Sampling defaults: auto (the model's generation_config.json or GGUF metadata; where "
          "there is neither, those that its family's publisher recommends) or vllm (vLLM's)")
      ->capture_default_str();
  add_default_sampling(command, flags);
  command.add_option("--chat-template", flags.template_file,
                     "Jinja file to use instead of the model's chat template");
  command
      .add_option("--max-logprobs", flags.max_logprobs,
                  "Largest logprobs, top_logprobs and prompt_logprobs of a request; -1 means 1024")
      ->check(CLI::Range(-1, kMostLogprobs))
      ->capture_default_str();
  command
      .add_option("--logprobs-mode", flags.logprobs_mode,
                  "The kind of log-probabilities where a request does not say it: raw_logprobs (of "
                  "the model's logits), scaled_logprobs (of the logits by the temperature), "
                  "processed_logprobs (of what is sampled from), raw_logits or processed_logits")
      ->capture_default_str();
  command.add_flag("--no-prompt-logprobs{false}", flags.engine.options.prompt_logprobs,
                   "Refuse prompt_logprobs and echo with logprobs");
}

// Low-rank adapters, under vLLM's names.
void add_adapter_flags(CLI::App& command, ServeFlags& flags) {
  command.add_flag("--enable-lora", flags.has_adapters,
                   "Let requests have low-rank adapters, loaded by --lora-modules or by POST "
                   "/v1/load_lora_adapter");
  command.add_option(
      "--lora-modules", flags.adapters,
      "Adapters, each NAME=PATH, a directory as PEFT saves it or a GGUF file: a request "
      "whose model is NAME is computed with it");
  command
      .add_option("--max-loras", flags.adapter_limits.most,
                  "Most different adapters of requests that are computed at the same time; others "
                  "wait")
      ->check(CLI::Range(1, AdapterLoad::kMostSlots))
      ->capture_default_str();
  command
      .add_option("--max-lora-rank", flags.adapter_limits.most_rank, "Largest rank of an adapter")
      ->check(CLI::Range(1, static_cast<int>(kMostAdapterRank)))
      ->capture_default_str();
}

// One model or several, where other commands have one.
void add_models(CLI::App& command, ServeFlags& flags) {
  command.remove_option(command.get_option("MODEL"));
  command
      .add_option("MODEL", flags.models,
                  "A model, as for the other commands: a Hugging Face directory, a GGUF file, one "
                  "that invar pull has fetched (OWNER/NAME, or OWNER/NAME:QUANT), or with "
                  "--load-format dummy:SEED a preset's name. Default: the bundled model. Several "
                  "are loaded when a request names them, each NAME=MODEL or "
                  "NAME,OTHER-NAME,PATTERN*=MODEL")
      ->transform(CLI::Validator(open_hub_cache, ""));
  command
      .add_option("--models-memory", flags.models_gib,
                  "With several models: memory in GiB for those that are loaded; the one that was "
                  "asked for least recently makes room (default: four fifths of what is free)")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--models-max", flags.models_max,
                  "With several models: most that are loaded at the same time; 0 is as many as "
                  "fit, on a GPU without --models-memory one")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--front-files", flags.front_files)->group("");
}

// How engines run.
void add_serving_flags(CLI::App& command, ServeFlags& flags) {
  command
      .add_option(
          "--data-parallel-size", flags.replicas,
          "Replicas, each with its own threads, KV cache and sequences. On a CPU they share the "
          "weights; on GPUs, and with ranks or the executor mp, each is a process with weights, "
          "GPUs and ranks of its own, and is started again if it dies")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      .add_option("--target-tbt-ms", flags.target_tbt_ms,
                  "Target for the P99 time between tokens in ms. A stall-free policy "
                  "limits the rows of a step to what fits, measured at start unless "
                  "--max-num-batched-tokens is given. 0 is off")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option(
          "--fair-by", flags.fair_by,
          "key: API keys have equal shares of places and steps, and a key's priority orders "
          "its own requests; none: priority orders all (default: key with several keys)")
      ->check(CLI::IsMember({"key", "none"}));
  command.add_flag("--share-prefixes", flags.share_prefixes,
                   "With several API keys: let requests of different keys share computed prompt "
                   "blocks. The time to the first token then tells whether another key has sent "
                   "the same beginning");
  command.add_flag("--engine-process", flags.engine_process,
                   "Run the engine in a process of its own and restart it if it dies");
  command.add_flag("--lab", flags.lab,
                   "Let clients change the scheduling policy, the rows of a step, the drafter, the "
                   "ranks and the arithmetic, for the demonstrations of the page at /");
  command.add_option("--engine-files", flags.engine_files)->group("");  // of that process
  command.add_option("--engine-context", flags.engine_context)->group("")->take_last();
  command.add_option("--engine-replica", flags.engine_replica)->group("");
}

// Files that the server writes.
void add_record_flags(CLI::App& command, ServeFlags& flags) {
  server::ServerOptions& o = flags.server;
  command.add_option(
      "--journal", flags.journal,
      "File with a line for each request, from which its answer can be recomputed after a crash");
  command
      .add_option("--journal-sync", flags.journal_sync,
                  "What the journal survives: the end of a process, or a loss of power")
      ->check(CLI::IsMember({"process", "power"}))
      ->capture_default_str();
  command
      .add_option_function<int>(
          "--journal-keep",
          [&flags](int hours) { flags.server.journal_keep = int64_t{hours} * 3600; },
          "Hours to keep journal lines of finished answers (168)")
      ->check(CLI::Range(0, 1'000'000));
  command
      .add_option("--journal-max-gib", flags.journal_max_gib,
                  "Size of the journal in GiB, of which each key has an equal share; the oldest "
                  "finished answers make room for new ones")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_flag("--journal-accept-loss", flags.journal_accept_loss,
                   "Start although lines of the journal are lost or changed");
  command
      .add_flag("--journal-strict", flags.journal_strict,
                "Do not start where the end of the journal is lost, as where its log was deleted; "
                "without it the start says how many lines are lost, and goes on")
      ->excludes("--journal-accept-loss");
  command.add_option("--receipt-key", flags.receipt_key,
                     "Sign receipts with this Ed25519 key (PEM), created if it does not exist; "
                     "without it there are no receipts");
  command.add_option("--log-requests", o.request_log,
                     "Append a line of JSON to this file when a request ends; - is the error "
                     "stream");
  command.add_option("--trace-steps", o.step_trace,
                     "Write the engine's steps to this file as a trace for Perfetto");
}

}  // namespace

void add_serve_flags(CLI::App& command, ServeFlags& flags) {
  flags.engine.options.prompt_logprobs = flags.engine.options.embeddings = true;
  flags.engine.options.scheduler.max_num_seqs = 256;  // vLLM's server
  flags.engine.options.scheduler.max_num_batched_tokens = 2048;
  add_model_flags(command, flags.model);
  add_models(command, flags);
  add_engine_flags(command, flags.engine);
  add_client_flags(command, flags);
  add_limit_flags(command, flags);
  add_answer_flags(command, flags);
  add_adapter_flags(command, flags);
  add_serving_flags(command, flags);
  add_trainer_flags(command, flags);
  add_record_flags(command, flags);
  refuse_foreign_flags(command);
  show_first(
      command,
      {{"Clients", {"--host", "--port", "--api-key", "--served-model-name", "--journal"}},
       {"Speed and memory",
        {"--device", "--threads", "--tensor-parallel-size", "--max-num-seqs", "--max-model-len"}}});
  using namespace openai;
  command.footer(fmt::format(
      "A request may have {} fields, {} stop strings of {} bytes, {} stop_token_ids,\n"
      "{} bad_words of {} bytes together, {} prompts, {} tools,\n"
      "a form of its answer of {} bytes (a regular expression of {}),\n"
      "and a cache_salt of {} bytes (docs/requests.md).",
      kMaxFields, kMaxStops, kMaxStopBytes, kMaxStopTokenIds, kMaxBadWords, kMaxBadWordsBytes,
      kMaxPrompts, kMaxTools, kMaxFormBytes, kMaxRegexBytes, kMaxSaltBytes));
}

}  // namespace invar::cli
