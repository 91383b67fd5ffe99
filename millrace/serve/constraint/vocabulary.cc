#include "millrace/serve/constraint/vocabulary.h"

#include <algorithm>
#include <charconv>

namespace millrace::serve {
namespace {

/// SentencePiece and its kin write a space as "▁" and a byte as "<0x0A>".
std::string BytesOfPiece(std::string_view piece) {
  constexpr std::string_view kSpace = "▁";
  unsigned char byte = 0;
  if (piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>') &&
      std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16).ptr == piece.data() + 5) {
    return {static_cast<char>(byte)};
  }
  std::string bytes;
  while (!piece.empty()) {
    const bool space = piece.starts_with(kSpace);
    bytes += space ? ' ' : piece.front();
    piece.remove_prefix(space ? kSpace.size() : 1);
  }
  return bytes;
}

}  // namespace

TokenBytes::TokenBytes(const tokenizer::Tokenizer& tokenizer) : vocab_size_(tokenizer.vocab_size()) {
  const bool plain = tokenizer.kind() == "byte-bpe" || tokenizer.kind() == "bytes";
  for (TokenId token = 0; token < vocab_size_; ++token) {
    auto piece = tokenizer.Piece(token);
    if (!piece) continue;
    std::string bytes = plain ? *std::move(piece) : BytesOfPiece(*piece);
    // A special token has no text. Half a character has none by itself either, but its bytes say that.
    const bool whole = std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<signed char>(c) > 0; });
    if (whole && bytes != " ") {
      const auto text = tokenizer.Decode({&token, 1});
      if (!text || text->empty()) continue;
    }
    if (!bytes.empty()) entries_.push_back({.bytes = std::move(bytes), .token = token});
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.bytes != b.bytes ? a.bytes < b.bytes : a.token < b.token; });
  places_.assign(static_cast<std::size_t>(vocab_size_), -1);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    places_[static_cast<std::size_t>(entries_[i].token)] = static_cast<std::int32_t>(i);
    if (i == 0) continue;
    const std::string &a = entries_[i - 1].bytes, &b = entries_[i].bytes;
    const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
    entries_[i].shared = static_cast<std::uint32_t>(differ - a.begin());
  }
}

const std::string& TokenBytes::BytesOf(TokenId token) const {
  static const std::string kNone;
  const bool known = token >= 0 && token < vocab_size_ && places_[static_cast<std::size_t>(token)] >= 0;
  return known ? entries_[static_cast<std::size_t>(places_[static_cast<std::size_t>(token)])].bytes : kNone;
}

}  // namespace millrace::serve
