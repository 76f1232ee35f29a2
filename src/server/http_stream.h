// The bytes of one connection, encrypted (TLS) or not. Only http.cc and http_connection.cc include
// this.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <memory>
#include <span>
#include <string>

namespace invar::server {

// TLS 1.2 and 1.3 with the chain and the key of two PEM files. Throws Error, naming the file.
std::unique_ptr<boost::asio::ssl::context> make_tls(const std::string& certificates,
                                                    const std::string& key);

class HttpStream {
 public:
  // `tls` null: not encrypted; else it outlives the stream.
  HttpStream(boost::asio::ip::tcp::socket socket, boost::asio::ssl::context* tls);

  boost::asio::ip::tcp::socket& socket() { return tls_ ? tls_->next_layer() : *plain_; }
  bool is_encrypted() const { return tls_ != nullptr; }

  // Each but the last throws boost::system::system_error, `read_some` not for the end: that is 0.
  boost::asio::awaitable<void> handshake();
  boost::asio::awaitable<size_t> read_some(boost::asio::mutable_buffer to);
  // Appends to `to` what can be read, when there is something; false at the end. `scratch` is of
  // the thread: while it waits, a connection without TLS has no buffer of its own.
  boost::asio::awaitable<bool> append_some(std::string& to, std::span<char> scratch);
  boost::asio::awaitable<size_t> write_some(boost::asio::const_buffer from);
  // As many bytes as can be sent without waiting; errors are left to write_some.
  size_t write_at_once(boost::asio::const_buffer from);
  // Says goodbye where that is the custom.
  boost::asio::awaitable<void> shut_down();

 private:
  std::unique_ptr<boost::asio::ssl::stream<boost::asio::ip::tcp::socket>> tls_;
  std::unique_ptr<boost::asio::ip::tcp::socket> plain_;  // one of the two
};

}  // namespace invar::server
