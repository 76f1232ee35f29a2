#include "serve_models.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/socket.h"
#include "collectives/mpi/library.h"
#include "engine/host_job.h"
#include "engine/model_description.h"
#include "engine_processes.h"
#include "hub_cache.h"
#include "kv/sequence_store.h"
#include "served.h"
#include "server/models_front.h"

namespace invar::cli {

namespace {

constexpr double kGiB = 1 << 30;
constexpr int64_t kBesideWeights = int64_t{256} << 20;  // for what a step computes on its way
constexpr int64_t kCacheShare = 8;  // of the memory for all models an eighth is one's cache

// Options of the server that clients speak to.
constexpr const char* kOwnOptions[] = {"--host",
                                       "--port",
                                       "--ssl-certfile",
                                       "--ssl-keyfile",
                                       "--api-key",
                                       "--admin-key",
                                       "--models-memory",
                                       "--models-max",
                                       "--allowed-origins",
                                       "--allowed-hosts",
                                       "--journal",
                                       "--log-requests",
                                       "--trace-steps",
                                       "--front-files",
                                       "--max-connections",
                                       "--fair-by",
                                       "--stream-comment-seconds"};

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / kGiB;
}

// The file that each model has of what is one file with one model.
std::string file_of(const std::string& file, const std::string& name) {
  std::string end = name;
  for (char& c : end)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
  return file + "-" + end;
}

void refuse_beside_several(const ServeFlags& flags) {
  if (mpi::launch().size > 1 || hosts::launch().size > 1)
    fail_usage("several models are processes of one host: expected one MODEL in a job, found {}",
               flags.models.size());
  const char* of_one = flags.lab                                       ? "--lab"
                       : flags.has_adapters || !flags.adapters.empty() ? "--lora-modules"
                       : !flags.names.empty()                          ? "--served-model-name"
                       : flags.front_files.first >= 0                  ? "--front-files"
                                                                       : nullptr;
  if (of_one)
    fail_usage(
        "{} is for one model: leave it out, or name one MODEL, found {} (NAME=MODEL names "
        "each)",
        of_one, flags.models.size());
}

// A model as it is named on the command line, and what is known of it without its weights.
struct Named {
  ModelWord word;
  ModelOptions options;
  server::FrontModel front;
  int64_t weights = 0, cache_of_context = 0, cache_of_all = 0;
};

// Each by what it is called, and by the last part of a path where that is nobody else's.
void set_names(std::vector<Named>& models) {
  std::multiset<std::string> all;
  for (Named& one : models) {
    one.front.names = one.word.names;
    if (one.front.names.empty()) one.front.names = {one.word.model};
    all.insert(one.front.names.begin(), one.front.names.end());
  }
  std::multiset<std::string> ends;
  const auto end_of = [](const Named& one) {
    return std::filesystem::path(one.word.model).lexically_normal().filename().string();
  };
  for (const Named& one : models) ends.insert(end_of(one));
  for (Named& one : models) {
    const std::string end = end_of(one);
    if (one.word.names.empty() && !end.empty() && ends.count(end) == 1 && !all.contains(end))
      one.front.names.push_back(end);
  }
  for (const std::string& name : all)
    if (all.count(name) > 1)
      fail_usage("{} is the name of two models: NAME=MODEL gives each its own", json::quoted(name));
}

void describe(const ServeFlags& flags, Named& one) {
  if (const std::string wrong = open_hub_cache(one.word.model); !wrong.empty())
    fail_usage("{}", wrong);
  ModelFlags model = flags.model;
  model.options.model = one.word.model;
  std::unique_ptr<TensorSource> source;
  const ModelDescription description(resolved(model), source);
  const DecoderSpec& spec = description.spec();
  one.options = description.options;
  one.front.card = card_of(description.options);
  const int asked = flags.engine.options.scheduler.max_model_len;
  const int64_t context = asked > 0 ? asked : spec.max_positions;
  const int64_t block = SequenceStore::block_bytes(states_of(spec), flags.engine.options.block_size,
                                                   description.arithmetic.cache);
  const int64_t blocks = context / flags.engine.options.block_size + 2;
  one.front.context = context;
  one.front.has_journal = !flags.journal.empty();
  one.weights = one.front.card.bytes * (has_replica_processes(flags) ? flags.replicas : 1);
  one.cache_of_context = asked < 0 ? 0 : block * blocks;
  one.cache_of_all = block * blocks * flags.engine.options.scheduler.max_num_seqs;
}

// The memory for all models together: the flags', or four fifths of what this machine has free.
server::ModelRoom::Limits limits_of(const ServeFlags& flags) {
  const bool is_on_gpu = flags.model.options.device != "cpu";
  server::ModelRoom::Limits limits{.models = static_cast<size_t>(flags.models_max)};
  if (flags.models_gib > 0) {
    limits.bytes = static_cast<int64_t>(flags.models_gib * kGiB);
  } else if (is_on_gpu) {
    if (flags.models_max > 1)
      fail_usage("expected --models-memory, the GPU's memory in GiB, beside --models-max {} on {}",
                 flags.models_max, flags.model.options.device);
    limits = {.bytes = std::numeric_limits<int64_t>::max() / 2, .models = 1};
  } else {
    limits.bytes = static_cast<int64_t>(make_host_device()->available_bytes()) / 5 * 4;
  }
  return limits;
}

// Its memory, and the flag that says how much of it is a cache of keys and values, which otherwise
// would be what is free when it is loaded.
std::vector<std::string> settle_memory(const ServeFlags& flags,
                                       const server::ModelRoom::Limits& limits, Named& one) {
  std::vector<std::string> words;
  auto cache = static_cast<int64_t>(flags.engine.kv_gib * kGiB);
  const bool is_alone = flags.models_gib == 0 && flags.model.options.device != "cpu";
  if (cache == 0 && !is_alone) {
    cache = std::max(one.cache_of_context, std::min(one.cache_of_all + one.cache_of_all / 50,
                                                    limits.bytes / kCacheShare));
    words.push_back(fmt::format("--kv-cache-memory={:.9f}", gib(cache + (1 << 20))));
  }
  one.front.bytes = one.weights + cache * flags.replicas + kBesideWeights;
  if (one.front.bytes > limits.bytes)
    fail_usage(
        "the model {} takes {:.2f} GiB, of which {:.2f} are its cache of keys and values "
        "(--kv-cache-memory, --max-model-len), and all models together may take {:.2f} "
        "(--models-memory)",
        json::quoted(one.word.model), gib(one.front.bytes), gib(cache), gib(limits.bytes));
  return words;
}

std::vector<std::string> command_of(const ServeFlags& flags, const Named& one,
                                    const std::vector<std::string>& more) {
  const std::string& name = one.front.names.front();
  std::vector<std::string> words = {"/proc/self/exe", "serve", one.word.model};
  const auto append = [&](const std::vector<std::string>& all) {
    words.insert(words.end(), all.begin(), all.end());
  };
  append(flags.passed);
  append(more);
  append({"--host=127.0.0.1", "--port=0",
          // Comments stand between whole events: the server before it knows where.
          "--stream-comment-seconds=1048576",
          fmt::format("--max-connections={}", flags.server.http.max_connections + 64),
          fmt::format("--fair-by={}", flags.server.fair_by_key ? "key" : "none")});
  for (const std::string& one_name : one.front.names)
    words.push_back("--served-model-name=" + one_name);
  const auto add_file = [&](const char* flag, const std::string& file) {
    if (!file.empty())
      words.push_back(fmt::format("{}={}", flag, file == "-" ? file : file_of(file, name)));
  };
  add_file("--journal", flags.journal);
  add_file("--log-requests", flags.server.request_log);
  add_file("--trace-steps", flags.server.step_trace);
  words.emplace_back("--front-files");
  return words;
}

void expect_own_files(const ServeFlags& flags, const std::vector<Named>& models) {
  std::set<std::string> files;
  for (const Named& one : models)
    if (!files.insert(file_of("", one.front.names.front())).second && !flags.journal.empty())
      fail_usage("{} would have the journal of another model: NAME=MODEL names each",
                 json::quoted(one.front.names.front()));
}

}  // namespace

