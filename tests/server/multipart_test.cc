#include "server/multipart.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar::server {
namespace {

constexpr const char* kType = "multipart/form-data; boundary=b";

TEST(Multipart, PartsHaveTheirNamesAndTheirBytes) {
  const std::string body =
      "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
      "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n"
      "Content-Type: application/octet-stream\r\n\r\n{}\r\n\r\n--x\r\n\r\n--b--\r\n";
  const auto parts = form_parts(kType, body);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].name, "purpose");
  EXPECT_EQ(parts[0].content, "batch");
  EXPECT_EQ(parts[1].file_name, "a.jsonl");
  EXPECT_EQ(parts[1].content, "{}\r\n\r\n--x\r\n");  // what looks like the end of another form
}

TEST(Multipart, AnEmptyPartIsOne) {
  const auto parts = form_parts(
      kType, "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\r\n--b--\r\n");
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].content, "");
}

TEST(Multipart, WhatIsNoFormIsRefusedWhereverItIsCutOff) {
  const std::string body =
      "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc\r\n--b--\r\n";
  EXPECT_THROW(form_parts("text/plain", body), UsageError);
  EXPECT_THROW(form_parts("multipart/form-data", body), UsageError);
  EXPECT_THROW(form_parts("multipart/form-data; boundary=\"\"", body), UsageError);
  for (size_t size = 0; size + 4 < body.size(); ++size)
    EXPECT_THROW(form_parts(kType, body.substr(0, size)), UsageError) << size;
  std::string many;
  for (int i = 0; i < 100; ++i) many += "--b\r\nA: b\r\n\r\nx\r\n";
  EXPECT_THROW(form_parts(kType, many + "--b--\r\n"), UsageError);
}

}  // namespace
}  // namespace invar::server
