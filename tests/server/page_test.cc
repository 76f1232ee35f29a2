#include "server/page.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>

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

std::set<std::string> all_of(std::string_view text, const char* pattern) {
  const std::regex regex(pattern);
  const std::string whole(text);
  std::set<std::string> found;
  for (std::sregex_iterator at(whole.begin(), whole.end(), regex), end; at != end; ++at)
    found.insert((*at)[1]);
  return found;
}

// A browser asks for all scripts as soon as it has the page, not for each once it has read the one
// that names it.
TEST(Page, NamesAllItsScripts) {
  std::map<std::string, std::string_view> files;
  for (const PageFile& file : page_files()) files.emplace(file.name, file.bytes);
  const std::string_view page = files.at("index.html");
  std::set<std::string> needed = {"app.js"};
  ASSERT_EQ(all_of(page, "<script[^>]* src=\"/page/([a-z0-9_]+\\.js)\""), needed);
  for (size_t known = 0; known < needed.size();) {
    known = needed.size();
    for (const std::string& name : std::set(needed))
      needed.merge(all_of(files.at(name), "from \"\\./([a-z0-9_]+\\.js)\""));
  }
  EXPECT_GT(needed.size(), 20u);
  needed.erase("app.js");
  EXPECT_EQ(all_of(page, "rel=\"modulepreload\" href=\"/page/([a-z0-9_]+\\.js)\""), needed);
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
