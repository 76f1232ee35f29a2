#include "hub_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "hub_transfer.h"

namespace invar::cli {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostListBytes = 64 << 20, kMostFiles = 10'000;
constexpr int kAtOnce = 4, kTries = 5;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The token that huggingface-cli login kept, where the environment has none.
std::string token_of_home() {
  std::error_code ignored;
  const std::string home = fs::path(hub_cache()).parent_path().string() + "/token";
  if (!fs::is_regular_file(home, ignored)) return {};
  std::string token = read_whole_file(home, 1 << 12);
  token.erase(
      std::remove_if(token.begin(), token.end(), [](unsigned char c) { return std::isspace(c); }),
      token.end());
  return token;
}

// A path in a repository that leads nowhere else.
bool is_safe(const std::string& path) {
  if (path.empty() || path.size() > 512 || path.front() == '/') return false;
  for (const fs::path& part : fs::path(path))
    if (part == ".." || part == "." || part.empty()) return false;
  return std::ranges::all_of(path, [](unsigned char c) { return c >= ' ' && c != 0x7f; });
}

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits && std::ranges::all_of(text, [](unsigned char c) {
           return std::isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

std::string text_in(const json::Value* object, const char* name) {
  const json::Value* found = object ? object->find(name) : nullptr;
  return found && found->is_string() ? found->as_string() : "";
}

HubFile file_of(const json::Value& sibling) {
  HubFile file{.path = text_in(&sibling, "rfilename")};
  const json::Value* large = sibling.find("lfs");
  const json::Value* size = sibling.find("size");
  if (size && size->to_integer()) file.bytes = *size->to_integer();
  file.sha256 = text_in(large, "sha256");
  file.git = text_in(&sibling, "blobId");
  if (!is_hex(file.sha256, 64)) file.sha256.clear();
  if (!is_hex(file.git, 40)) file.git.clear();
  return file;
}

// Says what the hub's status means to a user.
[[noreturn]] void refuse(const std::string& what, long status, bool has_token,
                         const std::string& endpoint) {
  if (status == 401 || status == 403)
    fail("{}: {} refuses it ({}): {}", what, endpoint, status,
         has_token ? "the token of HF_TOKEN may not read it; ask for access on its page"
                   : "it may need a token in HF_TOKEN, or there is no such model");
  if (status == 404) fail("{}: there is none at {}", what, endpoint);
  fail("{}: expected an answer of {} with the status 200, found {}", what, endpoint, status);
}

// The hash of a file by which the hub knows it, in hexadecimal: SHA-256, or git's SHA-1.
std::string hash_of(const std::string& path, bool is_git) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), is_git ? EVP_sha1() : EVP_sha256(), nullptr);
  if (is_git) {
    const std::string head = fmt::format("blob {}", fs::file_size(path));
    EVP_DigestUpdate(context.get(), head.c_str(), head.size() + 1);
  }
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail("{}: cannot be read: {}", path, std::strerror(errno));
  std::vector<char> piece(1 << 20);
  for (ssize_t got; (got = ::read(file, piece.data(), piece.size())) > 0;)
    EVP_DigestUpdate(context.get(), piece.data(), static_cast<size_t>(got));
  ::close(file);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), digest, &size);
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

bool is_pointer(const std::string& path) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  constexpr int64_t kMost = 1024;
  return static_cast<int64_t>(fs::file_size(path)) <= kMost &&
         read_whole_file(path, kMost).starts_with(kBegin);
}

