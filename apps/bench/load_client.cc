#include "load_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/timer.h"

namespace invar::cli {

namespace {

using Easy = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
using HeaderList = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

constexpr size_t kMaxErrorBytes = 400;  // of a refusal that is shown

HeaderList headers_of(const LoadTarget& target) {
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  list = curl_slist_append(list, "Expect:");  // no round trip before a long body
  if (!target.api_key.empty())
    list = curl_slist_append(list, ("Authorization: Bearer " + target.api_key).c_str());
  return {list, curl_slist_free_all};
}

size_t append_to(char* data, size_t one, size_t size, void* text) {
  static_cast<std::string*>(text)->append(data, one * size);
  return size;
}

// One request under way: cuts what comes into events.
class EventStream {
 public:
  EventStream(const LoadTarget& target, curl_slist* headers, const Timer& timer, size_t index)
      : index(index), timer_(timer), handle_(curl_easy_init(), curl_easy_cleanup) {
    CURL* h = handle_.get();
    curl_easy_setopt(h, CURLOPT_URL, target.url.c_str());
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(h, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, static_cast<long>(target.timeout * 1000));
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, &EventStream::on_bytes);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(h, CURLOPT_PRIVATE, this);
  }

  void begin(const std::string& body) {
    curl_easy_setopt(handle_.get(), CURLOPT_POSTFIELDS, body.data());
    curl_easy_setopt(handle_.get(), CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(body.size()));
    result.sent = timer_.seconds();
  }

  void end(CURLcode code) {
    result.ended = timer_.seconds();
    long status = 0;
    curl_easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK)
      result.error = fmt::format("the connection failed: {}", curl_easy_strerror(code));
    else if (status != 200)
      result.error =
          fmt::format("expected status 200, found {}: {}", status, rest_.substr(0, kMaxErrorBytes));
    else if (!done_)
      result.error = "expected a stream that ends with [DONE], found one cut off";
  }

  CURL* handle() const { return handle_.get(); }
  size_t index;
  LoadResult result;

 private:
  static size_t on_bytes(char* data, size_t one, size_t size, void* self) {
    static_cast<EventStream*>(self)->take({data, one * size});
    return size;
  }

  // Whole lines "data: ..." become events; other lines and blank ones say nothing.
  void take(std::string_view bytes) {
    const double now = timer_.seconds();
    rest_.append(bytes);
    long status = 0;
    curl_easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) return;  // a refusal: kept as it is
    size_t begin = 0;
    for (size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string_view line(rest_.data() + begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      if (line == "[DONE]")
        done_ = true;
      else
        result.events.push_back({now, std::string(line)});
    }
    rest_.erase(0, begin);
  }

  const Timer& timer_;
  Easy handle_;
  std::string rest_;  // of the body, after the last whole line
  bool done_ = false;
};

// All requests of a run.
class Run {
 public:
  Run(const LoadTarget& target, const std::vector<LoadRequest>& requests, int max_concurrency)
      : target_(target),
        requests_(requests),
        most_(max_concurrency > 0 ? static_cast<size_t>(max_concurrency) : requests.size()),
        headers_(headers_of(target)),
        multi_(curl_multi_init()),
        results_(requests.size()) {
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(most_));
  }
  ~Run() {
    for (const auto& stream : streams_) curl_multi_remove_handle(multi_, stream->handle());
    curl_multi_cleanup(multi_);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  std::vector<LoadResult> all(const std::function<void(size_t)>& progress) {
    while (ended_ < requests_.size()) {
      begin_those_due();
      int running = 0;
      check(curl_multi_perform(multi_, &running));
      if (take_ended()) {
        progress(ended_);
        continue;  // others may begin
      }
      check(curl_multi_poll(multi_, nullptr, 0, milliseconds_to_wait(), nullptr));
    }
    return std::move(results_);
  }

 private:
  static void check(CURLMcode code) {
    if (code != CURLM_OK) fail("the load generator failed: {}", curl_multi_strerror(code));
  }

  bool may_begin() const { return next_ < requests_.size() && streams_.size() < most_; }

  void begin_those_due() {
    while (may_begin() && requests_[next_].start <= timer_.seconds()) {
      auto stream = std::make_unique<EventStream>(target_, headers_.get(), timer_, next_);
      stream->begin(requests_[next_++].body);
      check(curl_multi_add_handle(multi_, stream->handle()));
      streams_.push_back(std::move(stream));
    }
  }

  bool take_ended() {
    bool any = false;
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      EventStream* stream = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &stream);
      stream->end(message->data.result);
      curl_multi_remove_handle(multi_, stream->handle());
      results_[stream->index] = std::move(stream->result);
      std::erase_if(streams_, [&](const auto& one) { return one.get() == stream; });
      ++ended_;
      any = true;
    }
    return any;
  }

  int milliseconds_to_wait() const {
    if (!may_begin()) return 1000;  // what comes in wakes it
    const double seconds = requests_[next_].start - timer_.seconds();
    return static_cast<int>(std::clamp(seconds * 1000, 0.0, 1000.0));
  }

  const LoadTarget& target_;
  const std::vector<LoadRequest>& requests_;
  size_t most_, next_ = 0, ended_ = 0;
  HeaderList headers_;
  CURLM* multi_;
  Timer timer_;
  std::vector<std::unique_ptr<EventStream>> streams_;
  std::vector<LoadResult> results_;
};

}  // namespace

std::string http_get(const LoadTarget& target) {
  const Easy handle(curl_easy_init(), curl_easy_cleanup);
  const HeaderList headers = headers_of(target);
  std::string body;
  curl_easy_setopt(handle.get(), CURLOPT_URL, target.url.c_str());
  curl_easy_setopt(handle.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(handle.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle.get(), CURLOPT_TIMEOUT, 30L);
  curl_easy_setopt(handle.get(), CURLOPT_WRITEFUNCTION, &append_to);
  curl_easy_setopt(handle.get(), CURLOPT_WRITEDATA, &body);
  const CURLcode code = curl_easy_perform(handle.get());
  if (code != CURLE_OK) fail("{}: {}", target.url, curl_easy_strerror(code));
  long status = 0;
  curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status != 200)
    fail("{}: expected status 200, found {}: {}", target.url, status,
         body.substr(0, kMaxErrorBytes));
  return body;
}

std::vector<LoadResult> run_load(const LoadTarget& target, const std::vector<LoadRequest>& requests,
                                 int max_concurrency, const std::function<void(size_t)>& progress) {
  return Run(target, requests, max_concurrency).all(progress);
}

}  // namespace invar::cli
