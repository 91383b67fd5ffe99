// Templates in the part of Jinja that chat templates use.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/jinja/interpreter.h"

namespace millrace::jinja {

/// The text of a rendering, and where {% generation %} blocks are in it: ascending, none empty.
struct MarkedText {
  std::string text;
  std::vector<TextSpan> generated;
};

/// A parsed template. Immutable; any thread may render it.
class Template {
 public:
  /// Errors: kInvalidArgument with the line, kUnsupported for what Jinja has and Millrace does not.
  static Result<Template> Parse(std::string_view source);
  /// Returns the template's text with these variables, an object. `now` is what strftime_now() formats.
  /// Errors: kInvalidArgument, also when the template refuses its variables; kUnsupported; kResourceExhausted.
  Result<std::string> Render(const Json& variables, WallTime now, const RenderLimits& limits = {}) const;

  /// As Render(), and tells where {% generation %} blocks are. Errors: those of Render(); kUnsupported, too, for such a
  /// block in a macro or a {% set %} block, where its place in the text is unknown.
  Result<MarkedText> RenderMarked(Dict variables, WallTime now, const RenderLimits& limits = {}) const;
  /// Returns whether the template has {% generation %} blocks.
  bool marks_generation() const { return marks_generation_; }

 private:
  explicit Template(Block block);

  std::shared_ptr<const Block> block_;
  bool marks_generation_ = false;
};

}  // namespace millrace::jinja
