// A program that answers lines of JSON, one after the other, for as long as this object lives.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace invar {

class LineProcess {
 public:
  // `name`: what errors call it; `seconds`: for one answer. Throws Error where it cannot be
  // started.
  LineProcess(const std::vector<std::string>& command, const std::string& name, int seconds);
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  const std::string& name() const { return name_; }
  // Writes a line and reads the next one. Throws Error where the program ends, is late, or says
  // what is no JSON.
  json::Value ask(const json::Value& line);

 private:
  void send(const std::string& line) const;
  std::string receive();

  const std::string name_;
  const int seconds_;
  int socket_ = -1;
  int process_ = -1;
  std::string received_;  // behind the last line
};

}  // namespace invar
