#include "millrace/data/reading/bert_tokens.h"

namespace millrace::data {

Result<BertTokens> BertTokens::Find(const tokenizer::Tokenizer& tokenizer) {
  auto find = [&](std::string_view name, std::string_view other) {
    const TokenId id = tokenizer.IdOf(name);
    return id == tokenizer::kNoToken ? tokenizer.IdOf(other) : id;
  };
  BertTokens tokens{.cls = find("[CLS]", "<s>"),
                    .sep = find("[SEP]", "</s>"),
                    .mask = find("[MASK]", "<mask>"),
                    .pad = find("[PAD]", "<pad>")};
  if (tokens.cls == tokenizer::kNoToken || tokens.sep == tokenizer::kNoToken) {
    return Fail(Code::kInvalidArgument,
                "rows for BERT begin with [CLS] and end with [SEP], which this tokenizer ({}) lacks; use the tokenizer "
                "of a BERT",
                tokenizer.kind());
  }
  if (tokens.pad == tokenizer::kNoToken) tokens.pad = tokens.sep;
  return tokens;
}

Result<BertTokens> BertTokens::FindForClasses(const tokenizer::Tokenizer& tokenizer) {
  if (auto found = Find(tokenizer)) return found;
  const TokenId pad = tokenizer.pad() == tokenizer::kNoToken ? tokenizer.eos() : tokenizer.pad();
  if (pad == tokenizer::kNoToken) {
    return Fail(Code::kInvalidArgument,
                "this tokenizer ({}) has neither [CLS] and [SEP], between which BERT reads texts, nor an end of text, "
                "which fills the rows of GPT-2",
                tokenizer.kind());
  }
  return BertTokens{.cls = tokenizer::kNoToken, .sep = tokenizer::kNoToken, .mask = tokenizer::kNoToken, .pad = pad};
}

}  // namespace millrace::data
