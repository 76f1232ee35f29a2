#include "session/hub_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostNameBytes = 96;  // of each half, the hub's

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_part(std::string_view text) {
  return !text.empty() && text.size() <= kMostNameBytes && text.front() != '.' &&
         text.front() != '-' && text.find("..") == text.npos && text.find("--") == text.npos &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

std::string lower(std::string_view text) {
  std::string small(text);
  std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
  return small;
}

// The GGUF file that is meant, of those in the directory.
std::string gguf_in(const std::string& directory, const HubName& name) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(directory, ignored)) {
    const std::string file = entry.path().lexically_relative(directory).string();
    if (is_meant(file, name.file)) found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  return found.empty() ? std::string() : found.front();
}

std::string words_of(const HubName& name) {
  return name.repository + (name.file.empty() ? "" : ":" + name.file) +
         (name.revision == "main" ? "" : "@" + name.revision);
}

}  // namespace

std::optional<HubName> hub_name(std::string_view word) {
  std::error_code ignored;
  if (fs::exists(fs::path(word), ignored)) return std::nullopt;
  HubName name;
  const size_t slash = word.find('/');
  if (slash == word.npos) return std::nullopt;
  if (const size_t at = word.find('@', slash); at != word.npos) {
    name.revision = word.substr(at + 1);
    word = word.substr(0, at);
  }
  if (const size_t colon = word.find(':', slash); colon != word.npos) {
    name.file = word.substr(colon + 1);
    word = word.substr(0, colon);
  }
  name.repository = word;
  const bool is_name = is_part(word.substr(0, slash)) && is_part(word.substr(slash + 1)) &&
                       is_part(name.revision) && (name.file.empty() || is_part(name.file));
  return is_name ? std::optional(name) : std::nullopt;
}

std::string hub_cache() {
  if (const std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return cache + "/huggingface/hub";
  const std::string home = variable("HOME");
  if (home.empty()) fail_usage("expected HF_HOME or HOME, which say where models lie, found none");
  return home + "/.cache/huggingface/hub";
}

std::string hub_folder(const std::string& repository) {
  const size_t slash = repository.find('/');
  return hub_cache() + "/models--" + repository.substr(0, slash) + "--" +
         repository.substr(slash + 1);
}

std::optional<std::string> hub_snapshot(const HubName& name) {
  const fs::path folder = hub_folder(name.repository);
  std::error_code ignored;
  std::string commit = name.revision;
  if (const fs::path ref = folder / "refs" / commit; fs::is_regular_file(ref, ignored)) {
    commit = read_whole_file(ref.string(), 1 << 10);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())))
      commit.pop_back();
  }
  const fs::path snapshot = folder / "snapshots" / commit;
  if (commit.empty() || !fs::is_directory(snapshot, ignored)) return std::nullopt;
  return snapshot.string();
}

bool is_meant(std::string_view gguf_file, std::string_view asked) {
  const std::string file = lower(gguf_file.substr(gguf_file.rfind('/') + 1));
  if (!file.ends_with(".gguf") || file.find("mmproj") != file.npos) return false;
  const size_t of = file.rfind("-of-");
  const bool is_part = of != file.npos && of >= 6 && file.size() - of == 14;
  if (is_part && file.substr(of - 6, 6) != "-00001") return false;
  if (asked.empty() || file == lower(asked)) return true;
  const std::string quant = lower(asked);
  for (size_t at = file.find(quant); at != file.npos; at = file.find(quant, at + 1)) {
    const bool begins = at == 0 || !std::isalnum(static_cast<unsigned char>(file[at - 1]));
    const char behind = file[at + quant.size()];
    if (begins && (behind == '.' || behind == '-')) return true;
  }
  return false;
}

std::string found_model(const std::string& word) {
  const auto name = hub_name(word);
  if (!name) return word;
  const auto snapshot = hub_snapshot(*name);
  std::error_code ignored;
  if (snapshot && name->file.empty() && fs::exists(fs::path(*snapshot) / "config.json", ignored))
    return *snapshot;
  if (snapshot)
    if (std::string file = gguf_in(*snapshot, *name); !file.empty()) return file;
  fail_usage(
      "expected a model directory, a GGUF file or a model of the hub that was fetched, found "
      "{}: invar pull {} fetches it",
      json::quoted(word), words_of(*name));
}

}  // namespace invar
