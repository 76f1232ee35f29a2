#include "http_stream.h"

#include <sys/socket.h>

#include <cerrno>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/error.h"

namespace invar::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

std::unique_ptr<asio::ssl::context> make_tls(const std::string& certificates,
                                             const std::string& key) {
  auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv3 |
                   asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  SSL_CTX_set_options(tls->native_handle(), SSL_OP_NO_RENEGOTIATION);
  error_code error;
  tls->use_certificate_chain_file(certificates, error);
  if (error) fail("{}: expected certificates in PEM: {}", certificates, error.message());
  tls->use_private_key_file(key, asio::ssl::context::pem, error);
  if (error) fail("{}: expected the certificate's key in PEM: {}", key, error.message());
  return tls;
}

HttpStream::HttpStream(tcp::socket socket, asio::ssl::context* tls) {
  if (tls)
    tls_ = std::make_unique<asio::ssl::stream<tcp::socket>>(std::move(socket), *tls);
  else
    plain_ = std::make_unique<tcp::socket>(std::move(socket));
}

asio::awaitable<void> HttpStream::handshake() {
  if (tls_) co_await tls_->async_handshake(asio::ssl::stream_base::server, asio::use_awaitable);
}

asio::awaitable<size_t> HttpStream::read_some(asio::mutable_buffer to) {
  error_code error;
  size_t size = 0;
  if (tls_)
    size = co_await tls_->async_read_some(to, asio::redirect_error(asio::use_awaitable, error));
  else
    size = co_await plain_->async_read_some(to, asio::redirect_error(asio::use_awaitable, error));
  if (error == asio::error::eof || error == asio::ssl::error::stream_truncated) co_return 0;
  if (error) throw boost::system::system_error(error);
  co_return size;
}

asio::awaitable<bool> HttpStream::append_some(std::string& to, std::span<char> scratch) {
  if (tls_) {
    std::string piece(scratch.size(), '\0');
    const size_t size = co_await read_some(asio::buffer(piece));
    to.append(piece, 0, size);
    co_return size > 0;
  }
  while (true) {
    const ssize_t size =
        ::recv(plain_->native_handle(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (size > 0) {
      to.append(scratch.data(), static_cast<size_t>(size));
      // Others have their turn, however fast this client sends.
      co_await asio::post(plain_->get_executor(), asio::use_awaitable);
    }
    if (size >= 0) co_return size > 0;
    if (errno != EAGAIN && errno != EINTR)
      throw boost::system::system_error(errno, boost::system::system_category());
    co_await plain_->async_wait(tcp::socket::wait_read, asio::use_awaitable);
  }
}

asio::awaitable<size_t> HttpStream::write_some(asio::const_buffer from) {
  if (tls_) co_return co_await tls_->async_write_some(from, asio::use_awaitable);
  co_return co_await plain_->async_write_some(from, asio::use_awaitable);
}

size_t HttpStream::write_at_once(asio::const_buffer from) {
  if (tls_) return 0;
  const ssize_t sent =
      ::send(plain_->native_handle(), from.data(), from.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent > 0 ? static_cast<size_t>(sent) : 0;
}

asio::awaitable<void> HttpStream::shut_down() {
  error_code ignored;
  if (tls_)
    co_await tls_->async_shutdown(asio::redirect_error(asio::use_awaitable, ignored));
  else
    plain_->shutdown(tcp::socket::shutdown_send, ignored);
}

}  // namespace invar::server
