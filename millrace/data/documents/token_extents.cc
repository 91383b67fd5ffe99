#include "millrace/data/documents/token_extents.h"

#include <algorithm>
#include <charconv>

namespace millrace::data {
namespace {

/// How SentencePiece and Hugging Face's Metaspace write a space in a piece: U+2581.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";

/// Returns the byte of a piece such as "<0x0A>", or -1.
int ByteOf(std::string_view piece) {
  int byte = -1;
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return -1;
  const char* end = piece.data() + 5;
  return std::from_chars(piece.data() + 3, end, byte, 16).ptr == end ? byte : -1;
}

}  // namespace

Result<std::string> TokenExtentFinder::SurfaceOf(tokenizer::TokenId id) const {
  std::string piece = MR_TRY(tokenizer_.Piece(id));
  if (bytes_alone_) return piece;
  if (const int byte = ByteOf(piece); byte >= 0) return std::string(1, static_cast<char>(byte));
  for (std::size_t at = piece.find(kSpaceMark); at != piece.npos; at = piece.find(kSpaceMark, at + 1)) {
    piece.replace(at, kSpaceMark.size(), " ");
  }
  return piece;
}

Result<bool> TokenExtentFinder::IsSpecial(tokenizer::TokenId id) const {
  if (!specials_.Has(id) || id == tokenizer_.unk()) return false;
  return ByteOf(MR_TRY(tokenizer_.Piece(id))) < 0;
}

void TokenExtentFinder::AppendRun(std::string_view text, std::size_t begin, std::size_t end,
                                  std::vector<TokenExtent>& extents) const {
  std::string whole;
  for (const std::string& surface : surfaces_) whole += surface;
  const auto is = [&](std::size_t from, std::size_t to) { return text.substr(from, to - from) == whole; };
  if (!is(begin, end)) {
    // Special tokens beside the run may have taken white space.
    const std::size_t first = std::min(text.find_first_not_of(kWhiteSpace, begin), end);
    const std::size_t found = text.substr(0, end).find_last_not_of(kWhiteSpace);
    const std::size_t last = found == text.npos || found < first ? first : found + 1;
    if (is(first, end)) {
      begin = first;
    } else if (is(begin, last)) {
      end = last;
    } else if (is(first, last)) {
      begin = first;
      end = last;
    }
  }
  // SentencePiece puts a space in front of a text.
  const bool prefixed = whole.size() == end - begin + 1 && whole.starts_with(' ') &&
                        std::string_view(whole).substr(1) == text.substr(begin, end - begin);
  const std::size_t size = extents.size() + surfaces_.size();
  std::size_t at = begin, left = 0;
  for (; left < surfaces_.size(); ++left) {
    std::string_view surface = surfaces_[left];
    if (left == 0 && prefixed) surface.remove_prefix(1);
    if (surface.size() > end - at || text.substr(at, surface.size()) != surface) break;
    extents.push_back({at, at + surface.size()});
    at += surface.size();
  }
  if (left == surfaces_.size()) return;
  // The tokenizer changed the text. Tokens at the end are found from there.
  std::size_t right = surfaces_.size(), stop = end;
  while (right > left && text.substr(at, stop - at).ends_with(surfaces_[right - 1])) stop -= surfaces_[--right].size();
  for (; left < right; ++left) extents.push_back({at, stop, true});
  for (; extents.size() < size; ++right) {
    extents.push_back({stop, stop + surfaces_[right].size()});
    stop += surfaces_[right].size();
  }
}

Status TokenExtentFinder::Append(std::string_view text, std::span<const tokenizer::TokenId> ids, std::size_t base,
                                 std::vector<TokenExtent>& extents) {
  const std::size_t first = extents.size();
  std::size_t at = 0;
  for (std::size_t t = 0; t < ids.size();) {
    surfaces_.clear();
    for (; t < ids.size() && !MR_TRY(IsSpecial(ids[t])); ++t) surfaces_.push_back(MR_TRY(SurfaceOf(ids[t])));
    const std::string special = t < ids.size() ? MR_TRY(tokenizer_.Piece(ids[t])) : "";
    const std::size_t found = t < ids.size() ? text.find(special, at) : text.size();
    if (found == text.npos) return Fail(Code::kCorrupt, "the text of a token is not found");
    if (!surfaces_.empty()) AppendRun(text, at, found, extents);
    if (t == ids.size()) break;
    extents.push_back({found, found + special.size()});
    at = found + special.size();
    ++t;
  }
  for (std::size_t i = first; i < extents.size(); ++i) {
    extents[i].begin += base;
    extents[i].end += base;
  }
  return {};
}

}  // namespace millrace::data
