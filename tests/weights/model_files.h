// Files for tests: a temporary directory, and safetensors files made from their parts.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "base/error.h"

namespace invar {

class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "invar-test-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, std::string_view content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Size, header and buffer put together.
inline std::string safetensors(std::string_view header, std::string_view buffer) {
  const uint64_t size = header.size();
  std::string file(reinterpret_cast<const char*>(&size), sizeof size);
  return file.append(header).append(buffer);
}

// The message of the Error that `action` throws; fails the test when it throws none.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an Error";
  return "";
}

// `text` is in the message, which is one sentence on one line.
inline void expect_message(const std::string& message, std::string_view text) {
  EXPECT_NE(message.find(text), std::string::npos) << message << "\n  lacks: " << text;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 1000u);
}

}  // namespace invar
