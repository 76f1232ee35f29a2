// The grammar of expressions.
#pragma once

#include <string>
#include <string_view>

#include "frontend/jinja/ast.h"
#include "frontend/jinja/token_reader.h"

namespace invar::jinja {

class ExpressionParser : public TokenReader {
 public:
  using TokenReader::TokenReader;

 protected:
  ExprPtr parse_tuple(Names ends, bool in_brackets = false, bool with_condition = true);
  ExprPtr parse_tuple_without_condition() { return parse_tuple({"recursive"}, false, false); }
  ExprPtr parse_expression();
  // `expr` is null in a filter block; `inline_name`: the first filter has no | before it.
  ExprPtr parse_filters(ExprPtr expr, bool inline_name);

 private:
  bool at_tuple_end(Names ends) const;
  // Loosest first.
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  bool take_comparison(Operator& op);
  ExprPtr parse_compare();
  ExprPtr parse_chain(int level);
  ExprPtr parse_concat();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_list(int line);
  ExprPtr parse_dict(int line);
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_subscript();
  ExprPtr parse_call(ExprPtr callee);
  CallArguments parse_arguments();
  ExprPtr parse_filters_and_tests(ExprPtr expr);
  ExprPtr parse_test(ExprPtr expr);
};

}  // namespace invar::jinja
