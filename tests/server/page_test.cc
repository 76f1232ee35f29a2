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

// The files that a browser loads for the page, which has its style within; the API's reference is
// another page.
TEST(Page, WeighsLessThan150Kilobytes) {
  size_t bytes = 0;
  for (const PageFile& file : page_files())
    if (!file.name.starts_with("docs.") && file.name != "openapi.json" && file.name != "style.css")
      bytes += file.bytes.size();
  EXPECT_GT(bytes, 50'000u);
  EXPECT_LE(bytes, 150'000u);
}

// A browser paints nothing before it has the style: no second request for it.
TEST(Page, HasItsStyleWithin) {
  std::string_view page, style;
  for (const PageFile& file : page_files()) {
    if (file.name == "index.html") page = file.bytes;
    if (file.name == "style.css") style = file.bytes;
  }
  EXPECT_EQ(page.find("rel=\"stylesheet\""), page.npos);
  EXPECT_NE(page.find("<style>" + std::string(style) + "</style>"), page.npos);
}

// Its comments are for readers of the source.
TEST(Page, HasNoCommentsInItsScripts) {
  for (const PageFile& file : page_files()) {
    if (!file.name.ends_with(".js")) continue;
    EXPECT_FALSE(file.bytes.starts_with("// ")) << file.name;
    EXPECT_EQ(file.bytes.find("\n// "), file.bytes.npos) << file.name;
    EXPECT_NE(file.bytes.find('\n'), file.bytes.npos) << file.name;
  }
}

}  // namespace
}  // namespace invar::server
