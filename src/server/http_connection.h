// One connection of the HTTP server. Included by http.cc and connection.h alone.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <unordered_set>

#include "body_room.h"
#include "http.h"
#include "http_stream.h"

namespace invar::server {

class Connection;

// Connections know this of the server that they belong to.
struct ConnectionOwner {
  HttpOptions options;
  HttpServer::Gate gate;
  HttpServer::Handler handler;
  HttpServer::Refusal refusal;
  BodyRoom bodies;
  std::unique_ptr<boost::asio::ssl::context> tls = {};  // null: not encrypted
  bool stopping = false;
  std::unordered_set<Connection*> connections = {};
  size_t exchanges = 0;         // that are being answered
  size_t head_bytes = 0;        // of headers that have not come as a whole
  size_t most_connections = 0;  // since `on_calm` was called
  std::function<void()> on_calm = {};
  std::vector<char> scratch = std::vector<char>(16 << 10);  // into which connections read

  void note_connections();
};

// Serves the connection until it ends; returns at once.
void serve_connection(boost::asio::ip::tcp::socket socket, ConnectionOwner& owner);
// Ends the connections that wait for a request.
void close_idle_connections(ConnectionOwner& owner);

}  // namespace invar::server
