// The statements of a template, as they are carried out.
#include <fmt/format.h>

#include <algorithm>

#include "frontend/jinja/evaluator.h"
#include "frontend/jinja/python_text.h"

namespace invar::jinja {

std::string Evaluator::render(const Block& block, const Variables& variables) {
  const auto root = std::make_shared<Scope>();
  define_functions(*root);
  const auto top = inner(root);
  for (const auto& [name, value] : variables) top->set(name, value);
  std::string out;
  run(block, top, out);
  return out;
}

Flow Evaluator::run(const Block& block, const ScopePtr& scope, std::string& out) {
  const Level level(*this);
  for (const Statement& statement : block) {
    Flow flow;
    try {
      flow = run(statement, scope, out);
    } catch (Fault& found) {
      if (found.line == 0) found.line = statement.line;
      throw;
    }
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

void Evaluator::print(std::string_view text, std::string& out) {
  const size_t limit = budget_.limits().output_bytes;
  if (out.size() + text.size() > limit)
    fault(fmt::format("the template prints more than {} bytes", limit));
  out += text;
}

Flow Evaluator::run(const Statement& s, const ScopePtr& scope, std::string& out) {
  budget_.step();
  switch (s.kind) {
    case Statement::kText:
      print(s.text, out);
      break;
    case Statement::kPrint: {
      const Value value = eval(*s.expr, scope);
      const std::string* text = value.as_string();
      text ? print(*text, out) : print(*budget_.text(budget_.printed(value)).as_string(), out);
      break;
    }
    case Statement::kIf:
      return run(eval(*s.expr, scope).truth() ? s.body : s.other, scope, out);
    case Statement::kFor:
      return run_for(s, scope, out);
    case Statement::kSet:
      assign(s.target, eval(*s.expr, scope), scope);
      break;
    case Statement::kSetBlock:
      assign(s.target, filtered_body(s, scope), scope);
      break;
    case Statement::kFilterBlock:
      print(budget_.printed(filtered_body(s, scope)), out);
      break;
    case Statement::kMacro:
      scope->set(s.name, macro(s, s.name, scope));
      break;
    case Statement::kCallBlock:
      print(budget_.printed(call_with_body(s, scope)), out);
      break;
    case Statement::kWith: {
      const ScopePtr body = inner(scope);
      for (const Parameter& p : s.parameters) body->set(p.name, eval(*p.value, scope));
      return run(s.body, body, out);
    }
    case Statement::kScope:
      return run(s.body, inner(scope), out);
    case Statement::kBreak:
      return Flow::leave_loop;
    case Statement::kContinue:
      return Flow::next_round;
  }
  return Flow::next;
}

Flow Evaluator::run_for(const Statement& s, const ScopePtr& scope, std::string& out) {
  Items items = items_of(budget_, eval(*s.expr, scope));
  if (s.condition) {
    Items kept;
    for (Value& item : items) {
      const ScopePtr test = inner(scope);
      assign(s.target, item, test);
      if (eval(*s.condition, test).truth()) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) return run(s.other, inner(scope), out);
  const auto loop = std::make_shared<Loop>();
  loop->items = std::make_shared<const Items>(std::move(items));
  for (; loop->index0 < loop->items->size(); ++loop->index0) {
    budget_.step();
    const ScopePtr body = inner(scope);
    body->set("loop", loop);
    assign(s.target, (*loop->items)[loop->index0], body);
    if (run(s.body, body, out) == Flow::leave_loop) break;
  }
  loop->changed.reset();
  return Flow::next;
}

void Evaluator::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (!target.several.empty()) {
    const Items items = items_of(budget_, value);
    if (items.size() != target.several.size())
      fault(fmt::format("{} values cannot be assigned to {} names", items.size(),
                        target.several.size()));
    for (size_t i = 0; i < items.size(); ++i) assign(target.several[i], items[i], scope);
    return;
  }
  if (target.member.empty()) return scope->set(target.name, value);
  const Value* holder = scope->find(target.name, budget_);
  Namespace* space = holder ? holder->as_namespace() : nullptr;
  if (!space) fault(fmt::format("{} is not a namespace, its members cannot be set", target.name));
  budget_.step(std::ssize(space->members));
  for (auto& [name, old] : space->members)
    if (name == target.member) {
      old = value;
      return;
    }
  space->members.emplace_back(target.member, value);
}

Value Evaluator::body_text(const Block& body, const ScopePtr& scope) {
  std::string text;
  run(body, scope, text);
  return budget_.text(std::move(text));
}

Value Evaluator::filtered_body(const Statement& s, const ScopePtr& scope) {
  const Value text = body_text(s.body, inner(scope));
  return s.expr ? eval_filter(*s.expr, scope, &text) : text;
}

Value Evaluator::macro(const Statement& s, const std::string& name, const ScopePtr& scope) {
  macro_scopes_.push_back(scope);
  return make_callable(name, [this, &s, name, scope = scope.get()](const Arguments& a) {
    const Level level(*this);
    budget_.step(std::ssize(macro_scopes_) / 8);  // scope_of looks through them
    const ScopePtr body = inner(scope_of(scope));
    bind(s, name, a, body);
    return body_text(s.body, body);
  });
}

ScopePtr Evaluator::scope_of(Scope* scope) const {
  const auto found = std::find_if(macro_scopes_.begin(), macro_scopes_.end(),
                                  [&](const ScopePtr& s) { return s.get() == scope; });
  return *found;
}

void Evaluator::bind(const Statement& s, const std::string& name, const Arguments& a,
                     const ScopePtr& body) {
  if (a.positional.size() > s.parameters.size())
    fault(fmt::format("the macro {} takes at most {} arguments, found {}", name,
                      s.parameters.size(), a.positional.size()));
  budget_.step(std::ssize(a.named) * std::ssize(s.parameters) / 4);
  for (const auto& [given, value] : a.named) {
    const auto at = std::find_if(s.parameters.begin(), s.parameters.end(),
                                 [&name = given](const Parameter& p) { return p.name == name; });
    if (at == s.parameters.end() && given != "caller")
      fault(fmt::format("the macro {} has no parameter {}", name, given));
    if (at - s.parameters.begin() < std::ssize(a.positional))
      fault(fmt::format("the macro {} got its parameter {} twice", name, given));
    body->set(at == s.parameters.end() ? std::string_view("caller") : at->name, value);
  }
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    const Parameter& p = s.parameters[i];
    const bool named = std::any_of(a.named.begin(), a.named.end(),
                                   [&](const auto& n) { return n.first == p.name; });
    if (i < a.positional.size())
      body->set(p.name, a.positional[i]);
    else if (!named)
      body->set(p.name, p.value ? eval(*p.value, body) : Value(Undefined{p.name}));
  }
}

Value Evaluator::call_with_body(const Statement& s, const ScopePtr& scope) {
  Arguments arguments = eval_arguments(s.expr->arguments, scope);
  arguments.named.emplace_back("caller", macro(s, "caller", scope));
  return call(eval(*s.expr->children[0], scope), arguments);
}

}  // namespace invar::jinja
