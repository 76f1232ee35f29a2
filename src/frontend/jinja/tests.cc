// The tests of templates, "x is defined".
#include <fmt/format.h>

#include <unordered_map>

#include "frontend/jinja/operations.h"
#include "frontend/jinja/python_text.h"

namespace invar::jinja {

namespace {

using Test = bool (*)(Budget&, const Value&, const Arguments&);

template <Operator kOperator>
bool compared(Budget& budget, const Value& value, const Arguments& a) {
  return compare(budget, kOperator, value, Parameters("a test", a, {"other"}).value(0));
}

int64_t remainder(Budget& budget, const Value& value, const Value& by) {
  return binary(budget, Operator::modulo, value, by).as_integer().value_or(-1);
}

bool is_sequence(Budget&, const Value& v, const Arguments&) {
  return v.is_undefined() || v.is_string() || v.as_dict() ||
         (v.as_sequence() && v.as_sequence()->kind <= SequenceKind::range);
}

const std::unordered_map<std::string, Test>& tests() {
  using B = Budget&;
  using V = const Value&;
  using A = const Arguments&;
  static const std::unordered_map<std::string, Test> kTests = {
      {"defined", [](B, V v, A) { return !v.is_undefined(); }},
      {"undefined", [](B, V v, A) { return v.is_undefined(); }},
      {"none", [](B, V v, A) { return v.is_none(); }},
      {"boolean", [](B, V v, A) { return v.is_bool(); }},
      {"true", [](B, V v, A) { return v.is_bool() && v.truth(); }},
      {"false", [](B, V v, A) { return v.is_bool() && !v.truth(); }},
      {"integer", [](B, V v, A) { return v.as_integer().has_value() && !v.is_bool(); }},
      {"float", [](B, V v, A) { return v.as_float().has_value(); }},
      {"number", [](B, V v, A) { return v.as_number().has_value(); }},
      {"string", [](B, V v, A) { return v.is_string(); }},
      {"mapping", [](B, V v, A) { return v.as_dict() != nullptr; }},
      {"sequence", is_sequence},
      {"iterable",
       [](B, V v, A) {
         return v.is_undefined() || v.is_string() || v.as_dict() || v.as_sequence() || v.as_loop();
       }},
      {"callable", [](B, V v, A) { return v.as_callable() != nullptr; }},
      {"sameas",
       [](B, V v, A a) { return v.same_as(Parameters("sameas", a, {"other"}).value(0)); }},
      {"odd", [](B b, V v, A) { return remainder(b, v, 2) == 1; }},
      {"even", [](B b, V v, A) { return remainder(b, v, 2) == 0; }},
      {"divisibleby",
       [](B b, V v, A a) {
         return remainder(b, v, Parameters("divisibleby", a, {"num"}).value(0)) == 0;
       }},
      {"upper", [](B b, V v, A) { return text::is_upper(b.printed(v)); }},
      {"lower", [](B b, V v, A) { return text::is_lower(b.printed(v)); }},
      {"filter", [](B, V v, A) { return v.is_string() && is_filter(*v.as_string()); }},
      {"in", compared<Operator::in>},
      {"eq", compared<Operator::equal>},
      {"equalto", compared<Operator::equal>},
      {"==", compared<Operator::equal>},
      {"ne", compared<Operator::not_equal>},
      {"!=", compared<Operator::not_equal>},
      {"lt", compared<Operator::less>},
      {"lessthan", compared<Operator::less>},
      {"<", compared<Operator::less>},
      {"le", compared<Operator::less_equal>},
      {"<=", compared<Operator::less_equal>},
      {"gt", compared<Operator::greater>},
      {"greaterthan", compared<Operator::greater>},
      {">", compared<Operator::greater>},
      {"ge", compared<Operator::greater_equal>},
      {">=", compared<Operator::greater_equal>},
  };
  return kTests;
}

}  // namespace

bool test(Budget& budget, const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = tests().find(name);
  if (found == tests().end())
    fault(fmt::format("the test {} is not supported", json::quoted(name)));
  budget.step();
  if (const std::string* s = value.as_string()) budget.touch(s->size());
  return found->second(budget, value, arguments);
}

}  // namespace invar::jinja
