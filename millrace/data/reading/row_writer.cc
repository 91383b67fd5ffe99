#include "millrace/data/reading/row_writer.h"

#include <algorithm>
#include <numeric>

namespace millrace::data {

std::size_t RowWriter::Append(const EncodedDocument& document, std::size_t first, std::size_t count) {
  const std::size_t length = row_.inputs.size(), begin = filled_;
  count = std::min({count, document.ids.size() - first, room()});
  auto ids = std::span(document.ids).subspan(first, count);
  const std::size_t inputs = std::min(count, length - std::min(length, begin));
  std::copy_n(ids.begin(), inputs, row_.inputs.begin() + static_cast<std::ptrdiff_t>(begin));
  if (!row_.positions.empty()) {
    auto positions = row_.positions.subspan(begin, inputs);
    std::iota(positions.begin(), positions.end(), 0);
  }
  // The token at position p is the label of position p - 1.
  if (count > 0 && begin > 0) row_.labels[begin - 1] = kIgnoreLabel;
  if (count > 1) std::fill_n(row_.labels.begin() + static_cast<std::ptrdiff_t>(begin), count - 1, kIgnoreLabel);
  for (TokenRange trained : document.trained) {
    std::size_t from = std::max<std::size_t>(trained.begin, first),
                to = std::min<std::size_t>(trained.end, first + count);
    // Position 0 has no position in front of it. The first token of a later document is the label of the document
    // before, which `boundaries` forbids.
    if (from == first && (begin == 0 || boundaries_)) ++from;
    for (std::size_t t = from; t < to; ++t) row_.labels[begin + (t - first) - 1] = document.ids[t];
  }
  filled_ += count;
  return count;
}

void RowWriter::Finish(TokenId padding) {
  const std::size_t length = row_.inputs.size(), used = std::min(filled_, length);
  row_.length = static_cast<std::int32_t>(used);
  std::fill(row_.inputs.begin() + static_cast<std::ptrdiff_t>(used), row_.inputs.end(), padding);
  if (filled_ <= length) {
    auto open = row_.labels.begin() + static_cast<std::ptrdiff_t>(filled_ > 0 ? filled_ - 1 : 0);
    std::fill(open, row_.labels.end(), kIgnoreLabel);
  }
  if (!row_.positions.empty()) {
    auto positions = row_.positions.subspan(used);
    std::iota(positions.begin(), positions.end(), 0);
  }
}

}  // namespace millrace::data