ModelWord model_word(const std::string& word) {
  const size_t sign = word.find('=');
  std::error_code ignored;
  if (sign == word.npos || sign == 0 || std::filesystem::exists(word, ignored)) return {{}, word};
  ModelWord found{.names = {}, .model = word.substr(sign + 1)};
  for (size_t begin = 0; begin <= sign;) {
    const size_t end = std::min(word.find(',', begin), sign);
    found.names.push_back(word.substr(begin, end - begin));
    begin = end + 1;
  }
  const bool has_empty = std::ranges::count(found.names, std::string()) > 0;
  if (found.model.empty() || has_empty || found.names.front().find('*') != std::string::npos)
    fail_usage(
        "expected NAME=MODEL, with other names behind commas, of which any but the first may "
        "have a *, found {}",
        json::quoted(word));
  return found;
}

std::vector<std::string> passed_options(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || !name.starts_with("--") ||
        std::ranges::find(kOwnOptions, name) != std::end(kOwnOptions))
      continue;
    const bool is_flag = option->get_items_expected_max() == 0;
    const bool turns_off = std::ranges::count(option->get_fnames(), name.substr(2)) > 0;
    for (const std::string& value : option->results())
      if (!is_flag)
        words.push_back(fmt::format("{}={}", name, value));
      else if (!turns_off || value == "false")
        words.push_back(turns_off ? name : fmt::format("{}={}", name, value));
  }
  return words;
}

