#include "base/toml.h"

#include "base/input_file.h"

namespace invar {

toml::table parse_toml(const std::string& path) {
  try {
    return toml::parse(read_whole_file(path), path);
  } catch (const toml::parse_error& error) {
    fail_usage("{} line {}: not TOML: {}", path, error.source().begin.line,
               std::string(error.description()));
  }
}

}  // namespace invar
