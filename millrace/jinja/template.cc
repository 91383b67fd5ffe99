#include "millrace/jinja/template.h"

#include <algorithm>

namespace millrace::jinja {
namespace {

bool MarksGeneration(const Block& block) {
  return std::ranges::any_of(block, [](const Statement& statement) {
    return statement.kind == Statement::Kind::kGeneration || MarksGeneration(statement.body) ||
           MarksGeneration(statement.otherwise);
  });
}

}  // namespace

Template::Template(Block block)
    : block_(std::make_shared<const Block>(std::move(block))), marks_generation_(MarksGeneration(*block_)) {}

Result<Template> Template::Parse(std::string_view source) {
  constexpr std::size_t kMaxBytes = 1024 * 1024;
  if (source.size() > kMaxBytes) return Fail(Code::kResourceExhausted, "a template of more than {} bytes", kMaxBytes);
  return Template(MR_TRY(ParseTemplate(source)));
}

Result<std::string> Template::Render(const Json& variables, WallTime now, const RenderLimits& limits) const {
  const Value values = MR_TRY(Value::FromJson(variables));
  if (values.dict() == nullptr) return Fail(Code::kInvalidArgument, "the variables of a template must be an object");
  return Interpreter(*block_, *values.dict(), now, limits).RenderText();
}

Result<MarkedText> Template::RenderMarked(Dict variables, WallTime now, const RenderLimits& limits) const {
  MarkedText marked;
  marked.text = MR_TRY(Interpreter(*block_, std::move(variables), now, limits).RenderText(&marked.generated));
  return marked;
}

}  // namespace millrace::jinja
