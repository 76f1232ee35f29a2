// The files of the page at /, which are part of the program (src/server/page).
#pragma once

#include <span>
#include <string_view>

namespace invar::server {

struct PageFile {
  std::string_view name;  // "index.html"
  std::string_view bytes;
};

// Made by cmake/embed.cmake.
std::span<const PageFile> page_files();

}  // namespace invar::server
