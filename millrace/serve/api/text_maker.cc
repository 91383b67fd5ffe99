#include "millrace/serve/api/text_maker.h"

#include <iterator>

namespace millrace::serve {
namespace {

void Append(AnswerParts& parts, AnswerParts more) {
  parts.text += more.text;
  parts.calls.insert(parts.calls.end(), std::make_move_iterator(more.calls.begin()),
                     std::make_move_iterator(more.calls.end()));
}

}  // namespace

TextMaker::TextMaker(const tokenizer::Tokenizer& tokenizer, std::span<const TokenId> prompt,
                     std::vector<std::string> stops, std::optional<ToolCallParser> calls, bool parallel)
    : detokenizer_(tokenizer, prompt), matcher_(std::move(stops)), calls_(std::move(calls)), parallel_(parallel) {
  if (!calls_) return;
  for (const std::string_view mark : calls_->marks()) {
    const TokenId id = tokenizer.IdOf(mark);
    if (id != tokenizer::kNoToken && tokenizer.Decode(std::span(&id, 1)) == std::string()) marks_[id] = mark;
  }
}

Result<AnswerParts> TextMaker::Add(TokenId token) {
  const auto mark = marks_.find(token);
  if (mark == marks_.end()) return Divide(matcher_.Add(MR_TRY(detokenizer_.Add(token))));
  std::string text = MR_TRY(detokenizer_.Finish());
  return Divide(matcher_.Add(text + mark->second));
}

AnswerParts TextMaker::Divide(std::string text) {
  if (!calls_) return {.text = std::move(text), .calls = {}};
  return calls_->Add(text);
}

Result<AnswerParts> TextMaker::Finish() {
  AnswerParts parts;
  if (!stopped()) {
    std::string text = matcher_.Add(MR_TRY(detokenizer_.Finish()));
    text += matcher_.Finish();
    parts = Divide(std::move(text));
  }
  if (calls_ && (parallel_ || !calls_->has_call())) Append(parts, calls_->Finish());
  return parts;
}

}  // namespace millrace::serve
