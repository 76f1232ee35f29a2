#include "server/auth.h"

#include <gtest/gtest.h>

#include "server/errors.h"

namespace invar::server {
namespace {

HttpRequest with(Headers headers) {
  return {.path = "/v1/weights", .headers = std::move(headers)};
}

// 0: let in.
int status(const Keys& keys, Keys::Need need, const HttpRequest& request) {
  try {
    keys.check(need, request);
    return 0;
  } catch (const ApiError& error) {
    return error.status;
  }
}

const HttpRequest kNone = with({}), kClient = with({{"authorization", "bearer one"}}),
                  kAdmin = with({{"authorization", "Bearer root"}}),
                  kAnthropic = with({{"x-api-key", "two"}});

TEST(Keys, WhoNeedsNoneAndWhoNeedsWhich) {
  const Keys open, one{.client = {"one"}}, client{.client = {"one", "two"}},
      both{.client = {"one"}, .admin = {"root"}};
  EXPECT_EQ(status(open, Keys::Need::none, kNone), 0);
  EXPECT_EQ(status(open, Keys::Need::client, kNone), 0);
  EXPECT_EQ(status(open, Keys::Need::admin, kClient), 403);  // there is no key that would do
  EXPECT_EQ(status(client, Keys::Need::none, kNone), 0);
  EXPECT_EQ(status(client, Keys::Need::client, kNone), 401);
  EXPECT_EQ(status(client, Keys::Need::client, kClient), 0);
  EXPECT_EQ(status(client, Keys::Need::client, kAnthropic), 0);
  EXPECT_EQ(status(client, Keys::Need::client, kAdmin), 401);
  EXPECT_EQ(status(one, Keys::Need::admin, kClient), 0);
  EXPECT_EQ(status(one, Keys::Need::trainer, kNone), 401);
  EXPECT_EQ(status(both, Keys::Need::admin, kClient), 401);
  EXPECT_EQ(status(both, Keys::Need::admin, kAdmin), 0);
  EXPECT_EQ(status(both, Keys::Need::client, kAdmin), 401);
}

TEST(Keys, OneOfSeveralIsNotTheAdmin) {
  Keys keys{.client = {"one", "two"}};
  for (const HttpRequest& request : {kNone, kClient, kAnthropic, kAdmin}) {
    EXPECT_EQ(status(keys, Keys::Need::admin, request), 403);
    EXPECT_EQ(status(keys, Keys::Need::trainer, request), 403);
  }
  EXPECT_EQ(status(keys, Keys::Need::client, kClient), 0);
  keys.trusts_trainers = true;  // as the flag says, and no more
  EXPECT_EQ(status(keys, Keys::Need::admin, kClient), 403);
  EXPECT_EQ(status(keys, Keys::Need::trainer, kNone), 0);
  keys = {.client = {"one", "two"}, .admin = {"root"}};
  EXPECT_EQ(status(keys, Keys::Need::trainer, kClient), 401);
  EXPECT_EQ(status(keys, Keys::Need::trainer, kAdmin), 0);
}

TEST(Keys, AKeyIsComparedAsAWhole) {
  const Keys keys{.client = {"one"}};
  for (const char* shown :
       {"Bearer on", "Bearer one ", "Bearer oneone", "Bearer ", "Basic one", "one", "Bearer ONE"})
    EXPECT_EQ(status(keys, Keys::Need::client, with({{"authorization", shown}})), 401) << shown;
}

TEST(Keys, AnOwnerIsADigestOfTheKey) {
  const Keys keys{.client = {"one", "two"}};
  const std::string one = keys.owner(kClient), two = keys.owner(kAnthropic);
  EXPECT_EQ(one.size(), 64u);
  EXPECT_NE(one, two);
  EXPECT_EQ(one, keys.owner(with({{"x-api-key", "one"}})));
  EXPECT_EQ(keys.owner(kNone), "");
  EXPECT_EQ(Keys{}.owner(kClient), "");  // an answer of a server without keys is everybody's
}

}  // namespace
}  // namespace invar::server
