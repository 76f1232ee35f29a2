// invar diff: the first operation in which two recorded runs differ. Exit status 0 when they are
// equal, 1 when they differ, 2 when they cannot be compared.
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "command.h"
#include "engine/trace_file.h"

namespace invar::cli {

namespace {

struct DiffFlags {
  std::string a, b;
  bool json = false;
};

std::string place_of(const TraceFile& file, const TraceRecord& record) {
  const TraceOp& op = file.ops()[record.op];
  const std::string layer = op.layer < 0 ? "" : fmt::format("layer {}, ", op.layer);
  return fmt::format("request {}, position {}, {}{}", record.request, record.position, layer,
                     op.name);
}

// Exactly, and as people read it.
std::string both_forms(float x) {
  return fmt::format("{:<16a} {:.9g}", x, x);
}

void print_first(const TraceFile& a, const TraceFile& b, const TraceDifference& d) {
  if (!d.a || !d.b) {
    fmt::print("first difference   {}: only in {}\n", place_of(d.a ? a : b, d.a ? *d.a : *d.b),
               d.a ? a.path() : b.path());
    return;
  }
  fmt::print("first difference   {}\n", place_of(a, *d.a));
  if (!d.has_values) {
    if (d.a->width != d.b->width)
      fmt::print("  {} values in a, {} in b\n", d.a->width, d.b->width);
    else
      fmt::print("  its values were not kept; record with a larger --trace-values\n");
    return;
  }
  const float x = d.a->values[d.index], y = d.b->values[d.index];
  const auto ulps = ulp_distance(x, y);
  fmt::print("  {} of {} values differ, the first at index {}{}\n", d.differing_values, d.a->width,
             d.index, ulps ? fmt::format(", by {} ulp", *ulps) : "");
  fmt::print("  a  {}\n  b  {}\n", both_forms(x), both_forms(y));
}

json::Value number_or_text(float x) {
  return std::isfinite(x) ? json::Value(double{x}) : json::Value(fmt::format("{}", x));
}

json::Value describe_first(const TraceFile& a, const TraceFile& b, const TraceDifference& d) {
  const TraceRecord& record = d.a ? *d.a : *d.b;
  const TraceOp& op = (d.a ? a : b).ops()[record.op];
  json::Value v;
  v.set("request", record.request);
  v.set("position", record.position);
  v.set("layer", op.layer);
  v.set("operation", op.name);
  v.set("in", !d.b ? "a" : !d.a ? "b" : "both");
  if (!d.has_values) return v;
  const float x = d.a->values[d.index], y = d.b->values[d.index];
  v.set("values", d.a->width);
  v.set("differing_values", d.differing_values);
  v.set("index", d.index);
  v.set("a", number_or_text(x));
  v.set("b", number_or_text(y));
  v.set("a_hex", fmt::format("{:a}", x));
  v.set("b_hex", fmt::format("{:a}", y));
  if (const auto ulps = ulp_distance(x, y)) v.set("ulps", *ulps);
  return v;
}

void print_json(const TraceFile& a, const TraceFile& b, const TraceComparison& result) {
  json::Value v;
  v.set("a", a.about());
  v.set("b", b.about());
  v.set("records_equal", result.equal);
  v.set("records_different", result.different);
  v.set("records_only_in_a", result.only_a);
  v.set("records_only_in_b", result.only_b);
  v.set("records_not_comparable", result.not_comparable);
  v.set("first_difference",
        result.first ? describe_first(a, b, *result.first) : json::Value(nullptr));
  fmt::print("{}\n", json::dump(v, 2));
}

// Prints the runs' descriptions where they were not the same.
void print_descriptions(const TraceFile& a, const TraceFile& b) {
  if (!a.about().is_object() || !b.about().is_object()) return;
  for (const auto& [key, value] : a.about().as_object()) {
    const json::Value* other = b.about().find(key);
    if (other && *other != value)
      fmt::print("{:<18} a {}, b {}\n", key, json::excerpt(value), json::excerpt(*other));
  }
}

int run_diff(const DiffFlags& flags) {
  const TraceFile a(flags.a), b(flags.b);
  const TraceComparison result = compare(a, b);
  if (flags.json) {
    print_json(a, b, result);
    return result.first ? 1 : 0;
  }
  print_descriptions(a, b);
  fmt::print("{:<18} {} equal, {} different, {} only in a, {} only in b\n", "records", result.equal,
             result.different, result.only_a, result.only_b);
  if (result.not_comparable)
    fmt::print("{:<18} {} that ranks share out, of different numbers of ranks\n", "not compared",
               result.not_comparable);
  if (result.first)
    print_first(a, b, *result.first);
  else
    fmt::print("no difference\n");
  return result.first ? 1 : 0;
}

}  // namespace

void add_diff(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("diff", "Find the first operation in which two recorded runs differ");
  auto flags = std::make_shared<DiffFlags>();
  command->add_option("A", flags->a, "A recording of generate --trace")->required();
  command->add_option("B", flags->b, "Another one")->required();
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([&action, flags] {
    action = [flags] {
      try {
        return run_diff(*flags);
      } catch (const Error& error) {  // 1 says that the runs differ
        throw UsageError(error.what());
      }
    };
  });
}

}  // namespace invar::cli
