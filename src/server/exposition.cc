#include "exposition.h"

#include <fmt/format.h>

#include <algorithm>

namespace invar::server {

std::string escaped_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

void Histogram::add(double value) {
  sum_ += value;
  ++counts_[std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin()];
}

void Histogram::print(const std::string& name, const std::string& labels, std::string& out) const {
  const std::string comma = labels.empty() ? "" : ",";
  int64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels, comma, bound, total);
  }
  out +=
      fmt::format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_, name, labels, total);
}

void Exposition::type(const char* name, const char* type, const char* help) {
  out_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void Exposition::line(const char* name, double value, const std::string& more) {
  const std::string comma = labels_.empty() || more.empty() ? "" : ",";
  const std::string all = labels_ + comma + more;
  out_ += all.empty() ? fmt::format("{} {}\n", name, value)
                      : fmt::format("{}{{{}}} {}\n", name, all, value);
}

void Exposition::counter(const char* name, const char* help, double value) {
  type(name, "counter", help);
  line(name, value);
}

void Exposition::gauge(const char* name, const char* help, double value) {
  type(name, "gauge", help);
  line(name, value);
}

void Exposition::histogram(const char* name, const char* help, const Histogram& of) {
  type(name, "histogram", help);
  of.print(name, labels_, out_);
}

}  // namespace invar::server
