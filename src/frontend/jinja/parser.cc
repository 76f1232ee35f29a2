// The grammar of statements.
#include "frontend/jinja/parser.h"

#include <fmt/format.h>

#include "base/ends.h"
#include "frontend/jinja/expression_parser.h"

namespace invar::jinja {

namespace {

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block run() {
    try {
      return parse_block({});
    } catch (Fault& found) {
      if (found.line == 0) found.line = here().line;
      throw;
    }
  }

 private:
  // A block ends before one of `ends`, after its {%.
  Block parse_block(Names ends) {
    const Nested nested(*this);
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
    const Nested nested(*this);
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
    const Nested nested(*this);
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

  int loops_ = 0;
};

}  // namespace

Block parse_template(std::string_view source) {
  return Parser(source).run();
}

}  // namespace invar::jinja
