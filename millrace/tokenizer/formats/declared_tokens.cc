#include "millrace/tokenizer/formats/declared_tokens.h"

#include <array>
#include <utility>
#include <vector>

namespace millrace::tokenizer {
namespace {

constexpr std::array<std::string_view, 2> kDeclaringFiles = {"tokenizer_config.json", "special_tokens_map.json"};

/// Another tokenizer with tokens of its own that begin and end texts.
class DeclaringTokenizer final : public Tokenizer {
 public:
  DeclaringTokenizer(std::shared_ptr<const Tokenizer> own, TokenId bos, TokenId eos, TokenId text_begin,
                     ChatTemplates chat)
      : own_(std::move(own)), bos_(bos), eos_(eos), text_begin_(text_begin), chat_(std::move(chat)) {
    const bool same_texts = eos_ == own_->eos() && text_begin_ == own_->text_begin();
    text_fingerprint_ =
        same_texts ? own_->text_fingerprint() : fmt::format("{}:{}:{}", own_->fingerprint(), text_begin_, eos_);
  }

  Status Encode(std::string_view text, std::vector<TokenId>& ids) const override { return own_->Encode(text, ids); }
  Status EncodeFirst(std::string_view text, std::size_t count, std::vector<TokenId>& ids) const override {
    return own_->EncodeFirst(text, count, ids);
  }
  Status EncodeWithSpecials(std::string_view text, std::vector<TokenId>& ids) const override {
    return own_->EncodeWithSpecials(text, ids);
  }
  Result<std::string> Decode(std::span<const TokenId> ids) const override { return own_->Decode(ids); }
  Status DecodeNext(DecodeState& state, TokenId id, std::string& text) const override {
    return own_->DecodeNext(state, id, text);
  }
  void DecodeEnd(DecodeState& state, std::string& text) const override { own_->DecodeEnd(state, text); }
  Result<std::string> Piece(TokenId id) const override { return own_->Piece(id); }
  TokenId IdOf(std::string_view piece) const override { return own_->IdOf(piece); }
  int vocab_size() const override { return own_->vocab_size(); }
  TokenId bos() const override { return bos_; }
  TokenId eos() const override { return eos_; }
  TokenId unk() const override { return own_->unk(); }
  TokenId pad() const override { return own_->pad(); }
  TokenId text_begin() const override { return text_begin_; }
  std::optional<bool> adds_bos() const override { return own_->adds_bos(); }
  const ChatTemplates* chat_templates() const override { return chat_.text.empty() ? nullptr : &chat_; }
  std::string_view kind() const override { return own_->kind(); }
  const std::string& fingerprint() const override { return own_->fingerprint(); }
  const std::string& text_fingerprint() const override { return text_fingerprint_; }

 private:
  const std::shared_ptr<const Tokenizer> own_;
  const TokenId bos_, eos_, text_begin_;
  const ChatTemplates chat_;
  std::string text_fingerprint_;
};

/// Takes the special tokens that a file of a tokenizer's folder names.
void TakeNamedTokens(const Json& config, ChatTemplates& into) {
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
    const Json* said = JsonFind(config, name);
    std::string text = said != nullptr ? SpecialTokenText(*said) : "";
    if (!text.empty()) into.tokens.emplace(name, std::move(text));
  }
}

}  // namespace

std::string SpecialTokenText(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  return JsonString(token, "content").value_or("");
}

void TakeChatTemplates(const Json& config, ChatTemplates& into) {
  const Json* templates = JsonFind(config, "chat_template");
  if (templates == nullptr) return;
  if (templates->is_string()) into.text = templates->get<std::string>();
  if (!templates->is_array()) return;
  for (const Json& each : *templates) {
    const std::string name = JsonString(each, "name").value_or("");
    const std::string text = JsonString(each, "template").value_or("");
    if (name == "default") into.text = text;
    if (name == "tool_use") into.tool_text = text;
  }
}

Result<DeclaredTokens> ReadDeclaredTokens(const ReadSibling& read, std::string_view folder) {
  DeclaredTokens declared;
  for (const std::string_view file : kDeclaringFiles) {
    const auto text = MR_TRY(read(file));
    if (!text) continue;
    const Json json = MR_TRY(ParseJson(*text, fmt::format("{}/{}", folder, file)));
    for (const auto& [key, token] : {std::pair("bos_token", &declared.bos), {"eos_token", &declared.eos}}) {
      const Json* said = JsonFind(json, key);
      if (said != nullptr && token->empty()) *token = SpecialTokenText(*said);
    }
    const Json* adds = JsonFind(json, "add_bos_token");
    if (adds != nullptr && adds->is_boolean()) declared.adds_bos = adds->get<bool>();
    TakeNamedTokens(json, declared.chat);
    if (file == kDeclaringFiles[0]) TakeChatTemplates(json, declared.chat);
  }
  if (auto text = MR_TRY(read("chat_template.jinja"))) declared.chat.text = *std::move(text);
  if (declared.chat.text.empty()) return declared;
  if (auto text = MR_TRY(read("additional_chat_templates/tool_use.jinja"))) declared.chat.tool_text = *std::move(text);
  return declared;
}

std::shared_ptr<const Tokenizer> WithDeclaredTokens(std::shared_ptr<const Tokenizer> tokenizer,
                                                    const DeclaredTokens& declared, const Logger& log) {
  const auto find = [&](std::string_view role, const std::string& text, TokenId otherwise) {
    if (text.empty()) return otherwise;
    const TokenId id = tokenizer->IdOf(text);
    if (id != kNoToken) return id;
    log.Warning("the tokenizer has no such token, though the file beside it declares it", {{role, text}});
    return otherwise;
  };
  const TokenId bos = find("bos_token", declared.bos, tokenizer->bos());
  const TokenId eos = find("eos_token", declared.eos, tokenizer->eos());
  if (bos == tokenizer->bos() && eos == tokenizer->eos() && declared.chat.text.empty()) return tokenizer;
  // Many tokenizers declare a bos that no text begins with (GPT-2's). One that the file itself names begins texts.
  const bool begins = tokenizer->text_begin() != kNoToken || declared.adds_bos.value_or(false);
  const bool same = bos == tokenizer->bos() && eos == tokenizer->eos();
  const TokenId text_begin = same ? tokenizer->text_begin() : begins ? bos : kNoToken;
  return std::make_shared<const DeclaringTokenizer>(std::move(tokenizer), bos, eos, text_begin, declared.chat);
}

}  // namespace millrace::tokenizer
