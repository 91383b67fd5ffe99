// The parts of a parsed template, and the parser that makes them (parser.cc).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/jinja/python/value.h"

namespace millrace::jinja {

struct Expression;
using ExpressionPointer = std::unique_ptr<const Expression>;

/// One operation and its operands.
struct Expression {
  enum class Kind {
    kConstant,
    kName,
    kAttribute,    ///< [0].text
    kItem,         ///< [0][[1]]
    kSlice,        ///< [0][[1]:[2]:[3]], each of the last three may be null
    kCall,         ///< [0]([1], …, named)
    kFilter,       ///< [0] | text([1], …, named)
    kTest,         ///< [0] is text([1], …)
    kNot,          ///< not [0]
    kNegative,     ///< -[0]
    kPositive,     ///< +[0]
    kArithmetic,   ///< [0] text [1]
    kConcatenate,  ///< [0] ~ [1] ~ …
    kCompare,      ///< [0] operators[0] [1] operators[1] [2] …
    kAnd,
    kOr,
    kConditional,  ///< [0] if [1] else [2], the last may be null
    kList,
    kTuple,
    kDict,  ///< {[0]: [1], [2]: [3], …}
  };
  Kind kind = Kind::kConstant;
  int line = 0;
  std::string text = {};
  Value constant = {};
  std::vector<ExpressionPointer> operands = {};
  std::vector<std::pair<std::string, ExpressionPointer>> named = {};
  std::vector<std::string> operators = {};
};

struct Statement;
using Block = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPointer fallback;  ///< null: undefined, if the call does not give it
};

struct Statement {
  enum class Kind {
    kText,
    kOutput,      ///< {{ expression }}
    kIf,          ///< if expression: body, else: otherwise
    kFor,         ///< for targets in expression if condition: body, else: otherwise
    kSet,         ///< targets = expression, or target.attribute = expression
    kSetBlock,    ///< targets = what the body prints
    kMacro,       ///< text(parameters): body
    kGeneration,  ///< the body, which an assistant says
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text = {};
  std::string attribute = {};
  std::vector<std::string> targets = {};
  ExpressionPointer expression = {}, condition = {};
  std::vector<Parameter> parameters = {};
  Block body = {}, otherwise = {};
};

/// Returns the statements of a template.
/// Errors: kInvalidArgument with the line; kUnsupported for what Jinja has and Millrace does not.
Result<Block> ParseTemplate(std::string_view source);

}  // namespace millrace::jinja
