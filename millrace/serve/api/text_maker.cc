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
