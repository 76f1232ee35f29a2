// invar pull, list and rm: models of a hub in the cache that Python's tools share.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "command.h"
#include "hub_client.h"

namespace invar::cli {

namespace fs = std::filesystem;

namespace {

constexpr double kGiB = 1 << 30;

bool ends_with_one_of(std::string_view path, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return path.ends_with(end); });
}

// A model is read from configurations, vocabularies, templates, and weights as safetensors.
bool is_of_model(const std::string& path, bool has_index) {
  const bool is_inner = path.find('/') != path.npos;
  const bool is_module = path.size() > 2 && std::isdigit(static_cast<unsigned char>(path[0])) &&
                         path[1] == '_';  // of an embedding model: 1_Pooling/config.json
  if (is_inner && !is_module) return false;
  if (path.starts_with("consolidated") && has_index) return false;
  return ends_with_one_of(path,
                          {".safetensors", ".json", ".jinja", ".model", "merges.txt", "vocab.txt"});
}

// The parts of a GGUF file by the first of them.
bool is_part_of(const std::string& path, const std::string& first) {
  const size_t mark = first.rfind("-00001-of-");
  if (mark == first.npos) return path == first;
  return path.size() == first.size() && path.starts_with(first.substr(0, mark)) &&
         path.substr(mark + 6) == first.substr(mark + 6);
}

std::vector<HubFile> gguf_files(const HubRepository& repository, const HubName& name) {
  std::vector<std::string> found, all;
  for (const HubFile& file : repository.files) {
    if (is_meant(file.path, "")) all.push_back(file.path);
    if (is_meant(file.path, name.file)) found.push_back(file.path);
  }
  std::ranges::sort(found);
  if (found.empty())
    fail("{}: expected a GGUF file of {}, found {}", repository.name, name.file,
         all.empty() ? "none" : fmt::format("{}", fmt::join(all, ", ")));
  std::vector<HubFile> files;
  for (const HubFile& file : repository.files)
    if (is_part_of(file.path, found.front())) files.push_back(file);
  return files;
}

// The files of a repository that are fetched.
std::vector<HubFile> chosen(const HubRepository& repository, HubName& name) {
  const auto has = [&](auto is_it) { return std::ranges::any_of(repository.files, is_it); };
  const bool has_safetensors =
      has([](const HubFile& file) { return file.path.ends_with(".safetensors"); });
  const bool has_gguf = has([](const HubFile& file) { return is_meant(file.path, ""); });
  if (!name.file.empty()) return gguf_files(repository, name);
  if (!has_safetensors && has_gguf) {
    name.file = "Q4_K_M";  // llama.cpp's choice
    return gguf_files(repository, name);
  }
  if (!has_safetensors)
    fail("{}: expected files of safetensors or GGUF, found none", repository.name);
  const bool has_index = has([](const HubFile& file) {
    return file.path == "model.safetensors.index.json" || file.path == "model.safetensors";
  });
  std::vector<HubFile> files;
  for (const HubFile& file : repository.files)
    if (is_of_model(file.path, has_index)) files.push_back(file);
  return files;
}

// A directory of the same name hides a model of the hub from every command.
void expect_no_path(const std::string& word) {
  std::error_code ignored;
  if (fs::exists(word, ignored))
    fail_usage("expected a model of the hub, found {}, a path in this directory",
               json::quoted(word));
}

int run_pull(const std::string& word) {
  expect_no_path(word);
  auto name = hub_name(word);
  if (!name)
    fail_usage(
        "expected a model of the hub as OWNER/NAME, OWNER/NAME:QUANT or OWNER/NAME@REVISION, "
        "found {}",
        json::quoted(word));
  const HubClient client;
  const HubRepository repository = client.list(*name);
  const std::vector<HubFile> files = chosen(repository, *name);
  int64_t bytes = 0;
  for (const HubFile& file : files) bytes += std::max<int64_t>(file.bytes, 0);
  fmt::print(stderr, "{} at {}: {} files, {:.2f} GiB, from {}\n", repository.name,
             repository.commit.substr(0, 12), files.size(), static_cast<double>(bytes) / kGiB,
             client.endpoint());
  ProgressLine line;
  constexpr double kMiB = 1 << 20;
  client.fetch(repository, files, name->revision, [&](int64_t done, int64_t all) {
    line.show_share("fetching", static_cast<double>(done) / kMiB, static_cast<double>(all) / kMiB,
                    "MiB");
  });
  line.clear();
  fmt::print("{}\n", found_model(name->repository + (name->file.empty() ? "" : ":" + name->file) +
                                 (name->revision == "main" ? "" : "@" + name->revision)));
  return 0;
}