int serve_models(const ServeFlags& flags) {
  refuse_beside_several(flags);
  std::vector<Named> models;
  for (const std::string& word : flags.models) models.push_back({.word = model_word(word)});
  set_names(models);
  expect_own_files(flags, models);
  if (!flags.receipt_key.empty()) open_receipt_key(flags.receipt_key);  // there is one for all
  const server::ModelRoom::Limits limits = limits_of(flags);
  std::vector<server::FrontModel> fronts;
  for (Named& one : models) {
    describe(flags, one);
    const std::vector<std::string> memory = settle_memory(flags, limits, one);
    one.front.command = command_of(flags, one, memory);
    fmt::print(stderr, "{}: {}, {:.1f} million parameters, {:.2f} GiB at most once it is loaded\n",
               fmt::join(one.front.names, ", "), one.front.card.family,
               static_cast<double>(one.front.card.parameters) / 1e6, gib(one.front.bytes));
    fronts.push_back(std::move(one.front));
  }
  server::ModelsFront front(flags.server, std::move(fronts), limits);
  const server::HttpOptions& http = flags.server.http;
  fmt::print("{}://{}:{}\n", http.certificate_file.empty() ? "http" : "https", http.host,
             front.port());
  std::fflush(stdout);
  front.run();
  return 0;
}

void take_front(ServeFlags& flags) {
  const auto [control, log] = flags.front_files;
  constexpr size_t kLongest = 1 << 20;
  ::dup2(log, STDERR_FILENO);
  ::close(log);
  std::string line;
  for (char next = 0; receive_all(control, &next, 1) && next != '\n' && line.size() < kLongest;)
    line += next;
  const json::Value setup = json::parse(line, "--front-files");
  const auto texts = [&](const char* name) {
    std::vector<std::string> all;
    for (const json::Value& text : setup.find(name)->as_array()) all.push_back(text.as_string());
    return all;
  };
  server::ServerOptions& server = flags.server;
  server.front_secret = setup.find("secret")->as_string();
  server.keys.client = texts("api_keys");
  server.keys.admin = texts("admin_keys");
  server.stop_file = control;
}

void tell_front(const ServeFlags& flags, int port) {
  const std::string line = fmt::format("{}\n", port);
  send_all(flags.front_files.first, line.data(), line.size());
}

}  // namespace invar::cli
