// Rules for every request, whoever answers it: a server of one model, or the one before several.
#pragma once

#include <chrono>
#include <optional>

#include "http.h"

namespace invar::server {

struct ServerOptions;

// A server without keys that any page of a browser could ask would do for the page what only who
// sits before the browser may: throws ApiError for a page of another origin, and for one that
// reached the server by a name of its own (DNS rebinding).
void check_page(const ServerOptions& options, const HttpRequest& request);
// Headers that a browser wants before it shows the answer to a page of another origin.
Headers allowed_origin(const ServerOptions& options, const HttpRequest& request);
// The header with which the server before this one shows its secret; throws ApiError where it is
// expected and not shown.
inline constexpr const char* kFrontHeader = "x-invar-front";
void check_front(const ServerOptions& options, const HttpRequest& request);
// Headers of every answer: the client's own id of the request, or a new one, for logs on both
// sides; and what a browser asks.
Headers headers_of(const ServerOptions& options, const HttpRequest& request);
// The time from its arrival in which a request is to be answered, if there is a limit: the
// server's, or X-Request-Timeout (seconds) where that is less. Throws ApiError.
std::optional<std::chrono::steady_clock::duration> time_limit(const ServerOptions& options,
                                                              const HttpRequest& request);

}  // namespace invar::server
