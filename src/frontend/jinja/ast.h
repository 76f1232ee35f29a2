// A template as a tree.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/jinja/value.h"

namespace invar::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class Operator {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  negate,
  plus,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in,
};

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr rest, named_rest;  // *rest, **named_rest
};

struct Expr {
  enum Kind {
    kConstant,     // constant
    kName,         // name
    kAttribute,    // children[0].name
    kSubscript,    // children[0][children[1]]
    kSlice,        // children: first, last, step; each may be null
    kCall,         // children[0](arguments)
    kFilter,       // children[0] | name(arguments); children[0] is null in a filter block
    kTest,         // children[0] is name(arguments)
    kList,         // children
    kTuple,        // children
    kDict,         // children: key, value, key, value
    kUnary,        // operators[0] children[0]
    kBinary,       // children[0] operators[0] children[1]
    kCompare,      // children[0] operators[0] children[1] operators[1] children[2] ...
    kAnd,          // children[0] and children[1]
    kOr,           // children[0] or children[1]
    kNot,          // not children[0]
    kConcat,       // children joined by ~
    kConditional,  // children[0] if children[1] else children[2]; the last may be null
  };
  Kind kind;
  int line;
  std::string name;
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<Operator> operators;
  CallArguments arguments;
};

// The target of an assignment: a name, a member of a namespace, or several targets.
struct Target {
  std::string name, member;     // member: of a namespace
  std::vector<Target> several;  // then name is empty
};

struct Statement;
using Block = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExprPtr value;  // its default, or null
};

struct Statement {
  enum Kind {
    kText,         // text
    kPrint,        // expr
    kIf,           // expr, body, other
    kFor,          // target, expr, condition or null, body, other
    kSet,          // target, expr
    kSetBlock,     // target, body, expr: filters or null
    kMacro,        // name, parameters, body
    kCallBlock,    // expr: the call, parameters, body
    kFilterBlock,  // expr: filters, body
    kWith,         // targets and values by name: parameters; body
    kScope,        // body: generation
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;
  std::string text, name;
  Target target;
  ExprPtr expr, condition;
  Block body, other;
  std::vector<Parameter> parameters;
};

}  // namespace invar::jinja
