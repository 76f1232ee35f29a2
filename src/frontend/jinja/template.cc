#include "frontend/jinja/template.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "frontend/jinja/operations.h"
#include "frontend/jinja/parser.h"
#include "frontend/jinja/python_text.h"
#include "tokenizer/utf8.h"

namespace invar::jinja {

namespace {

constexpr int64_t kMaxRange = 100'000;

// The variables of a block; what is not there is looked for in the block around it.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> variables;
  std::unordered_map<std::string_view, size_t> places;  // of variables, once they are many

  void set(std::string_view name, Value value) {
    if (Value* old = own(name)) {
      *old = std::move(value);
      return;
    }
    variables.emplace_back(name, std::move(value));
    if (variables.size() <= kFew) return;
    for (size_t i = places.size(); i < variables.size(); ++i) places[variables[i].first] = i;
  }
  // Charges what it looks at.
  const Value* find(std::string_view name, Budget& budget) {
    const Value* found = nullptr;
    size_t scopes = 0;
    for (Scope* scope = this; scope && !found; scope = scope->parent.get(), ++scopes)
      found = scope->own(name);
    budget.touch(name.size());
    budget.step(static_cast<int64_t>(scopes / 4));
    return found;
  }

 private:
  static constexpr size_t kFew = 8;

  Value* own(std::string_view name) {
    if (variables.size() > kFew) {
      const auto found = places.find(name);
      return found == places.end() ? nullptr : &variables[found->second].second;
    }
    for (auto& [known, value] : variables)
      if (known == name) return &value;
    return nullptr;
  }
};
using ScopePtr = std::shared_ptr<Scope>;

enum class Flow { next, leave_loop, next_round };

class Evaluator {
 public:
  explicit Evaluator(const RenderOptions& options) : options_(options), budget_(options.limits) {}

  // Values that a namespace or a scope holds may lead back to it: nothing else breaks the circle.
  ~Evaluator() {
    for (const auto& space : namespaces_) space->members.clear();
    for (const ScopePtr& scope : macro_scopes_) scope->variables.clear();
  }