struct Kept {
  std::string name;  // as a command takes it
  std::string path;
  int64_t bytes = 0;
  std::vector<std::string> gguf;  // files that a command takes behind the name and a colon
};

std::vector<std::string> gguf_files(const std::string& repository) {
  std::vector<std::string> files;
  const auto snapshot = hub_snapshot({.repository = repository});
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(snapshot.value_or(""), ignored))
    if (std::string file = entry.path().filename().string(); is_meant(file, ""))
      files.push_back(std::move(file));
  std::ranges::sort(files);
  return files;
}

int64_t bytes_in(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(folder, ignored))
    if (entry.is_regular_file(ignored)) bytes += static_cast<int64_t>(entry.file_size(ignored));
  return bytes;
}

std::vector<Kept> kept_models() {
  constexpr std::string_view kBegin = "models--";
  std::vector<Kept> all;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(hub_cache(), ignored)) {
    std::string name = entry.path().filename().string();
    const size_t between = name.find("--", kBegin.size());
    if (!name.starts_with(kBegin) || between == name.npos) continue;
    name = name.substr(kBegin.size(), between - kBegin.size()) + "/" + name.substr(between + 2);
    all.push_back({name, entry.path().string(), bytes_in(entry.path()), gguf_files(name)});
  }
  std::ranges::sort(all, {}, &Kept::name);
  return all;
}

int run_list(bool as_json) {
  json::Array all;
  for (const Kept& one : kept_models()) {
    if (as_json)
      all.push_back(json::Object{{"name", one.name},
                                 {"bytes", one.bytes},
                                 {"path", one.path},
                                 {"gguf", json::Array(one.gguf.begin(), one.gguf.end())}});
    else
      fmt::print("{:48} {:8.2f} GiB  {}{}{}\n", one.name, static_cast<double>(one.bytes) / kGiB,
                 one.path, one.gguf.empty() ? "" : "  :", fmt::join(one.gguf, " :"));
  }
  if (as_json) fmt::print("{}\n", json::dump(all, 2));
  if (!as_json && kept_models().empty())
    fmt::print(stderr, "no model was fetched to {}: invar pull OWNER/NAME fetches one\n",
               hub_cache());
  return 0;
}

int run_rm(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    expect_no_path(word);
    const auto name = hub_name(word);
    if (!name || !name->file.empty() || name->revision != "main")
      fail_usage("expected a model as OWNER/NAME, as invar list has it, found {}",
                 json::quoted(word));
    const std::string folder = hub_folder(name->repository);
    if (!fs::is_directory(folder))
      fail_usage("expected a model that invar list has, found {}", json::quoted(word));
    const int64_t bytes = bytes_in(folder);
    fs::remove_all(folder);
    std::error_code ignored;
    fs::remove_all(fs::path(hub_cache()) / ".locks" / fs::path(folder).filename(), ignored);
    fmt::print("{} is deleted: {:.2f} GiB\n", word, static_cast<double>(bytes) / kGiB);
  }
  return 0;
}

}  // namespace

void add_pull(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "pull", "Fetch a model of the hub into the cache that Python's tools share");
  auto word = std::make_shared<std::string>();
  command
      ->add_option("NAME", *word,
                   "OWNER/NAME; of GGUF files OWNER/NAME:QUANT, such as :Q4_K_M; either with "
                   "@REVISION. HF_ENDPOINT, HF_TOKEN and HF_HOME are read")
      ->required();
  command->callback([&action, word] { action = [word] { return run_pull(*word); }; });
}

void add_list(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("list", "Show the models that were fetched");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print JSON");
  command->callback([&action, as_json] { action = [as_json] { return run_list(*as_json); }; });
}

void add_rm(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("rm", "Delete models that were fetched");
  auto words = std::make_shared<std::vector<std::string>>();
  command->add_option("NAME", *words, "OWNER/NAME, as invar list shows it")->required();
  command->callback([&action, words] { action = [words] { return run_rm(*words); }; });
}

}  // namespace invar::cli
