// Prometheus' text form.
#pragma once

#include <string>
#include <string_view>

#include "histogram.h"

namespace invar::server {

// A value between quotes, as the form escapes it.
std::string escaped_label(std::string_view text);

class Exposition {
 public:
  // `labels` of every line: `engine="0",model_name="m"`; may be empty.
  explicit Exposition(std::string labels) : labels_(std::move(labels)) {}

  void type(const char* name, const char* type, const char* help);
  // A line of a metric whose type was said; `more` labels beside those of every line.
  void line(const char* name, double value, const std::string& more = {});
  void counter(const char* name, const char* help, double value);
  void gauge(const char* name, const char* help, double value);
  void histogram(const char* name, const char* help, const Histogram& of);
  std::string take() { return std::move(out_); }

 private:
  std::string labels_, out_;
};

}  // namespace invar::server
