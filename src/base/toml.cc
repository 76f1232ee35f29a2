#include "base/toml.h"

namespace invar {

toml::table parse_toml(const std::string& path) {
  try {
    return toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    if (error.source().begin.line == 0) fail("{}: cannot be read", path);
    fail_usage("{} line {}: not TOML: {}", path, error.source().begin.line,
               std::string(error.description()));
  }
}

}  // namespace invar
