// Runs a parsed template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/jinja/python/work.h"
#include "millrace/jinja/syntax.h"

namespace millrace::jinja {

/// The limits of one rendering. Templates come with models, from anywhere.
struct RenderLimits {
  std::int64_t steps = 20'000'000;               ///< operations and elements that filters visit
  std::int64_t made_bytes = 256 * 1024 * 1024;   ///< of all values that are made
  std::int64_t read_bytes = 1024 * 1024 * 1024;  ///< that are compared, searched or copied
  int depth = 400;  ///< operations and blocks within each other; each takes up to 4 KiB of stack
};

/// A stretch of a text, in bytes.
struct TextSpan {
  std::size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

/// Names and their values. Blocks see those of the blocks around them.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::vector<std::pair<std::string, Value>> names = {};

  const Value* Find(std::string_view name) const;
  void Set(std::string_view name, Value value);
};

/// One rendering. One thread.
class Interpreter {
 public:
  /// `now`: what strftime_now() formats.
  Interpreter(const Block& block, Dict variables, WallTime now, RenderLimits limits);
  /// Appends to `generated`, unless it is null, where the {% generation %} blocks that are not empty are in the text.
  /// Errors: kInvalidArgument with the line; kUnsupported, also if `generated` is wanted and such a block stands in a
  /// macro or a {% set %} block; kResourceExhausted beyond a limit.
  Result<std::string> RenderText(std::vector<TextSpan>* generated = nullptr);

  // For functions and filters.
  WallTime now() const { return now_; }
  /// Counts steps. Errors: kResourceExhausted beyond them, or beyond the limits of bytes (Work).
  Status Spend(std::int64_t steps);
  /// Calls a value. Errors: kInvalidArgument if it is no function; those of the function.
  Result<Value> Call(const Value& callee, Arguments arguments);
  Result<Value> Filter(std::string_view name, const Value& input, Arguments arguments);
  Result<bool> Test(std::string_view name, const Value& input, Arguments arguments);
  /// Returns of.name: a method, or else a member. Undefined if there is neither.
  /// Errors: kInvalidArgument if `of` is undefined.
  Result<Value> Attribute(const Value& of, const std::string& name);
  /// Returns of[key]: an element or a member, or else a method. Errors as those of Attribute.
  Result<Value> Item(const Value& of, const Value& key);

 private:
  enum class Flow { kOn, kBreak, kContinue };
  using ScopePointer = std::shared_ptr<Scope>;

  Result<Flow> RunBlock(const Block& block, const ScopePointer& scope, std::string& out);
  Result<Flow> RunInner(const Block& block, const ScopePointer& outer, std::string& out);
  Result<Flow> RunStatement(const Statement& statement, const ScopePointer& scope, std::string& out);
  Result<Flow> RunGeneration(const Statement& statement, const ScopePointer& scope, std::string& out);
  Result<Flow> RunFor(const Statement& statement, const ScopePointer& scope, std::string& out);
  Status RunSet(const Statement& statement, const ScopePointer& scope);
  Value MakeMacro(const Statement& statement, const ScopePointer& scope);
  Status Bind(const std::vector<std::string>& targets, const Value& value, Scope& scope);

  Result<Value> Evaluate(const Expression& expression, const ScopePointer& scope);
  Result<Value> EvaluateKind(const Expression& expression, const ScopePointer& scope);
  Result<Value> EvaluateName(const Expression& expression, const Scope& scope);
  Result<Value> EvaluateSlice(const Expression& expression, const ScopePointer& scope);
  Result<Value> EvaluateArithmetic(const Expression& expression, const ScopePointer& scope);
  Result<Value> EvaluateConcatenate(const Expression& expression, const ScopePointer& scope);
  Result<Value> EvaluateCompare(const Expression& expression, const ScopePointer& scope);
  Result<Value> EvaluateDict(const Expression& expression, const ScopePointer& scope);
  Result<List> EvaluateAll(const Expression& expression, std::size_t first, const ScopePointer& scope);
  Result<Arguments> EvaluateArguments(const Expression& expression, const ScopePointer& scope);

  const Block& block_;
  const ScopePointer globals_;
  const WallTime now_;
  Work work_;
  const std::string* text_ = nullptr;           ///< of RenderText
  std::vector<TextSpan>* generated_ = nullptr;  ///< of RenderText
  std::int64_t steps_left_;
  int depth_left_;
};

}  // namespace millrace::jinja
