#include "http.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <list>
#include <unordered_set>

#include "base/error.h"
#include "http_connection.h"

namespace invar::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

const std::string* HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_case_name) return &value;
  return nullptr;
}

namespace {

// A task that throws ends itself and not the server with everybody's answers. Tasks refuse their
// own requests before it comes to this.
void run_task(const std::function<void()>& task) {
  try {
    task();
  } catch (const std::exception& error) {
    fmt::print(stderr, "invar: error: a task of the serving thread failed: {}\n", error.what());
  }
}

void listen(tcp::acceptor& acceptor, const HttpOptions& options) {
  error_code error;
  const auto address =
      asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) fail_usage("expected an IP address to listen on, found \"{}\"", options.host);
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
  acceptor.open(endpoint.protocol());
  acceptor.set_option(asio::socket_base::reuse_address(true));
  acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use)
    fail("cannot listen on {}:{}: another program does; --port names another port, 0 a free one",
         options.host, options.port);
  if (error) fail("cannot listen on {}:{}: {}", options.host, options.port, error.message());
}

}  // namespace

struct HttpServer::Impl final : ConnectionOwner {
  Impl(const HttpOptions& options, Gate gate, Handler handler, Refusal refusal)
      : ConnectionOwner{options, std::move(gate), std::move(handler), std::move(refusal),
                        BodyRoom(options.max_bodies_bytes)},
        acceptor(io),
        pause(io) {}

  asio::awaitable<void> accept() {
    while (acceptor.is_open()) {
      tcp::socket socket(io);
      error_code error;
      co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
      if (!acceptor.is_open()) co_return;
      if (error) {  // no descriptors are left, or the client has gone already
        pause.expires_after(std::chrono::milliseconds(50));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      serve_connection(std::move(socket), *this);
    }
  }

  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::list<asio::posix::stream_descriptor> watched;  // files of others
};

HttpServer::HttpServer(const HttpOptions& options, Gate gate, Handler handler, Refusal refusal)
    : impl_(std::make_unique<Impl>(options, std::move(gate), std::move(handler),
                                   std::move(refusal))) {
  rlimit files{};  // a connection is a descriptor
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (!options.certificate_file.empty())
    impl_->tls = make_tls(options.certificate_file, options.key_file);
  listen(impl_->acceptor, options);
}

void HttpServer::expect_free(const HttpOptions& options) {
  asio::io_context io;
  tcp::acceptor acceptor(io);
  listen(acceptor, options);
}

HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return impl_->acceptor.local_endpoint().port();
}

asio::io_context& HttpServer::loop() {
  return impl_->io;
}

void HttpServer::run() {
  asio::co_spawn(impl_->io, impl_->accept(), asio::detached);
  impl_->io.run();
}

void HttpServer::post(std::function<void()> task) {
  asio::post(impl_->io, [task = std::move(task)] { run_task(task); });
}

std::shared_ptr<void> HttpServer::at(std::chrono::steady_clock::time_point time,
                                     std::function<void()> task) {
  const auto timer = std::make_shared<asio::steady_timer>(impl_->io, time);
  timer->async_wait([task = std::move(task)](const error_code& error) {
    if (!error) run_task(task);
  });
  return timer;
}

void HttpServer::on_readable(int file, std::function<void()> task) {
  auto& watched = impl_->watched.emplace_back(impl_->io, file);
  watched.async_wait(asio::posix::stream_descriptor::wait_read,
                     [task = std::move(task)](const error_code& error) {
                       if (!error) run_task(task);
                     });
}

void HttpServer::on_calm(std::function<void()> task) {
  impl_->on_calm = std::move(task);
}

void HttpServer::stop() {
  error_code ignored;
  impl_->stopping = true;
  impl_->acceptor.close(ignored);
  impl_->pause.cancel();
  for (auto& file : impl_->watched) file.release();
  impl_->watched.clear();
  close_idle_connections(*impl_);
}

HttpServer::Counts HttpServer::counts() const {
  return {impl_->connections.size(), impl_->exchanges};
}

}  // namespace invar::server
