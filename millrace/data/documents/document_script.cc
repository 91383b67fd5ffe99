#include "millrace/data/documents/document_script.h"

#include <algorithm>

namespace millrace::data {

using tokenizer::kNoToken;

void DocumentScript::Clear() {
  text_.clear();
  runs_.clear();
  marks_.clear();
  answers_ = 0;
}

bool DocumentScript::is_full() const {
  return text_.size() + runs_.size() * sizeof(Run) + marks_.size() * sizeof(marks_[0]) > kMaxDocumentBytes;
}

DocumentScript::Run& DocumentScript::Open() {
  if (runs_.empty() || runs_.back().token != kNoToken) {
    runs_.push_back({.begin = text_.size(), .end = text_.size(), .first_mark = marks_.size()});
  }
  return runs_.back();
}

void DocumentScript::Text(std::string_view text, bool trained) {
  if (text.empty() || is_full()) return;
  Run& run = Open();
  text_ += text;
  if (trained) {
    ++answers_;
    if (run.marks > 0 && marks_.back().second == run.end) {
      marks_.back().second = text_.size();
    } else {
      marks_.emplace_back(run.end, text_.size());
      ++run.marks;
    }
  }
  run.end = text_.size();
}

void DocumentScript::Token(TokenId id, bool trained) {
  if (is_full()) return;
  Run& run = Open();
  run.token = id;
  run.token_trained = trained;
}

TokenId DocumentScript::IdOf(std::string_view piece) {
  if (!tokenizer_) return kNoToken;
  auto known = specials_.find(piece);
  if (known == specials_.end()) known = specials_.emplace(piece, tokenizer_->IdOf(piece)).first;
  return known->second;
}

void DocumentScript::Special(std::string_view piece, bool trained) {
  TokenId id = IdOf(piece);
  if (id == kNoToken) return Text(piece, trained);
  Token(id, trained);
}

void DocumentScript::Bos() {
  if (tokenizer_ && tokenizer_->text_begin() != kNoToken) Token(tokenizer_->text_begin(), false);
}

void DocumentScript::Eos(bool trained) {
  if (tokenizer_ && tokenizer_->eos() != kNoToken) Token(tokenizer_->eos(), trained);
}

Result<std::size_t> DocumentScript::Count(std::size_t begin, std::size_t end, std::size_t wanted) {
  scratch_.clear();
  MR_TRY(tokenizer_->EncodeFirst(std::string_view(text_).substr(begin, end - begin), wanted, scratch_));
  return scratch_.size();
}

void DocumentScript::Train(EncodedDocument& document, std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  if (!document.trained.empty() && document.trained.back().end == begin) {
    document.trained.back().end = static_cast<std::uint32_t>(end);
  } else {
    document.trained.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
  }
}

Status DocumentScript::Encode(std::size_t wanted, EncodedDocument& document) {
  document.Clear();
  if (!tokenizer_) return {};
  for (const Run& run : runs_) {
    const std::size_t first = document.ids.size();
    if (first >= wanted) return {};
    const std::size_t left = wanted - first;
    if (run.begin < run.end) {
      MR_TRY(
          tokenizer_->EncodeFirst(std::string_view(text_).substr(run.begin, run.end - run.begin), left, document.ids));
    }
    const std::size_t count = document.ids.size() - first;
    for (std::size_t m = run.first_mark; m < run.first_mark + run.marks; ++m) {
      auto [begin, end] = marks_[m];
      std::size_t from = begin == run.begin ? 0 : MR_TRY(Count(run.begin, begin, left));
      std::size_t to = end == run.end ? count : MR_TRY(Count(run.begin, end, left));
      Train(document, first + std::min(from, count), first + std::min(to, count));
    }
    if (run.token == kNoToken) continue;
    document.ids.push_back(run.token);
    if (run.token_trained) Train(document, document.ids.size() - 1, document.ids.size());
  }
  return {};
}

}  // namespace millrace::data
