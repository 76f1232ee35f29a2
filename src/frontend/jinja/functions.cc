// The functions that every template can call.
#include <fmt/format.h>

#include "frontend/jinja/evaluator.h"
#include "frontend/jinja/python_text.h"

namespace invar::jinja {

namespace {

constexpr int64_t kMaxRange = 100'000;

}  // namespace

void Evaluator::define_functions(Scope& root) {
  const auto define = [&](const char* name, std::function<Value(const Arguments&)> call) {
    root.set(name, make_callable(name, std::move(call)));
  };
  define("range", [this](const Arguments& a) { return range(a); });
  define("dict", [this](const Arguments& a) { return dict_of(budget_, pairs_of(a, "dict")); });
  define("namespace", [this](const Arguments& a) {
    auto made = std::make_shared<Namespace>();
    for (auto& [key, value] : pairs_of(a, "namespace"))
      if (key.is_string()) made->members.emplace_back(*key.as_string(), value);
    namespaces_.push_back(made);
    return Value(made);
  });
  define("raise_exception", [](const Arguments& a) -> Value {
    Fault raised(to_text(Parameters("raise_exception", a, {"message"}).value(0)));
    raised.raised = true;
    throw raised;
  });
  define("strftime_now", [this](const Arguments& a) {
    return now(Parameters("strftime_now", a, {"format"}).string(0));
  });
}

Value Evaluator::range(const Arguments& a) {
  if (a.positional.empty() || a.positional.size() > 3 || !a.named.empty())
    fault("range takes one to three integers");
  for (const Value& value : a.positional)
    if (!value.as_integer())
      fault(fmt::format("range takes integers, found a {}", value.type_name()));
  const bool one = a.positional.size() == 1;
  const int64_t first = one ? 0 : *a.positional[0].as_integer();
  const int64_t last = *a.positional[one ? 0 : 1].as_integer();
  const int64_t step = a.positional.size() == 3 ? *a.positional[2].as_integer() : 1;
  if (step == 0) fault("range has the step zero");
  Items items;
  for (__int128 i = first; step > 0 ? i < last : i > last; i += step) {
    if (std::ssize(items) == kMaxRange)
      fault(fmt::format("a range has more than {} numbers", kMaxRange));
    items.push_back(static_cast<int64_t>(i));
  }
  budget_.step(std::ssize(items));
  return Value::sequence(SequenceKind::range, std::move(items));
}

std::vector<Pair> Evaluator::pairs_of(const Arguments& a, const char* function) {
  std::vector<Pair> pairs;
  if (a.positional.size() > 1) fault(fmt::format("{} takes one dict", function));
  if (!a.positional.empty()) {
    const Dict* dict = a.positional[0].as_dict();
    if (dict) pairs = dict->pairs;
    for (const Value& one : dict ? Items() : items_of(budget_, a.positional[0])) {
      const Items pair = items_of(budget_, one);
      if (pair.size() != 2) fault(fmt::format("{} takes pairs of a key and a value", function));
      pairs.emplace_back(pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : a.named) pairs.emplace_back(name, value);
  budget_.step(std::ssize(pairs));
  return pairs;
}

Value Evaluator::now(const std::string& format) {
  if (!options_.clock) fault("strftime_now has no clock here");
  if (format.empty()) return "";
  const std::tm time = options_.clock();
  std::string out(64 + 32 * format.size(), '\0');
  budget_.make_text(out.size());
  const size_t size = std::strftime(out.data(), out.size(), format.c_str(), &time);
  if (size == 0) fault("strftime_now cannot format " + json::quoted(format));
  out.resize(size);
  return out;
}

}  // namespace invar::jinja