// Holds a file that another process may fetch too.
class Lock {
 public:
  explicit Lock(const std::string& path)
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (file_ < 0) fail("{}: cannot be opened: {}", path, std::strerror(errno));
    ::flock(file_, LOCK_EX);
  }
  ~Lock() { ::close(file_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int file_;
};

// Fetches one file.
class Fetch {
 public:
  Fetch(const HubFile& file, std::string url, const std::string& token, std::string blob,
        std::atomic<int64_t>& done)
      : file_(file),
        url_(std::move(url)),
        token_(token),
        blob_(std::move(blob)),
        part_(blob_ + ".incomplete"),
        done_(done) {}

  void run() {
    for (int tries = 1;; ++tries) {
      if (attempt()) break;
      if (is_pointer(part_)) fail_as_pointer();  // a longer wait brings no more of it
      if (tries == kTries)
        fail("{}: the transfer was cut off {} times ({}); the same command goes on where it was",
             file_.path, kTries, why_);
      std::this_thread::sleep_for(std::chrono::milliseconds(200 << tries));
    }
    check();
    fs::rename(part_, blob_);
  }

 private:
  // False: it was cut off.
  bool attempt() {
    std::error_code ignored;
    int64_t there = fs::exists(part_, ignored) ? static_cast<int64_t>(fs::file_size(part_)) : 0;
    if (file_.bytes >= 0 && there > file_.bytes) there = 0;
    done_ += there - counted_;
    counted_ = there;
    if (file_.bytes >= 0 && there == file_.bytes) return true;
    const int out = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (out < 0) fail("{}: cannot be written: {}", part_, std::strerror(errno));
    const auto closed = std::unique_ptr<const int, void (*)(const int*)>(
        &out, [](const int* file) { ::close(*file); });
    return transfer(out, there);
  }

  bool transfer(int out, int64_t there) {
    Transfer* self = nullptr;
    bool begun = false;
    const auto take = [&](const char* data, size_t bytes) {
      const long status = self->status();
      if (status != 200 && status != 206) return true;  // an error's page
      if (!std::exchange(begun, true)) restart(out, status == 206 ? there : 0);
      return write(out, data, bytes);
    };
    Transfer one(url_, token_, take);
    self = &one;
    one.begin_at(there);
    const CURLcode code = one.run();
    if (!error_.empty()) fail("{}", error_);
    if (code == CURLE_RANGE_ERROR) {  // the server has no ranges
      restart(out, 0);
      return false;
    }
    if (code != CURLE_OK) {
      why_ = one.what_failed();
      return false;
    }
    const long status = one.status();
    if (status >= 500) {
      why_ = fmt::format("status {}", status);
      return false;
    }
    if (status == 416) {  // more is there than the file has
      restart(out, 0);
      return false;
    }
    if (status != 200 && status != 206) refuse(file_.path, status, !token_.empty(), url_);
    if (!begun) restart(out, 0);  // an empty file
    if (file_.bytes >= 0 && counted_ < file_.bytes) {
      why_ = fmt::format("{} of {} bytes came", counted_, file_.bytes);
      return false;
    }
    return true;
  }

  void restart(int out, int64_t at) {
    if (::ftruncate(out, at) != 0 || ::lseek(out, at, SEEK_SET) != at)
      fail("{}: cannot be written: {}", part_, std::strerror(errno));
    done_ += at - counted_;
    counted_ = at;
  }

  bool write(int out, const char* data, size_t bytes) {
    if (file_.bytes >= 0 && counted_ + static_cast<int64_t>(bytes) > file_.bytes) {
      error_ = fmt::format("{}: expected {} bytes, found more", file_.path, file_.bytes);
      return false;
    }
    for (size_t at = 0; at < bytes;) {
      const ssize_t wrote = ::write(out, data + at, bytes - at);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) {
        error_ = fmt::format("{}: cannot be written: {}", part_, std::strerror(errno));
        return false;
      }
      at += static_cast<size_t>(wrote);
    }
    counted_ += static_cast<int64_t>(bytes);
    done_ += static_cast<int64_t>(bytes);
    return true;
  }

  [[noreturn]] void fail_as_pointer() const {
    fs::remove(part_);
    fail(
        "{}: expected the file, found a pointer of Git LFS in its place: the hub at {} does not "
        "serve large files",
        file_.path, url_);
  }

  // Deletes a wrong file: going on with it would be wrong each time.
  void check() const {
    const bool is_git = file_.sha256.empty();
    if (file_.etag().empty()) return;
    const std::string found = hash_of(part_, is_git);
    if (found == file_.etag()) return;
    if (is_pointer(part_)) fail_as_pointer();
    fs::remove(part_);
    fail("{}: expected the {} {}, found {}: what came was deleted", file_.path,
         is_git ? "git hash" : "SHA-256", file_.etag(), found);
  }

  const HubFile& file_;
  const std::string url_;
  const std::string& token_;
  const std::string blob_, part_;
  std::atomic<int64_t>& done_;
  int64_t counted_ = 0;  // of done_
  std::string why_, error_;
};

// Makes the link show the blob, in the place of what it shows now.
void link(const fs::path& snapshot, const HubFile& file, const std::string& blob) {
  const fs::path at = snapshot / file.path;
  make_directories(at.parent_path().string());
  const fs::path target = fs::relative(blob, at.parent_path());
  std::error_code ignored;
  if (fs::is_symlink(at, ignored) && fs::read_symlink(at, ignored) == target) return;
  fs::remove(at, ignored);
  fs::create_symlink(target, at);
}

