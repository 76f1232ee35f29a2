#include "frontend/jinja/expression_parser.h"

#include <map>

namespace invar::jinja {

namespace {

ExprPtr make(Expr::Kind kind, int line, std::string name = {}) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  expr->name = std::move(name);
  return expr;
}

ExprPtr make(Expr::Kind kind, int line, ExprPtr a, ExprPtr b = nullptr, ExprPtr c = nullptr) {
  ExprPtr expr = make(kind, line);
  expr->children.push_back(std::move(a));
  if (b) expr->children.push_back(std::move(b));
  if (c) expr->children.push_back(std::move(c));
  return expr;
}

}  // namespace

bool ExpressionParser::at_tuple_end(Names ends) const {
  const TokenKind kind = here().kind;
  return kind == TokenKind::variable_end || kind == TokenKind::block_end || here().is_symbol(")") ||
         at_any_name(ends);
}

ExprPtr ExpressionParser::parse_tuple(Names ends, bool in_brackets, bool with_condition) {
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

ExprPtr ExpressionParser::parse_expression() {
  const Nested nested(*this);
  int length = 0;
  ExprPtr expr = parse_or();
  while (here().is_name("if")) {
    count_chain(length);
    const int line = take().line;
    ExprPtr condition = parse_or(), other;
    if (skip_name("else")) other = parse_expression();
    expr = make(Expr::kConditional, line, std::move(expr), std::move(condition), std::move(other));
  }
  return expr;
}

ExprPtr ExpressionParser::parse_or() {
  int length = 0;
  ExprPtr left = parse_and();
  while (here().is_name("or")) {
    count_chain(length);
    const int line = take().line;
    left = make(Expr::kOr, line, std::move(left), parse_and());
  }
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  int length = 0;
  ExprPtr left = parse_not();
  while (here().is_name("and")) {
    count_chain(length);
    const int line = take().line;
    left = make(Expr::kAnd, line, std::move(left), parse_not());
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  const Nested nested(*this);
  if (!here().is_name("not")) return parse_compare();
  const int line = take().line;
  return make(Expr::kNot, line, parse_not());
}

bool ExpressionParser::take_comparison(Operator& op) {
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

ExprPtr ExpressionParser::parse_compare() {
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
ExprPtr ExpressionParser::parse_chain(int level) {
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

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_chain(2);
  if (!here().is_symbol("~")) return first;
  ExprPtr concat = make(Expr::kConcat, here().line, std::move(first));
  while (skip_symbol("~")) concat->children.push_back(parse_chain(2));
  return concat;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nested nested(*this);
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

ExprPtr ExpressionParser::parse_primary() {
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

ExprPtr ExpressionParser::parse_list(int line) {
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

ExprPtr ExpressionParser::parse_dict(int line) {
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

ExprPtr ExpressionParser::parse_postfix(ExprPtr expr) {
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

ExprPtr ExpressionParser::parse_subscript() {
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

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  ExprPtr call = make(Expr::kCall, here().line, std::move(callee));
  call->arguments = parse_arguments();
  return call;
}

CallArguments ExpressionParser::parse_arguments() {
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

ExprPtr ExpressionParser::parse_filters(ExprPtr expr, bool inline_name) {
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

ExprPtr ExpressionParser::parse_filters_and_tests(ExprPtr expr) {
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

ExprPtr ExpressionParser::parse_test(ExprPtr expr) {
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

}  // namespace invar::jinja
