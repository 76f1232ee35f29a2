#include "server/http_head.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "server/errors.h"
#include "server/query.h"

namespace invar::server {
namespace {

TEST(HttpHead, SaysHowTheBodyEnds) {
  const HttpReply reply{.body = "{}", .headers = {{"A", "b"}}};
  EXPECT_EQ(bytes_of_head(reply, {{"C", "d"}}, {}),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nA: b\r\nC: d\r\n"
            "Content-Length: 2\r\n\r\n");
  const auto with = [&](const HeadForm& form) { return bytes_of_head({}, {}, form); };
  const std::string type = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
  EXPECT_EQ(with({.whole = false}), type + "Transfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(with({.closes = true}), type + "Content-Length: 0\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(with({.is_http_10 = true}),
            type + "Content-Length: 0\r\nConnection: keep-alive\r\n\r\n");
  // HTTP/1.0 has no pieces: the body ends with the connection.
  EXPECT_EQ(with({.whole = false, .is_http_10 = true, .closes = true}),
            type + "Connection: close\r\n\r\n");
  EXPECT_EQ(bytes_of_head({.status = 204}, {}, {}), "HTTP/1.1 204 No Content\r\n\r\n");
}

TEST(Errors, HaveTheFormOfTheApi) {
  const HttpReply reply = error_reply({404, "a \"sentence\"", "", "model"}, "/v1/completions");
  EXPECT_EQ(reply.status, 404);
  const json::Value error = *json::parse(reply.body, "a body").find("error");
  EXPECT_EQ(error.find("message")->as_string(), "a \"sentence\"");
  EXPECT_EQ(error.find("type")->as_string(), "not_found_error");
  EXPECT_EQ(error.find("param")->as_string(), "model");
  EXPECT_TRUE(error.find("code")->is_null());
  const json::Value other = json::parse(error_reply({400, "x"}, "/v1/messages").body, "a body");
  EXPECT_EQ(other.find("type")->as_string(), "error");
  EXPECT_STREQ(error_type(418), "invalid_request_error");
  EXPECT_STREQ(error_type(503), "server_error");
}

TEST(Errors, SayWhatAClientShouldDo) {
  using Header = std::pair<std::string, std::string>;
  for (const int status : {429, 503})
    EXPECT_EQ(error_reply({status, ""}).headers, (Headers{Header{"Retry-After", "1"}}));
  EXPECT_EQ(error_reply({401, ""}).headers, (Headers{Header{"WWW-Authenticate", "Bearer"}}));
  EXPECT_EQ(error_reply({400, ""}).headers, Headers());
}

TEST(Query, AParameterIsFoundByItsWholeName) {
  EXPECT_EQ(query_parameter("after=3&other=4", "after"), "3");
  EXPECT_EQ(query_parameter("hereafter=1&after=", "after"), "");
  EXPECT_EQ(query_parameter("after", "after"), std::nullopt);
  EXPECT_EQ(query_parameter("afterwards=3", "after"), std::nullopt);
  EXPECT_EQ(query_parameter("&&after=5&after=6", "after"), "5");
  EXPECT_EQ(query_parameter("", "after"), std::nullopt);
}

}  // namespace
}  // namespace invar::server
