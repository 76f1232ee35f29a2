#include "frontend/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <span>

#include "base/ends.h"
#include "frontend/jinja/lexer.h"

namespace invar::jinja {

namespace {

// Of expressions and blocks within one another, and of one chain of operators.
constexpr int kMaxNesting = 200;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Block run() {
    try {
      return parse_block({});
    } catch (Fault& found) {
      if (found.line == 0) found.line = here().line;
      throw;
    }
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  class Nested {
   public:
    explicit Nested(int& depth) : depth_(depth) {
      if (++depth_ > kMaxNesting) fault("the template is nested too deeply");
    }
    ~Nested() { --depth_; }

   private:
    int& depth_;
  };

  // Tokens.
  const Token& here() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_symbol(std::string_view s) { return here().is_symbol(s) && (take(), true); }
  bool skip_name(std::string_view s) { return here().is_name(s) && (take(), true); }

  static std::string described(const Token& token) {
    switch (token.kind) {
      case TokenKind::end:
        return "the end of the template";
      case TokenKind::block_end:
        return "%}";
      case TokenKind::variable_end:
        return "}}";
      case TokenKind::data:
        return "text";
      default:
        return json::quoted(token.text);
    }
  }
  [[noreturn]] void unexpected(std::string_view expected) const {
    fault(fmt::format("expected {}, found {}", expected, described(here())));
  }
  void expect_symbol(std::string_view s) {
    if (!skip_symbol(s)) unexpected(s);
  }
  std::string expect_name() {
    if (here().kind != TokenKind::name) unexpected("a name");
    return take().text;
  }
  void expect(TokenKind kind, std::string_view what) {
    if (here().kind != kind) unexpected(what);
    take();
  }
  bool at_any_name(Names names) const {
    return here().kind == TokenKind::name &&
           std::find(names.begin(), names.end(), here().text) != names.end();
  }

  // Statements. A block ends before one of `ends`, after its {%.
  Block parse_block(Names ends) {
    const Nested nested(depth_);
    Block block;
    while (here().kind != TokenKind::end) {
      const Token& token = here();
      if (token.kind == TokenKind::data) {
        block.push_back({Statement::kText, token.line, token.text});
        take();
      } else if (token.kind == TokenKind::variable_begin) {
        take();
        Statement print{Statement::kPrint, token.line};
        print.expr = parse_tuple({});
        expect(TokenKind::variable_end, "}}");
        block.push_back(std::move(print));
      } else {
        expect(TokenKind::block_begin, "a tag");
        if (at_any_name(ends)) return block;
        block.push_back(parse_statement());
        expect(TokenKind::block_end, "%}");
      }
    }
    if (ends.size()) unexpected(*std::prev(ends.end()));
    return block;
  }

  // The body of a tag up to its end, which is taken.
  Block parse_body(std::string_view end) {
    expect(TokenKind::block_end, "%}");
    Block body = parse_block({end});
    take();
    return body;
  }

  Statement parse_statement() {
    const int line = here().line;
    const std::string tag = expect_name();
    Statement s{Statement::kScope, line};
    if (tag == "if") return parse_if(line);
    if (tag == "for") return parse_for(line);
    if (tag == "set") return parse_set(line);
    if (tag == "macro") {
      s.kind = Statement::kMacro;
      s.name = expect_name();
      s.parameters = parse_signature();
      s.body = parse_body("endmacro");
    } else if (tag == "call") {
      s.kind = Statement::kCallBlock;
      if (here().is_symbol("(")) s.parameters = parse_signature();
      s.expr = parse_expression();
      if (s.expr->kind != Expr::kCall) fault("expected a call in the tag call");
      s.body = parse_body("endcall");
    } else if (tag == "filter") {
      s.kind = Statement::kFilterBlock;
      s.expr = parse_filters(nullptr, true);
      s.body = parse_body("endfilter");
    } else if (tag == "with") {
      s.kind = Statement::kWith;
      parse_with(s);
      s.body = parse_body("endwith");
    } else if (tag == "generation") {
      s.body = parse_body("endgeneration");
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fault(fmt::format("found {} outside of a loop", tag));
      s.kind = tag == "break" ? Statement::kBreak : Statement::kContinue;
    } else {
      fault(fmt::format("the tag {} is not supported", json::quoted(tag)));
    }
    return s;
  }

  Statement parse_if(int line) {
    const Nested nested(depth_);
    Statement s{Statement::kIf, line};
    s.expr = parse_tuple_without_condition();
    expect(TokenKind::block_end, "%}");
    s.body = parse_block({"elif", "else", "endif"});
    const int next_line = here().line;
    const std::string tag = take().text;
    if (tag == "elif")
      s.other.push_back(parse_if(next_line));
    else if (tag == "else")
      s.other = parse_body("endif");
    return s;
  }

  Statement parse_for(int line) {
    Statement s{Statement::kFor, line};
    s.target = parse_target(false, "in");
    if (!skip_name("in")) unexpected("in");
    s.expr = parse_tuple_without_condition();
    if (skip_name("if")) s.condition = parse_expression();
    if (here().is_name("recursive")) fault("a recursive loop is not supported");
    expect(TokenKind::block_end, "%}");
    ++loops_;
    s.body = parse_block({"else", "endfor"});
    --loops_;
    if (take().text == "else") s.other = parse_body("endfor");
    return s;
  }

  Statement parse_set(int line) {
    Statement s{Statement::kSet, line};
    s.target = parse_target(true, "=");
    if (skip_symbol("=")) {
      s.expr = parse_tuple({});
      return s;
    }
    s.kind = Statement::kSetBlock;
    if (here().is_symbol("|")) s.expr = parse_filters(nullptr, false);
    s.body = parse_body("endset");
    return s;
  }

  void parse_with(Statement& s) {
    while (here().kind != TokenKind::block_end) {
      if (!s.parameters.empty()) expect_symbol(",");
      Parameter& parameter = s.parameters.emplace_back();
      parameter.name = expect_name();
      expect_symbol("=");
      parameter.value = parse_expression();
    }
  }

  Target parse_target(bool allow_member, std::string_view end) {
    Target target = parse_one_target();
    if (allow_member && skip_symbol(".")) {
      if (target.name.empty()) fault("a namespace has one name");
      target.member = expect_name();
      return target;
    }
    if (!here().is_symbol(",")) return target;
    Target several;
    several.several.push_back(std::move(target));
    while (skip_symbol(",")) {
      if (here().is_name(end) || here().is_symbol(end)) break;
      several.several.push_back(parse_one_target());
    }
    return several;
  }

  Target parse_one_target() {
    const Nested nested(depth_);
    if (skip_symbol("(")) {
      Target target = parse_target(false, ")");
      expect_symbol(")");
      return target;
    }
    Target target;
    target.name = expect_name();
    for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"})
      if (target.name == reserved) fault(target.name + " cannot be assigned to");
    return target;
  }

  std::vector<Parameter> parse_signature() {
    std::vector<Parameter> parameters;
    expect_symbol("(");
    while (!skip_symbol(")")) {
      if (!parameters.empty()) expect_symbol(",");
      Parameter parameter{expect_name(), nullptr};
      if (skip_symbol("="))
        parameter.value = parse_expression();
      else if (!parameters.empty() && last_of(parameters).value)
        fault(fmt::format("the parameter {} without a default follows one with a default",
                          parameter.name));
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }

  // Expressions, loosest first.
  static ExprPtr make(Expr::Kind kind, int line, std::string name = {}) {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    expr->name = std::move(name);
    return expr;
  }
  static ExprPtr make(Expr::Kind kind, int line, ExprPtr a, ExprPtr b = nullptr,
                      ExprPtr c = nullptr) {
    ExprPtr expr = make(kind, line);
    expr->children.push_back(std::move(a));
    if (b) expr->children.push_back(std::move(b));
    if (c) expr->children.push_back(std::move(c));
    return expr;
  }
  // A chain of operators grows to the left: its length is its depth.
  static void count_chain(int& length) {
    if (++length > kMaxNesting) fault("an expression has too many operators in a row");
  }

  bool at_tuple_end(Names ends) const {
    const TokenKind kind = here().kind;
    return kind == TokenKind::variable_end || kind == TokenKind::block_end ||
           here().is_symbol(")") || at_any_name(ends);
  }

  ExprPtr parse_tuple(Names ends, bool in_brackets = false, bool with_condition = true) {
    const int line = here().line;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    while (true) {
      if (at_tuple_end(ends)) break;
      items.push_back(with_condition ? parse_expression() : parse_or());
      if (!skip_symbol(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      if (!items.empty()) return std::move(items[0]);
      if (!in_brackets) unexpected("an expression");
    }
    ExprPtr tuple = make(Expr::kTuple, line);
    tuple->children = std::move(items);
    return tuple;
  }
  ExprPtr parse_tuple_without_condition() { return parse_tuple({"recursive"}, false, false); }

  ExprPtr parse_expression() {
    const Nested nested(depth_);
    int length = 0;
    ExprPtr expr = parse_or();
    while (here().is_name("if")) {
      count_chain(length);
      const int line = take().line;
      ExprPtr condition = parse_or(), other;
      if (skip_name("else")) other = parse_expression();
      expr =
          make(Expr::kConditional, line, std::move(expr), std::move(condition), std::move(other));
    }
    return expr;
  }

  ExprPtr parse_or() {
    int length = 0;
    ExprPtr left = parse_and();
    while (here().is_name("or")) {
      count_chain(length);
      const int line = take().line;
      left = make(Expr::kOr, line, std::move(left), parse_and());
    }
    return left;
  }

  ExprPtr parse_and() {
    int length = 0;
    ExprPtr left = parse_not();
    while (here().is_name("and")) {
      count_chain(length);
      const int line = take().line;
      left = make(Expr::kAnd, line, std::move(left), parse_not());
    }
    return left;
  }

  ExprPtr parse_not() {
    const Nested nested(depth_);
    if (!here().is_name("not")) return parse_compare();
    const int line = take().line;
    return make(Expr::kNot, line, parse_not());
  }

  bool take_comparison(Operator& op) {
    static const std::map<std::string_view, Operator> kComparisons = {
        {"==", Operator::equal},      {"!=", Operator::not_equal}, {"<", Operator::less},
        {"<=", Operator::less_equal}, {">", Operator::greater},    {">=", Operator::greater_equal}};
    if (here().is_name("not") && next().is_name("in")) {
      take();
      op = Operator::not_in;
    } else if (here().is_name("in")) {
      op = Operator::in;
    } else {
      const auto found = kComparisons.find(here().text);
      if (here().kind != TokenKind::symbol || found == kComparisons.end()) return false;
      op = found->second;
    }
    take();
    return true;
  }

  ExprPtr parse_compare() {
    const int line = here().line;
    ExprPtr first = parse_chain(0);
    ExprPtr compare;
    for (Operator op; take_comparison(op);) {
      if (!compare) compare = make(Expr::kCompare, line, std::move(first));
      compare->operators.push_back(op);
      compare->children.push_back(parse_chain(0));
    }
    return compare ? std::move(compare) : std::move(first);
  }

  // Operators that go on to the left: + and -, then ~, then * / // %, then **.
  ExprPtr parse_chain(int level) {
    using Level = std::map<std::string_view, Operator>;
    static const Level kLevels[] = {{{"+", Operator::add}, {"-", Operator::subtract}},
                                    {},
                                    {{"*", Operator::multiply},
                                     {"/", Operator::divide},
                                     {"//", Operator::floor_divide},
                                     {"%", Operator::modulo}},
                                    {{"**", Operator::power}}};
    if (level == 4) return parse_unary(true);
    if (level == 1) return parse_concat();
    int length = 0;
    ExprPtr left = parse_chain(level + 1);
    while (here().kind == TokenKind::symbol) {
      const auto found = kLevels[level].find(here().text);
      if (found == kLevels[level].end()) break;
      count_chain(length);
      const int line = take().line;
      left = make(Expr::kBinary, line, std::move(left), parse_chain(level + 1));
      left->operators = {found->second};
    }
    return left;
  }

  ExprPtr parse_concat() {
    ExprPtr first = parse_chain(2);
    if (!here().is_symbol("~")) return first;
    ExprPtr concat = make(Expr::kConcat, here().line, std::move(first));
    while (skip_symbol("~")) concat->children.push_back(parse_chain(2));
    return concat;
  }

  ExprPtr parse_unary(bool with_filters) {
    const Nested nested(depth_);
    const int line = here().line;
    ExprPtr expr;
    if (here().is_symbol("-") || here().is_symbol("+")) {
      const Operator op = take().text == "-" ? Operator::negate : Operator::plus;
      expr = make(Expr::kUnary, line, parse_unary(false));
      expr->operators = {op};
    } else {
      expr = parse_primary();
    }
    expr = parse_postfix(std::move(expr));
    return with_filters ? parse_filters_and_tests(std::move(expr)) : std::move(expr);
  }

  ExprPtr parse_primary() {
    const Token& token = here();
    ExprPtr expr = make(Expr::kConstant, token.line);
    if (token.kind == TokenKind::name) {
      const std::string& name = token.text;
      if (name == "true" || name == "True" || name == "false" || name == "False")
        expr->constant = name[0] == 't' || name[0] == 'T';
      else if (name == "none" || name == "None")
        expr->constant = nullptr;
      else
        expr->kind = Expr::kName, expr->name = name;
      take();
    } else if (token.kind == TokenKind::string) {
      std::string text;
      while (here().kind == TokenKind::string) text += take().text;
      expr->constant = std::move(text);
    } else if (token.kind == TokenKind::number) {
      expr->constant = take().number;
    } else if (skip_symbol("(")) {
      expr = parse_tuple({}, true);
      expect_symbol(")");
    } else if (skip_symbol("[")) {
      expr = parse_list(token.line);
    } else if (skip_symbol("{")) {
      expr = parse_dict(token.line);
    } else {
      unexpected("an expression");
    }
    return expr;
  }

  ExprPtr parse_list(int line) {
    ExprPtr list = make(Expr::kList, line);
    while (!skip_symbol("]")) {
      if (!list->children.empty()) {
        expect_symbol(",");
        if (skip_symbol("]")) break;
      }
      list->children.push_back(parse_expression());
    }
    return list;
  }

  ExprPtr parse_dict(int line) {
    ExprPtr dict = make(Expr::kDict, line);
    while (!skip_symbol("}")) {
      if (!dict->children.empty()) {
        expect_symbol(",");
        if (skip_symbol("}")) break;
      }
      dict->children.push_back(parse_expression());
      expect_symbol(":");
      dict->children.push_back(parse_expression());
    }
    return dict;
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    for (int length = 0;; count_chain(length)) {
      const int line = here().line;
      if (skip_symbol(".")) {
        if (here().kind == TokenKind::number) {
          ExprPtr index = make(Expr::kConstant, line);
          index->constant = take().number;
          expr = make(Expr::kSubscript, line, std::move(expr), std::move(index));
        } else {
          ExprPtr object = std::move(expr);
          expr = make(Expr::kAttribute, line, expect_name());
          expr->children.push_back(std::move(object));
        }
      } else if (skip_symbol("[")) {
        expr = make(Expr::kSubscript, line, std::move(expr), parse_subscript());
        expect_symbol("]");
      } else if (here().is_symbol("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_subscript() {
    const int line = here().line;
    const auto at_end = [&] { return here().is_symbol(":") || here().is_symbol("]"); };
    ExprPtr first = at_end() ? nullptr : parse_expression();
    if (!skip_symbol(":")) {
      if (!first) unexpected("an index");
      return first;
    }
    ExprPtr slice = make(Expr::kSlice, line);
    slice->children.push_back(std::move(first));
    slice->children.push_back(at_end() ? nullptr : parse_expression());
    slice->children.push_back(skip_symbol(":") && !at_end() ? parse_expression() : nullptr);
    return slice;
  }

  ExprPtr parse_call(ExprPtr callee) {
    ExprPtr call = make(Expr::kCall, here().line, std::move(callee));
    call->arguments = parse_arguments();
    return call;
  }

  CallArguments parse_arguments() {
    CallArguments arguments;
    expect_symbol("(");
    for (bool first = true; !skip_symbol(")"); first = false) {
      if (!first) {
        expect_symbol(",");
        if (skip_symbol(")")) break;
      }
      if (skip_symbol("**")) {
        arguments.named_rest = parse_expression();
      } else if (skip_symbol("*")) {
        arguments.rest = parse_expression();
      } else if (here().kind == TokenKind::name && next().is_symbol("=")) {
        std::string name = take().text;
        take();
        arguments.named.emplace_back(std::move(name), parse_expression());
      } else {
        if (!arguments.named.empty() || arguments.rest || arguments.named_rest)
          fault("an argument by place follows one by name");
        arguments.positional.push_back(parse_expression());
      }
    }
    return arguments;
  }

  // `expr` is null in a filter block; `inline_name`: the first filter has no | before it.
  ExprPtr parse_filters(ExprPtr expr, bool inline_name) {
    for (int length = 0; inline_name || here().is_symbol("|"); count_chain(length)) {
      if (!inline_name) take();
      inline_name = false;
      const int line = here().line;
      ExprPtr filter = make(Expr::kFilter, line, expect_name());
      filter->children.push_back(std::move(expr));
      if (here().is_symbol("(")) filter->arguments = parse_arguments();
      expr = std::move(filter);
    }
    return expr;
  }

  ExprPtr parse_filters_and_tests(ExprPtr expr) {
    for (int length = 0;; count_chain(length)) {
      if (here().is_symbol("|"))
        expr = parse_filters(std::move(expr), false);
      else if (here().is_name("is"))
        expr = parse_test(std::move(expr));
      else if (here().is_symbol("("))
        expr = parse_call(std::move(expr));
      else
        return expr;
    }
  }

  ExprPtr parse_test(ExprPtr expr) {
    const int line = take().line;
    const bool negated = skip_name("not");
    ExprPtr test = make(Expr::kTest, line, expect_name());
    test->children.push_back(std::move(expr));
    const TokenKind kind = here().kind;
    if (here().is_symbol("(")) {
      test->arguments = parse_arguments();
    } else if (kind == TokenKind::string || kind == TokenKind::number ||
               (kind == TokenKind::name && !at_any_name({"else", "or", "and"})) ||
               here().is_symbol("[") || here().is_symbol("{")) {
      if (here().is_name("is")) fault("tests cannot follow one another");
      test->arguments.positional.push_back(parse_postfix(parse_primary()));
    }
    return negated ? make(Expr::kNot, line, std::move(test)) : std::move(test);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

Block parse_template(std::string_view source) {
  return Parser(source).run();
}

}  // namespace invar::jinja
