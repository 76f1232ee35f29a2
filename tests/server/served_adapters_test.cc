// Adapters come and go by name.
#include "server/served_adapters.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar::server {
namespace {

std::shared_ptr<const RequestAdapter> opened(const std::string& name, const std::string& path) {
  if (path == "broken") fail("broken: expected an adapter, found none");
  return std::make_shared<const RequestAdapter>(RequestAdapter{.name = name, .directory = path});
}

TEST(ServedAdapters, ComeAndGoByName) {
  ServedAdapters adapters(opened);
  EXPECT_FALSE(adapters.find("a"));
  adapters.load("b", "second", false);
  adapters.load("a", "first", false);
  ASSERT_EQ(adapters.all().size(), 2U);
  EXPECT_EQ(adapters.all()[0]->name, "a");
  const auto held = adapters.find("a");
  EXPECT_TRUE(adapters.unload("a"));
  EXPECT_FALSE(adapters.unload("a"));
  EXPECT_FALSE(adapters.find("a"));
  EXPECT_EQ(held->directory, "first");  // by a request that has begun
}

TEST(ServedAdapters, ANameIsTakenOnceUnlessItIsReplaced) {
  ServedAdapters adapters(opened);
  adapters.load("a", "first", false);
  EXPECT_THROW(adapters.load("a", "second", false), UsageError);
  EXPECT_EQ(adapters.find("a")->directory, "first");
  adapters.load("a", "second", true);
  EXPECT_EQ(adapters.find("a")->directory, "second");
  EXPECT_THROW(adapters.load("a", "broken", true), Error);
  EXPECT_EQ(adapters.find("a")->directory, "second");
  for (const std::string& name : {std::string(), std::string("a*"), std::string(300, 'x')})
    EXPECT_THROW(adapters.load(name, "path", false), UsageError);
  EXPECT_THROW(adapters.load("c", std::string(5000, 'x'), false), UsageError);
}

}  // namespace
}  // namespace invar::server
