// Evaluates the tree of a template. Its functions, statements and expressions have a file each.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "frontend/jinja/ast.h"
#include "frontend/jinja/scope.h"
#include "frontend/jinja/template.h"

namespace invar::jinja {

enum class Flow { next, leave_loop, next_round };

class Evaluator {
 public:
  explicit Evaluator(const RenderOptions& options) : options_(options), budget_(options.limits) {}

  // Values that a namespace or a scope holds may lead back to it: nothing else breaks the circle.
  ~Evaluator() {
    for (const auto& space : namespaces_) space->members.clear();
    for (const ScopePtr& scope : macro_scopes_) scope->variables.clear();
  }

  std::string render(const Block& block, const Variables& variables);

 private:
  // One more level of the evaluation, one more step.
  class Level {
   public:
    explicit Level(Evaluator& evaluator) : depth_(evaluator.depth_) {
      evaluator.budget_.step();
      if (depth_ >= evaluator.budget_.limits().depth)
        fault(fmt::format("the template goes deeper than {} levels",
                          evaluator.budget_.limits().depth));
      ++depth_;
    }
    ~Level() { --depth_; }

   private:
    int& depth_;
  };

  static ScopePtr inner(const ScopePtr& scope) { return std::make_shared<Scope>(Scope{scope, {}}); }

  // The functions that every template can call.
  void define_functions(Scope& root);
  Value range(const Arguments& a);
  // dict(pairs, name=value ...)
  std::vector<Pair> pairs_of(const Arguments& a, const char* function);
  Value now(const std::string& format);

  Flow run(const Block& block, const ScopePtr& scope, std::string& out);
  void print(std::string_view text, std::string& out);
  Flow run(const Statement& s, const ScopePtr& scope, std::string& out);
  Flow run_for(const Statement& s, const ScopePtr& scope, std::string& out);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  Value body_text(const Block& body, const ScopePtr& scope);
  Value filtered_body(const Statement& s, const ScopePtr& scope);
  // The macro outlives neither the tree nor this evaluation.
  Value macro(const Statement& s, const std::string& name, const ScopePtr& scope);
  ScopePtr scope_of(Scope* scope) const;
  void bind(const Statement& s, const std::string& name, const Arguments& a, const ScopePtr& body);
  Value call_with_body(const Statement& s, const ScopePtr& scope);

  Value eval(const Expr& e, const ScopePtr& scope);
  Value child(const Expr& e, size_t i, const ScopePtr& scope) {
    return eval(*e.children[i], scope);
  }
  Value eval_kind(const Expr& e, const ScopePtr& scope);
  Items eval_all(const Expr& e, const ScopePtr& scope);
  Value eval_dict(const Expr& e, const ScopePtr& scope);
  Value eval_subscript(const Expr& e, const ScopePtr& scope);
  Value eval_compare(const Expr& e, const ScopePtr& scope);
  Value eval_concat(const Expr& e, const ScopePtr& scope);
  // `innermost`: what the first filter of a filter block works on.
  Value eval_filter(const Expr& e, const ScopePtr& scope, const Value* innermost);
  Arguments eval_arguments(const CallArguments& source, const ScopePtr& scope);

  const RenderOptions& options_;
  Budget budget_;
  int depth_ = 0;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<ScopePtr> macro_scopes_;
};

}  // namespace invar::jinja
