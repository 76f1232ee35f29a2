#include "server/routes.h"

#include <gtest/gtest.h>

namespace invar::server {
namespace {

using Rest = PathRest;

TEST(Routes, APathIsMatchedAsAWhole) {
  EXPECT_TRUE(path_matches("/v1/models", Rest::none, "/v1/models"));
  EXPECT_FALSE(path_matches("/v1/models", Rest::none, "/v1/models/"));
  EXPECT_FALSE(path_matches("/v1/models", Rest::none, "/v1/model"));
}

TEST(Routes, AnIdHasNoSlashAndANameMayHaveThem) {
  EXPECT_TRUE(path_matches("/v1/responses/", Rest::id, "/v1/responses/resp_1"));
  EXPECT_FALSE(path_matches("/v1/responses/", Rest::id, "/v1/responses/"));
  EXPECT_FALSE(path_matches("/v1/responses/", Rest::id, "/v1/responses/resp_1/more"));
  EXPECT_TRUE(path_matches("/v1/models/", Rest::name, "/v1/models/org/name"));
  EXPECT_FALSE(path_matches("/v1/models/", Rest::name, "/v1/other/org/name"));
}

TEST(Routes, WhatIsKeptBesideAnIdHasItsWord) {
  EXPECT_TRUE(path_matches("/v1/responses/", Rest::input_items, "/v1/responses/r/input_items"));
  EXPECT_FALSE(path_matches("/v1/responses/", Rest::input_items, "/v1/responses/r"));
  EXPECT_FALSE(path_matches("/v1/responses/", Rest::input_items, "/v1/responses//input_items"));
  EXPECT_FALSE(path_matches("/v1/responses/", Rest::input_items, "/v1/responses/r/input_item"));
  EXPECT_FALSE(path_matches("/v1/responses/", Rest::input_items, "/v1/responses/input_items"));
}

}  // namespace
}  // namespace invar::server
