// Renders templates for jinja_oracle.py: a line {"template", "variables"} in, {"text"} or {"error"}
// out.
#include <iostream>
#include <string>

#include "base/error.h"
#include "frontend/jinja/template.h"

using namespace invar;

// The day that the other side prints too: a Sunday.
std::tm fixed_time() {
  std::tm time{};
  time.tm_year = 2024 - 1900;
  time.tm_mon = 5;
  time.tm_mday = 30;
  time.tm_hour = 7;
  time.tm_min = 8;
  time.tm_sec = 9;
  time.tm_wday = 0;
  time.tm_yday = 181;
  return time;
}

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    json::Value answer;
    try {
      const json::Value record = json::parse(line, "a record");
      jinja::Variables variables;
      for (const auto& [name, value] : record.find("variables")->as_object())
        variables.emplace_back(name, jinja::Value::from_json(value));
      const jinja::Template program(record.find("template")->as_string(), "template");
      answer.set("text", program.render(variables, {.clock = fixed_time}));
    } catch (const Error& error) {
      answer.set("error", std::string(error.what()));
    }
    std::cout << json::dump(answer) << '\n';
  }
}
