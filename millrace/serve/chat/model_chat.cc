#include "millrace/serve/chat/model_chat.h"

#include <algorithm>
#include <array>

#include "millrace/object/blocking.h"
#include "millrace/tokenizer/formats/declared_tokens.h"

namespace millrace::serve {
namespace {

constexpr std::uint64_t kMaxFileBytes = 4 * kMiB;

Result<Json> ReadJsonFile(const checkpoint::ModelSource& model, std::string_view file, const object::Call& call) {
  const auto text = MR_TRY(model.File(file, kMaxFileBytes, call));
  if (!text) return Json(nullptr);
  return ParseJson(*text, fmt::format("{}/{}", model.name(), file));
}

void TakeTemplates(const Json& config, ChatTemplateSource& source) {
  tokenizer::ChatTemplates templates;
  tokenizer::TakeChatTemplates(config, templates);
  source.text = templates.text;
  source.tool_text = templates.tool_text;
}

}  // namespace

Result<ChatTemplateSource> ReadChatTemplate(const checkpoint::ModelSource& model, const tokenizer::Tokenizer& tokenizer,
                                            object::Call call) {
  ChatTemplateSource source;
  const std::array<std::pair<const char*, TokenId>, 4> named = {{{"bos_token", tokenizer.bos()},
                                                                 {"eos_token", tokenizer.eos()},
                                                                 {"unk_token", tokenizer.unk()},
                                                                 {"pad_token", tokenizer.pad()}}};
  for (const auto& [name, id] : named) {
    if (id != tokenizer::kNoToken) source.variables[name] = MR_TRY(tokenizer.Piece(id));
  }
  const Json config = MR_TRY(ReadJsonFile(model, "tokenizer_config.json", call));
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
    const Json* token = JsonFind(config, name);
    const std::string text = token != nullptr ? tokenizer::SpecialTokenText(*token) : "";
    if (!text.empty()) source.variables[name] = text;
  }
  TakeTemplates(config, source);
  const auto take_file = [&](std::string_view file, std::string& into) -> Status {
    if (auto text = MR_TRY(model.File(file, kMaxFileBytes, call))) into = *std::move(text);
    return {};
  };
  MR_TRY(take_file("chat_template.jinja", source.text));
  MR_TRY(take_file("additional_chat_templates/tool_use.jinja", source.tool_text));
  return source;
}

Result<std::optional<ChatTemplateSource>> ReadTemplateFile(object::Connection& connection, std::string_view url,
                                                           object::Call call) {
  const object::Location file = MR_TRY(object::Locate(connection, url));
  const auto content = MR_TRY(object::GetAll(*file.store, file.key, kMaxFileBytes, std::move(call)));
  if (!content) return std::optional<ChatTemplateSource>();
  ChatTemplateSource source;
  if (!url.ends_with(".json")) {
    source.text = content->bytes;
    return source;
  }
  const Json config = MR_TRY(ParseJson(content->bytes, url));
  TakeTemplates(config, source);
  if (source.text.empty()) {
    return Fail(Code::kInvalidArgument, "{} has no chat_template; name a template with --chat-template", url);
  }
  return source;
}

Result<std::vector<TokenId>> ReadEndTokens(const checkpoint::ModelSource& model, const tokenizer::Tokenizer& tokenizer,
                                           object::Call call) {
  std::vector<TokenId> ends;
  const auto add = [&](const Json& id) {
    if (!id.is_number_integer() || id < 0 || id >= tokenizer.vocab_size()) return;
    if (std::find(ends.begin(), ends.end(), id.get<TokenId>()) == ends.end()) ends.push_back(id.get<TokenId>());
  };
  const Json generation = MR_TRY(ReadJsonFile(model, checkpoint::kGenerationConfigFile, call));
  const Json* config = JsonFind(model.reader().manifest().meta, checkpoint::kMetaModelConfig);
  for (const Json* source : {&generation, config}) {
    const Json* named = source != nullptr ? JsonFind(*source, "eos_token_id") : nullptr;
    if (named == nullptr || named->is_null()) continue;
    for (const Json& id : named->is_array() ? *named : Json::array({*named})) add(id);
  }
  add(Json(tokenizer.eos()));
  return ends;
}

}  // namespace millrace::serve
