// One request to a hub over HTTP (libcurl).
#pragma once

#include <curl/curl.h>
#include <fmt/format.h>

#include <cctype>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace invar::cli {

// A path as a URL has it.
inline std::string escaped(const std::string& path) {
  std::string text;
  for (const unsigned char c : path)
    text += std::isalnum(c) || std::strchr("/-._~", c) ? std::string(1, static_cast<char>(c))
                                                       : fmt::format("%{:02X}", c);
  return text;
}

// Its answer's body goes to a function that may end it.
class Transfer {
 public:
  using Take = std::function<bool(const char* data, size_t bytes)>;

  Transfer(const std::string& url, const std::string& token, Take take)
      : take_(std::move(take)),
        handle_(curl_easy_init(), curl_easy_cleanup),
        headers_(token.empty()
                     ? nullptr
                     : curl_slist_append(nullptr, ("Authorization: Bearer " + token).c_str()),
                 curl_slist_free_all) {
    CURL* h = handle_.get();
    curl_easy_setopt(h, CURLOPT_URL, url.c_str());
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers_.get());
    curl_easy_setopt(h, CURLOPT_USERAGENT, "invar");
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    // To another host the token does not go.
    curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(h, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, kStillSeconds);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, &Transfer::on_bytes);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, this);
  }

  void begin_at(int64_t offset) {
    if (offset > 0)
      curl_easy_setopt(handle_.get(), CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(offset));
  }
  CURLcode run() { return code_ = curl_easy_perform(handle_.get()); }
  long status() const {
    long status = 0;
    curl_easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &status);
    return status;
  }
  std::string what_failed() const { return curl_easy_strerror(code_); }

 private:
  static size_t on_bytes(char* data, size_t one, size_t size, void* self) {
    return static_cast<Transfer*>(self)->take_(data, one * size) ? one * size : 0;
  }

  static constexpr long kConnectSeconds = 20, kStillSeconds = 60;

  Take take_;
  std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> handle_;
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers_;
  CURLcode code_ = CURLE_OK;
};

}  // namespace invar::cli
