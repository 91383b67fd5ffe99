#include "millrace/jinja/template.h"

namespace millrace::jinja {

Result<Template> Template::Parse(std::string_view source) {
  constexpr std::size_t kMaxBytes = 1024 * 1024;
  if (source.size() > kMaxBytes) return Fail(Code::kResourceExhausted, "a template of more than {} bytes", kMaxBytes);
  return Template(MR_TRY(ParseTemplate(source)));
}

Result<std::string> Template::Render(const Json& variables, WallTime now, const RenderLimits& limits) const {
  const Value values = MR_TRY(Value::FromJson(variables));
  if (values.dict() == nullptr) return Fail(Code::kInvalidArgument, "the variables of a template are an object");
  return Interpreter(*block_, *values.dict(), now, limits).RenderText();
}

}  // namespace millrace::jinja
