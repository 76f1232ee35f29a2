#include "server/page.h"

#include <gtest/gtest.h>

#include <regex>

namespace invar::server {
namespace {

// Whatever the page asks its server for is part of the program.
TEST(Page, HasTheFilesThatItNames) {
  std::map<std::string_view, std::string_view> files;
  for (const PageFile& file : page_files()) {
    EXPECT_FALSE(file.bytes.empty()) << file.name;
    EXPECT_TRUE(files.emplace(file.name, file.bytes).second) << file.name << " twice";
  }
  ASSERT_TRUE(files.contains("index.html"));
  const std::string html(files.at("index.html"));
  const std::regex named("(?:src|href)=\"/page/([a-z_]+\\.(?:js|css|svg))\"");
  size_t count = 0;
  for (std::sregex_iterator at(html.begin(), html.end(), named), end; at != end; ++at, ++count)
    EXPECT_TRUE(files.contains((*at)[1].str())) << (*at)[1];
  EXPECT_GT(count, 0u);
}

}  // namespace
}  // namespace invar::server
