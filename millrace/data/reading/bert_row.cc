#include "millrace/data/reading/bert_row.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace millrace::data {

std::pair<std::size_t, std::size_t> ShortenPair(std::size_t a, std::size_t b, std::size_t room) {
  if (a + b <= room) return {a, b};
  std::size_t shorter = std::min(a, b), longer;
  // The longer text shrinks first. Once both are equally long, they share the room.
  if (2 * shorter <= room) {
    longer = room - shorter;
  } else {
    shorter = room / 2;
    longer = room - shorter;
  }
  return a > b ? std::pair{longer, shorter} : std::pair{shorter, longer};
}

void WriteBertRow(std::span<const TokenId> a, std::span<const TokenId> b, const BertTokens& tokens, SequenceRow& row) {
  const bool adds = tokens.cls != tokenizer::kNoToken;
  const std::size_t first = a.size() + (adds ? 2 : 0), used = first + (b.empty() ? 0 : b.size() + (adds ? 1 : 0));
  assert(used <= row.inputs.size());
  auto at = row.inputs.begin();
  if (adds) *at++ = tokens.cls;
  at = std::ranges::copy(a, at).out;
  if (adds) *at++ = tokens.sep;
  if (!b.empty()) {
    at = std::ranges::copy(b, at).out;
    if (adds) *at++ = tokens.sep;
  }
  std::fill(at, row.inputs.end(), tokens.pad);
  std::ranges::fill(row.labels, kIgnoreLabel);
  row.length = static_cast<std::int32_t>(used);
  if (!row.segments.empty()) {
    std::ranges::fill(row.segments, 0);
    std::ranges::fill(row.segments.subspan(first, used - first), 1);
  }
  if (!row.positions.empty()) {
    auto text = row.positions.first(used), padding = row.positions.subspan(used);
    std::iota(text.begin(), text.end(), 0);
    std::iota(padding.begin(), padding.end(), 0);
  }
}

}  // namespace millrace::data