void expect_room(const std::string& folder, int64_t bytes) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return;
  const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  if (bytes > free)
    fail("{}: expected {:.1f} GiB of free space, found {:.1f}", folder,
         static_cast<double>(bytes) / (1 << 30), static_cast<double>(free) / (1 << 30));
}

}  // namespace

HubClient::HubClient() : endpoint_(variable("HF_ENDPOINT")), token_(variable("HF_TOKEN")) {
  curl_global_init(CURL_GLOBAL_DEFAULT);
  if (endpoint_.empty()) endpoint_ = "https://huggingface.co";
  while (endpoint_.ends_with('/')) endpoint_.pop_back();
  if (!endpoint_.starts_with("http://") && !endpoint_.starts_with("https://"))
    fail_usage("expected HF_ENDPOINT as a URL with http:// or https://, found {}",
               json::quoted(endpoint_));
  if (token_.empty()) token_ = token_of_home();
}

HubRepository HubClient::list(const HubName& name) const {
  const std::string url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", endpoint_,
                                      name.repository, name.revision);
  std::string body;
  Transfer one(url, token_, [&](const char* data, size_t bytes) {
    if (body.size() + bytes > kMostListBytes) return false;
    body.append(data, bytes);
    return true;
  });
  if (one.run() != CURLE_OK)
    fail("{}: {} cannot be asked: {}", name.repository, endpoint_, one.what_failed());
  if (one.status() != 200) refuse(name.repository, one.status(), !token_.empty(), endpoint_);
  const json::Value said = json::parse(body, url);
  HubRepository repository{.name = name.repository, .commit = text_in(&said, "sha"), .files = {}};
  const json::Value* siblings = said.find("siblings");
  if (!is_hex(repository.commit, 40) || !siblings || !siblings->is_array() ||
      siblings->as_array().size() > kMostFiles)
    fail("{}: expected a \"sha\" and \"siblings\" from {}, found {}", name.repository, endpoint_,
         json::excerpt(said));
  for (const json::Value& sibling : siblings->as_array()) {
    repository.files.push_back(file_of(sibling));
    if (!is_safe(repository.files.back().path))
      fail("{}: expected names of files within the repository, found {}", name.repository,
           json::quoted(repository.files.back().path));
  }
  return repository;
}

void HubClient::fetch(const HubRepository& repository, const std::vector<HubFile>& files,
                      const std::string& revision,
                      const std::function<void(int64_t, int64_t)>& show) const {
  const std::string folder = hub_folder(repository.name), blobs = folder + "/blobs";
  const std::string locks = hub_cache() + "/.locks/" + fs::path(folder).filename().string();
  const fs::path snapshot = fs::path(folder) / "snapshots" / repository.commit;
  for (const std::string& one : {blobs, locks, snapshot.string(), folder + "/refs"})
    make_directories(one);
  std::atomic<int64_t> done = 0;
  int64_t all = 0, missing = 0;
  for (const HubFile& file : files) {
    all += std::max<int64_t>(file.bytes, 0);
    std::error_code ignored;
    if (!fs::exists(fs::path(blobs) / file.etag(), ignored))
      missing += std::max<int64_t>(file.bytes, 0);
  }
  expect_room(blobs, missing);
  std::atomic<size_t> next = 0, ended = 0;
  std::mutex failing;
  std::string failure;
  const auto work = [&] {
    for (size_t i; (i = next++) < files.size();) {
      const HubFile& file = files[i];
      try {
        // Without a hash it is fetched each time, under its own name.
        std::string key = file.etag();
        if (key.empty()) {
          key = file.path;
          std::ranges::replace(key, '/', '-');
        }
        const std::string blob = blobs + "/" + key;
        const Lock lock(locks + "/" + key + ".lock");
        const std::string url = fmt::format("{}/{}/resolve/{}/{}", endpoint_, repository.name,
                                            repository.commit, escaped(file.path));
        if (fs::exists(blob) && !file.etag().empty())
          done += std::max<int64_t>(file.bytes, 0);
        else
          Fetch(file, url, token_, blob, done).run();
        link(snapshot, file, blob);
      } catch (const std::exception& error) {
        const std::lock_guard held(failing);
        if (failure.empty()) failure = error.what();
        next = files.size();
      }
    }
    ++ended;
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < kAtOnce; ++i) threads.emplace_back(work);
  while (ended < kAtOnce) {
    show(done, all);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  threads.clear();
  if (!failure.empty()) fail("{}", failure);
  show(all, all);
  write_file_atomically(folder + "/refs/" + revision, repository.commit);
}

}  // namespace invar::cli
