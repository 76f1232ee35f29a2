// HTTP/1.1 over TCP: reads requests within limits, hands each to a handler and sends what it
// answers. Knows nothing of what the requests mean. One thread does all of it; only `post` may be
// called from others.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace boost::asio {
class io_context;
}

namespace invar::server {

class HeldSlots;

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path, query;  // the path is as sent, without the query
  Headers headers;                  // names in lower case
  std::string body;
  // The owner of the answer that the server itself asks for; no client's request has it.
  std::string asks_for = {};

  // The header's value, or nullptr.
  const std::string* header(std::string_view lower_case_name) const;
};

struct HttpReply {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  Headers headers;
};

// A body that is made while it is sent.
class BodySource {
 public:
  virtual ~BodySource() = default;
  // Appends what is ready now, maybe nothing. False: this was all.
  virtual bool pull(std::string& out) = 0;
  // More can be pulled at once: nobody wakes the exchange for it.
  virtual bool is_ready() const { return false; }
};

// One request and its answer: either `reply` or `stream`, once.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void reply(HttpReply reply) = 0;
  // Sends the head now and the source's bytes as the client takes them.
  virtual void stream(HttpReply head, std::shared_ptr<BodySource> source) = 0;
  // The source has more to give.
  virtual void wake() = 0;
  virtual bool is_gone() const = 0;
  // `reply` or `stream` was called: another one says nothing.
  virtual bool is_answered() const = 0;
  // Nobody reads the request's body any more. On the serving thread.
  void drop_body() {
    std::string().swap(request.body);
    body_place = nullptr;
  }

  HttpRequest request;
  std::shared_ptr<void> body_place;  // what its body takes of HttpOptions::max_bodies_bytes
  std::shared_ptr<HeldSlots> slots;  // what else goes when the answer is sent or is a refusal
  std::chrono::steady_clock::time_point arrival = std::chrono::steady_clock::now();
  Headers more_headers;               // of the answer
  std::function<void()> on_gone;      // the client has gone before the whole answer was sent
  std::shared_ptr<void> deadline;     // HttpServer::at
  std::function<void()> on_deadline;  // null: the request is refused
};

// The answer to a request before its body is read.
struct Passage {
  std::optional<HttpReply> refusal;  // none: the body may come
  size_t max_body_bytes = SIZE_MAX;  // and have so many bytes, or what HttpOptions allows
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                         // 0: any
  std::string certificate_file, key_file;  // PEM; empty: not encrypted
  size_t max_connections = 4096;
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 32 << 20;
  // Memory for all bodies beyond 64 KiB that are read or wait to be understood, counted as twice
  // the bytes that have come; more wait unread. A larger one is read alone.
  size_t max_bodies_bytes = 48 << 20;
  std::chrono::milliseconds header_timeout{10'000};  // from the first byte to the last
  std::chrono::milliseconds body_timeout{30'000};    // for each 64 KiB
  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds write_timeout{30'000};   // a client that takes nothing for so long
  std::chrono::milliseconds comment_after{15'000};   // an event stream that has nothing to say
};

class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;
  // Sees a request whose body is still to be read, and refuses it or lets it come.
  using Gate = std::function<Passage(const HttpRequest&)>;
  // Makes the reply to what never becomes a request: (status, sentence).
  using Refusal =
      std::function<HttpReply(int status, const std::string& sentence, const std::string& path)>;

  // Listens. Throws Error when the address cannot be had.
  HttpServer(const HttpOptions& options, Gate gate, Handler handler, Refusal refusal);
  ~HttpServer();

  // Throws as the constructor does where its address cannot be had, which a server finds out before
  // it loads a model.
  static void expect_free(const HttpOptions& options);

  int port() const;
  // The loop of the serving thread, for whoever asks other servers from there; `run` ends when it
  // has nothing to wait for.
  boost::asio::io_context& loop();
  // Serves until `stop`, then until every answer that has begun is sent.
  void run();
  // Runs `task` on the serving thread. Safe from every thread. A task that throws, as one of the
  // next two functions, is told of on stderr and ends nothing else.
  void post(std::function<void()> task);
  // Calls `task` on the serving thread at `time`, unless what it returns is gone by then.
  std::shared_ptr<void> at(std::chrono::steady_clock::time_point time, std::function<void()> task);
  // Calls `task` on the serving thread, once, when `file` can be read; before `stop`.
  void on_readable(int file, std::function<void()> task);
  // Calls `task` on the serving thread when connections were many and are few.
  void on_calm(std::function<void()> task);
  // Accepts no more connections; idle ones are closed, the rest after their answer.
  void stop();

  struct Counts {
    size_t connections = 0, exchanges = 0;
  };
  Counts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace invar::server
