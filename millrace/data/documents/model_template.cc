#include "millrace/data/documents/model_template.h"

#include <array>
#include <chrono>
#include <utility>

namespace millrace::data {
namespace {

using jinja::Value;

/// What strftime_now() formats: 26 July 2024, the date that Llama's templates fall back to. The samples of a run must
/// not depend on the day.
constexpr WallTime kDate{std::chrono::seconds(1'721'995'200)};

/// A conversation takes milliseconds. The limits end a template that never ends.
constexpr jinja::RenderLimits kLimits{
    .steps = 5'000'000, .made_bytes = 256 * kMiB, .read_bytes = 512 * kMiB, .depth = 400};

Value MessageOf(std::string role, std::string content) {
  return Value::OfDict({{Value::Of(std::string("role")), Value::Of(std::move(role))},
                        {Value::Of(std::string("content")), Value::Of(std::move(content))}});
}

bool IsWord(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

}  // namespace

Result<std::shared_ptr<const ModelTemplate>> ModelTemplate::Make(const tokenizer::Tokenizer& tokenizer) {
  const tokenizer::ChatTemplates* templates = tokenizer.chat_templates();
  if (templates == nullptr) {
    return Fail(Code::kNotFound,
                "layout auto: no chat template beside the tokenizer; put chat_template.jinja there, or name a layout "
                "such as chatml");
  }
  std::shared_ptr<ModelTemplate> made(new ModelTemplate(tokenizer));
  const auto parse = [](const std::string& source) -> Result<std::shared_ptr<const jinja::Template>> {
    auto parsed = jinja::Template::Parse(source);
    if (!parsed) return Fail(parsed.error().Context("the chat template of the tokenizer"));
    return std::make_shared<const jinja::Template>(*std::move(parsed));
  };
  made->text_ = MR_TRY(parse(templates->text));
  if (!templates->tool_text.empty()) made->tools_ = MR_TRY(parse(templates->tool_text));
  made->sources_ = templates->text + "\n" + templates->tool_text;
  made->identity_ = fmt::format("{}:{}\n{}:{}", templates->text.size(), templates->text, templates->tool_text.size(),
                                templates->tool_text);
  auto tokens = templates->tokens;
  const std::array<std::pair<const char*, tokenizer::TokenId>, 4> known = {{{"bos_token", tokenizer.bos()},
                                                                            {"eos_token", tokenizer.eos()},
                                                                            {"unk_token", tokenizer.unk()},
                                                                            {"pad_token", tokenizer.pad()}}};
  for (const auto& [name, id] : known) {
    if (id != tokenizer::kNoToken) tokens.emplace(name, MR_TRY(tokenizer.Piece(id)));
  }
  for (const auto& [name, text] : tokens) {
    made->tokens_.emplace_back(Value::Of(name), Value::Of(text));
    made->identity_ += fmt::format("\n{}={}:{}", name, text.size(), text);
  }
  MR_TRY(made->CheckAnswers());
  return std::shared_ptr<const ModelTemplate>(std::move(made));
}

Status ModelTemplate::CheckAnswers() const {
  const std::string answer = "zx9";
  const jinja::List question = {MessageOf("user", "zq7")};
  const jinja::List both = {question[0], MessageOf("assistant", answer)};
  const auto text = [&](const jinja::List& messages, bool begins_answer) -> Result<std::string> {
    auto rendered = Render({}, messages, Value::OfNone(), begins_answer);
    if (!rendered) return Fail(rendered.error().Context("the chat template of the tokenizer, with a plain question"));
    return rendered->text;
  };
  const std::string answered = MR_TRY(text(both, false));
  if (MarksAnswers(false)) return {};
  const std::string asked = MR_TRY(text(question, false));
  if (MR_TRY(text(question, true)) != asked) return {};
  // Nothing asks for an answer: it must follow by itself.
  const std::size_t begin = answered.find_first_not_of(" \n", asked.size());
  if (answered.starts_with(asked) && begin != answered.npos && answered.substr(begin).starts_with(answer)) return {};
  return Fail(Code::kUnsupported,
              "layout auto: the chat template does not tell where answers begin; put {{% generation %}} around them");
}

bool ModelTemplate::Names(std::string_view word) const {
  for (std::size_t at = sources_.find(word); at != sources_.npos; at = sources_.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !IsWord(sources_[at - 1])) && (end == sources_.size() || !IsWord(sources_[end]))) return true;
  }
  return false;
}

Result<jinja::MarkedText> ModelTemplate::Render(const jinja::Dict& variables, jinja::List messages, const Value& tools,
                                                bool begins_answer) const {
  jinja::Dict all = tokens_;
  for (const auto& [name, value] : variables) Assign(all, name, value);
  const auto set = [&](std::string name, Value value) { Assign(all, Value::Of(std::move(name)), std::move(value)); };
  set("messages", Value::OfList(std::move(messages)));
  set("tools", tools);
  set("documents", Value::OfNone());
  set("add_generation_prompt", Value::Of(begins_answer));
  return TemplateFor(!tools.none()).RenderMarked(std::move(all), kDate, kLimits);
}

}  // namespace millrace::data
