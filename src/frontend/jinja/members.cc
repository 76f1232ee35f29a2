// Members of a value: object.name, object[key], object[first:last:step].
#include <fmt/format.h>

#include <algorithm>

#include "frontend/jinja/operations.h"
#include "frontend/jinja/python_text.h"

namespace invar::jinja {

namespace {

Value loop_member(Budget& budget, const Value& value, const Loop& loop, const std::string& name) {
  const int64_t index0 = static_cast<int64_t>(loop.index0), length = std::ssize(*loop.items);
  if (name == "index") return index0 + 1;
  if (name == "index0") return index0;
  if (name == "revindex") return length - index0;
  if (name == "revindex0") return length - index0 - 1;
  if (name == "first") return index0 == 0;
  if (name == "last") return index0 == length - 1;
  if (name == "length") return length;
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "previtem")
    return index0 > 0 ? (*loop.items)[index0 - 1] : Value(Undefined{"loop.previtem of the first"});
  if (name == "nextitem")
    return index0 + 1 < length ? (*loop.items)[index0 + 1]
                               : Value(Undefined{"loop.nextitem of the last"});
  if (name == "cycle")
    return make_callable("loop.cycle", [index0](const Arguments& arguments) {
      if (arguments.positional.empty()) fault("loop.cycle needs something to cycle through");
      return arguments.positional[index0 % arguments.positional.size()];
    });
  if (name == "changed")
    return make_callable("loop.changed", [&budget, value](const Arguments& arguments) {
      budget.step(std::ssize(arguments.positional));
      Loop& state = *value.as_loop();
      const bool changed = !state.changed || !(*state.changed == arguments.positional);
      state.changed = arguments.positional;
      return changed;
    });
  return Undefined{"the member \"" + name + "\" of loop"};
}

}  // namespace

Value attribute(Budget& budget, const Value& object, const std::string& name) {
  if (const Undefined* undefined = object.as_undefined()) fault_undefined(*undefined);
  if (const Loop* loop = object.as_loop()) return loop_member(budget, object, *loop, name);
  if (const Namespace* space = object.as_namespace()) {
    budget.step(std::ssize(space->members) / 8);
    for (const auto& [key, value] : space->members)
      if (key == name) return value;
    return Undefined{"the member \"" + name + "\" of a namespace"};
  }
  Value found = method(budget, object, name);
  if (!found.is_undefined()) return found;
  if (const Dict* dict = object.as_dict()) {
    budget.step(std::ssize(dict->pairs) / 8);
    if (const Value* value = object.find(name)) return *value;
  }
  return Undefined{
      fmt::format("the member \"{}\" of a value of type {}", name, object.type_name())};
}

Value item(Budget& budget, const Value& object, const Value& key) {
  if (const Undefined* undefined = object.as_undefined()) fault_undefined(*undefined);
  if (const Dict* dict = object.as_dict()) {
    budget.step(std::ssize(dict->pairs) / 8);
    if (const Value* value = object.find(key)) return *value;
  }
  if (const std::string* name = key.as_string()) return attribute(budget, object, *name);
  const auto index = key.as_integer();
  if (const std::string* s = object.as_string(); s && index) {
    budget.step(std::ssize(*s) / 256);
    if (const auto character = text::at(*s, *index)) return *character;
  }
  const Sequence* sequence = object.as_sequence();
  if (sequence && sequence->kind <= SequenceKind::range && index) {
    const int64_t place = *index < 0 ? *index + std::ssize(sequence->items) : *index;
    if (place >= 0 && place < std::ssize(sequence->items)) return sequence->items[place];
  }
  return Undefined{fmt::format("an element of a value of type {}", object.type_name())};
}

namespace {

// The places that a slice takes of `size`, as Python counts them.
std::vector<int64_t> places_of(int64_t size, std::optional<int64_t> first,
                               std::optional<int64_t> last, int64_t step) {
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
  const auto bounded = [&](int64_t i) { return std::clamp(i < 0 ? i + size : i, low, high); };
  const int64_t begin = first ? bounded(*first) : step < 0 ? high : low;
  const int64_t end = last ? bounded(*last) : step < 0 ? low : high;
  step = std::clamp<int64_t>(step, -size - 1, size + 1);  // so that nothing overflows
  std::vector<int64_t> places;
  for (int64_t i = begin; step < 0 ? i > end : i < end; i += step) places.push_back(i);
  return places;
}

}  // namespace

Value slice(Budget& budget, const Value& object, const Value& first, const Value& last,
            const Value& step) {
  if (const Undefined* undefined = object.as_undefined()) fault_undefined(*undefined);
  for (const Value* bound : {&first, &last, &step})
    if (!bound->is_none() && !bound->as_integer())
      fault(fmt::format("a slice takes integers, found a {}", bound->type_name()));
  const int64_t by = step.as_integer().value_or(1);
  if (by == 0) fault("a slice has the step zero");
  const std::string* s = object.as_string();
  const Sequence* sequence = object.as_sequence();
  if (!s && !(sequence && sequence->kind <= SequenceKind::range))
    fault(fmt::format("a value of type {} has no slices", object.type_name()));
  if (s) budget.step(std::ssize(*s) / 16);  // its places are listed
  const std::vector<size_t> starts = s ? text::starts(*s) : std::vector<size_t>();
  const int64_t size = s ? std::ssize(starts) - 1 : std::ssize(sequence->items);
  const std::vector<int64_t> places = places_of(size, first.as_integer(), last.as_integer(), by);
  budget.step(std::ssize(places) + std::ssize(starts) / 64);
  if (s) {
    std::string out;
    for (const int64_t i : places) out.append(*s, starts[i], starts[i + 1] - starts[i]);
    return budget.text(std::move(out));
  }
  Items items;
  for (const int64_t i : places) items.push_back(sequence->items[i]);
  return Value::sequence(sequence->kind, std::move(items));
}

}  // namespace invar::jinja