  std::string render(const Block& block, const Variables& variables) {
    const auto root = std::make_shared<Scope>();
    define_functions(*root);
    const auto top = inner(root);
    for (const auto& [name, value] : variables) top->set(name, value);
    std::string out;
    run(block, top, out);
    return out;
  }

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
  void define_functions(Scope& root) {
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

  Value range(const Arguments& a) {
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

  // dict(pairs, name=value ...)
  std::vector<Pair> pairs_of(const Arguments& a, const char* function) {
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

  Value now(const std::string& format) {
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

  // Statements.
  Flow run(const Block& block, const ScopePtr& scope, std::string& out) {
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

  void print(std::string_view text, std::string& out) {
    const size_t limit = budget_.limits().output_bytes;
    if (out.size() + text.size() > limit)
      fault(fmt::format("the template prints more than {} bytes", limit));
    out += text;
  }

  Flow run(const Statement& s, const ScopePtr& scope, std::string& out) {
    budget_.step();
    switch (s.kind) {
      case Statement::kText:
        print(s.text, out);
        break;
      case Statement::kPrint: {
        const Value value = eval(*s.expr, scope);
        const std::string* text = value.as_string();
        text ? print(*text, out) : print(*budget_.text(to_text(value)).as_string(), out);
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
        print(to_text(filtered_body(s, scope)), out);
        break;
      case Statement::kMacro:
        scope->set(s.name, macro(s, s.name, scope));
        break;
      case Statement::kCallBlock:
        print(to_text(call_with_body(s, scope)), out);
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

  Flow run_for(const Statement& s, const ScopePtr& scope, std::string& out) {
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

  void assign(const Target& target, const Value& value, const ScopePtr& scope) {
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

  Value body_text(const Block& body, const ScopePtr& scope) {
    std::string text;
    run(body, scope, text);
    return budget_.text(std::move(text));
  }

  Value filtered_body(const Statement& s, const ScopePtr& scope) {
    const Value text = body_text(s.body, inner(scope));
    return s.expr ? eval_filter(*s.expr, scope, &text) : text;
  }

  // The macro outlives neither the tree nor this evaluation.
  Value macro(const Statement& s, const std::string& name, const ScopePtr& scope) {
    macro_scopes_.push_back(scope);
    return make_callable(name, [this, &s, name, scope = scope.get()](const Arguments& a) {
      const Level level(*this);
      budget_.step(std::ssize(macro_scopes_) / 8);  // scope_of looks through them
      const ScopePtr body = inner(scope_of(scope));
      bind(s, name, a, body);
      return body_text(s.body, body);
    });
  }
  ScopePtr scope_of(Scope* scope) const {
    const auto found = std::find_if(macro_scopes_.begin(), macro_scopes_.end(),
                                    [&](const ScopePtr& s) { return s.get() == scope; });
    return *found;
  }

  void bind(const Statement& s, const std::string& name, const Arguments& a, const ScopePtr& body) {
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

  Value call_with_body(const Statement& s, const ScopePtr& scope) {
    Arguments arguments = eval_arguments(s.expr->arguments, scope);
    arguments.named.emplace_back("caller", macro(s, "caller", scope));
    return call(eval(*s.expr->children[0], scope), arguments);
  }

  // Expressions.
  Value eval(const Expr& e, const ScopePtr& scope) {
    const Level level(*this);
    try {
      return eval_kind(e, scope);
    } catch (Fault& found) {
      if (found.line == 0) found.line = e.line;
      throw;
    }
  }
  Value child(const Expr& e, size_t i, const ScopePtr& scope) {
    return eval(*e.children[i], scope);
  }

  Value eval_kind(const Expr& e, const ScopePtr& scope) {
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

  Items eval_all(const Expr& e, const ScopePtr& scope) {
    Items items;
    for (const ExprPtr& item : e.children) items.push_back(eval(*item, scope));
    return items;
  }

  Value eval_dict(const Expr& e, const ScopePtr& scope) {
    std::vector<Pair> pairs;
    for (size_t i = 0; i < e.children.size(); i += 2) {
      Value key = child(e, i, scope);
      pairs.emplace_back(std::move(key), child(e, i + 1, scope));
    }
    return dict_of(budget_, std::move(pairs));
  }

  Value eval_subscript(const Expr& e, const ScopePtr& scope) {
    const Value object = child(e, 0, scope);
    const Expr& key = *e.children[1];
    if (key.kind != Expr::kSlice) return item(budget_, object, eval(key, scope));
    Value bounds[3];
    for (int i = 0; i < 3; ++i)
      bounds[i] = key.children[i] ? eval(*key.children[i], scope) : Value(nullptr);
    return slice(budget_, object, bounds[0], bounds[1], bounds[2]);
  }

  Value eval_compare(const Expr& e, const ScopePtr& scope) {
    Value left = child(e, 0, scope);
    for (size_t i = 0; i < e.operators.size(); ++i) {
      Value right = child(e, i + 1, scope);
      if (!compare(budget_, e.operators[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  Value eval_concat(const Expr& e, const ScopePtr& scope) {
    std::string out;
    for (const ExprPtr& part : e.children) {
      const std::string text = to_text(eval(*part, scope));
      budget_.make_text(text.size());
      out += text;
    }
    return out;
  }

  // `innermost`: what the first filter of a filter block works on.
  Value eval_filter(const Expr& e, const ScopePtr& scope, const Value* innermost) {
    const Expr* input = e.children[0].get();
    Value value;
    if (!input)
      value = *innermost;
    else
      value = innermost ? eval_filter(*input, scope, innermost) : eval(*input, scope);
    return filter(budget_, e.name, value, eval_arguments(e.arguments, scope));
  }

  Arguments eval_arguments(const CallArguments& source, const ScopePtr& scope) {
    Arguments arguments;
    for (const ExprPtr& expr : source.positional)
      arguments.positional.push_back(eval(*expr, scope));
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

  const RenderOptions& options_;
  Budget budget_;
  int depth_ = 0;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<ScopePtr> macro_scopes_;
};

}  // namespace

// A message may hold texts of the template: one line, of a length that can be read.
static std::string one_line(const char* message) {
  constexpr size_t kMaxBytes = 400;
  std::string line = message;
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c >= 0 && c < ' '; }, ' ');
  if (line.size() > kMaxBytes) {
    line.resize(kMaxBytes);
    std::string whole;
    utf8::append_repaired(whole, line);
    line = whole + "...";
  }
  return line;
}

struct Template::Tree {
  Block block;
};

Template::Template(std::string_view source, std::string name) : name_(std::move(name)) {
  constexpr size_t kMaxSource = size_t{2} << 20;
  if (source.size() > kMaxSource)
    fail("{}: expected a template of at most {} bytes, found {}", name_, kMaxSource, source.size());
  if (const size_t at = utf8::find_invalid(source); at != std::string::npos)
    fail("{}: expected UTF-8, found a byte at {} that is not", name_, at);
  try {
    tree_ = std::make_unique<const Tree>(Tree{parse_template(source)});
  } catch (const Fault& found) {
    fail("{}, line {}: {}", name_, found.line, one_line(found.what()));
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

std::string Template::render(const Variables& variables, const RenderOptions& options) const {
  try {
    return Evaluator(options).render(tree_->block, variables);
  } catch (const Fault& found) {
    if (found.raised)
      fail_usage("{} refuses the conversation on line {}: {}", name_, found.line,
                 one_line(found.what()));
    fail_usage("{}, line {}: {}", name_, found.line, one_line(found.what()));
  }
}

}  // namespace invar::jinja
