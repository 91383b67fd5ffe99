// Templates in the part of Jinja that chat templates use.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/jinja/interpreter.h"

namespace millrace::jinja {

/// A parsed template. Immutable; any thread may render it.
class Template {
 public:
  /// Errors: kInvalidArgument with the line, kUnsupported for what Jinja has and Millrace does not.
  static Result<Template> Parse(std::string_view source);
  /// Returns the template's text with these variables, an object. `now` is what strftime_now() formats.
  /// Errors: kInvalidArgument, also when the template refuses its variables; kUnsupported; kResourceExhausted.
  Result<std::string> Render(const Json& variables, WallTime now, const RenderLimits& limits = {}) const;

 private:
  explicit Template(Block block) : block_(std::make_shared<const Block>(std::move(block))) {}
  std::shared_ptr<const Block> block_;
};

}  // namespace millrace::jinja
