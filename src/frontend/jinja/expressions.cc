// The values of a template's expressions.
#include <fmt/format.h>

#include "frontend/jinja/evaluator.h"
#include "frontend/jinja/python_text.h"

namespace invar::jinja {

Value Evaluator::eval(const Expr& e, const ScopePtr& scope) {
  const Level level(*this);
  try {
    return eval_kind(e, scope);
  } catch (Fault& found) {
    if (found.line == 0) found.line = e.line;
    throw;
  }
}

Value Evaluator::eval_kind(const Expr& e, const ScopePtr& scope) {
  switch (e.kind) {
    case Expr::kConstant:
      return e.constant;
    case Expr::kName: {
      const Value* found = scope->find(e.name, budget_);
      return found ? *found : Value(Undefined{e.name});
    }
    case Expr::kAttribute:
      return attribute(budget_, child(e, 0, scope), e.name);
    case Expr::kSubscript:
      return eval_subscript(e, scope);
    case Expr::kCall: {
      const Value callee = child(e, 0, scope);
      return call(callee, eval_arguments(e.arguments, scope));
    }
    case Expr::kFilter:
      return eval_filter(e, scope, nullptr);
    case Expr::kTest: {
      const Value value = child(e, 0, scope);
      return test(budget_, e.name, value, eval_arguments(e.arguments, scope));
    }
    case Expr::kList:
      return Value::list(eval_all(e, scope));
    case Expr::kTuple:
      return Value::tuple(eval_all(e, scope));
    case Expr::kDict:
      return eval_dict(e, scope);
    case Expr::kUnary:
      return unary(e.operators[0], child(e, 0, scope));
    case Expr::kBinary: {
      const Value left = child(e, 0, scope);
      return binary(budget_, e.operators[0], left, child(e, 1, scope));
    }
    case Expr::kCompare:
      return eval_compare(e, scope);
    case Expr::kAnd: {
      Value left = child(e, 0, scope);
      return left.truth() ? child(e, 1, scope) : left;
    }
    case Expr::kOr: {
      Value left = child(e, 0, scope);
      return left.truth() ? left : child(e, 1, scope);
    }
    case Expr::kNot:
      return !child(e, 0, scope).truth();
    case Expr::kConcat:
      return eval_concat(e, scope);
    case Expr::kConditional:
      if (child(e, 1, scope).truth()) return child(e, 0, scope);
      return e.children.size() > 2 ? child(e, 2, scope)
                                   : Value(Undefined{"the other side of an if"});
    case Expr::kSlice:
      break;
  }
  fault("a slice stands outside of an index");
}

Items Evaluator::eval_all(const Expr& e, const ScopePtr& scope) {
  Items items;
  for (const ExprPtr& item : e.children) items.push_back(eval(*item, scope));
  return items;
}

Value Evaluator::eval_dict(const Expr& e, const ScopePtr& scope) {
  std::vector<Pair> pairs;
  for (size_t i = 0; i < e.children.size(); i += 2) {
    Value key = child(e, i, scope);
    pairs.emplace_back(std::move(key), child(e, i + 1, scope));
  }
  return dict_of(budget_, std::move(pairs));
}

Value Evaluator::eval_subscript(const Expr& e, const ScopePtr& scope) {
  const Value object = child(e, 0, scope);
  const Expr& key = *e.children[1];
  if (key.kind != Expr::kSlice) return item(budget_, object, eval(key, scope));
  Value bounds[3];
  for (int i = 0; i < 3; ++i)
    bounds[i] = key.children[i] ? eval(*key.children[i], scope) : Value(nullptr);
  return slice(budget_, object, bounds[0], bounds[1], bounds[2]);
}

Value Evaluator::eval_compare(const Expr& e, const ScopePtr& scope) {
  Value left = child(e, 0, scope);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = child(e, i + 1, scope);
    if (!compare(budget_, e.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::eval_concat(const Expr& e, const ScopePtr& scope) {
  std::string out;
  for (const ExprPtr& part : e.children) {
    const std::string text = budget_.printed(eval(*part, scope));
    budget_.make_text(text.size());
    out += text;
  }
  return out;
}

Value Evaluator::eval_filter(const Expr& e, const ScopePtr& scope, const Value* innermost) {
  const Expr* input = e.children[0].get();
  Value value;
  if (!input)
    value = *innermost;
  else
    value = innermost ? eval_filter(*input, scope, innermost) : eval(*input, scope);
  return filter(budget_, e.name, value, eval_arguments(e.arguments, scope));
}

Arguments Evaluator::eval_arguments(const CallArguments& source, const ScopePtr& scope) {
  Arguments arguments;
  for (const ExprPtr& expr : source.positional) arguments.positional.push_back(eval(*expr, scope));
  for (const auto& [name, expr] : source.named)
    arguments.named.emplace_back(name, eval(*expr, scope));
  if (source.rest)
    for (Value& value : items_of(budget_, eval(*source.rest, scope)))
      arguments.positional.push_back(std::move(value));
  if (source.named_rest) {
    const Value rest = eval(*source.named_rest, scope);
    const Dict* dict = rest.as_dict();
    if (!dict) fault(fmt::format("** needs a dict, found a {}", rest.type_name()));
    budget_.step(std::ssize(dict->pairs));
    for (const auto& [key, value] : dict->pairs) {
      if (!key.is_string()) fault("** needs texts as keys");
      arguments.named.emplace_back(*key.as_string(), value);
    }
  }
  return arguments;
}

}  // namespace invar::jinja
