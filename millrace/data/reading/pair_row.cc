#include "millrace/data/reading/pair_row.h"

#include <algorithm>

#include "millrace/data/reading/row_writer.h"

namespace millrace::data {

void WritePairs(std::span<const std::shared_ptr<const EncodedDocument>> pairs, TokenId padding, SequenceRow& row) {
  const std::size_t most = row.inputs.size() / 2;
  RowWriter writer(row, /*boundaries=*/true);
  std::vector<std::size_t> ends;  // of documents
  for (const auto& pair : pairs) {
    for (const auto& [first, last] : {std::pair<std::size_t, std::size_t>{0, pair->first_text},
                                      std::pair<std::size_t, std::size_t>{pair->first_text, pair->ids.size()}}) {
      const std::size_t written = writer.Append(*pair, first, std::min(last - first, most));
      ends.push_back((ends.empty() ? 0 : ends.back()) + written);
    }
  }
  writer.Finish(padding);
  // A model may have no more positions than an answer has tokens.
  const auto used = static_cast<std::size_t>(row.length);
  for (std::size_t t = used; t < row.positions.size(); ++t)
    row.positions[t] = static_cast<std::int32_t>((t - used) % most);
  const auto labels_of = [&](std::size_t document, std::size_t count) {
    const std::size_t begin = document == 0 ? 0 : ends[document - 1];
    return row.labels.subspan(begin, ends[document + count - 1] - begin);
  };
  const auto learns = [](std::span<const TokenId> labels) {
    return std::ranges::any_of(labels, [](TokenId label) { return label != kIgnoreLabel; });
  };
  row.pair_labels.clear();
  for (std::size_t document = 0; document < ends.size(); document += 2) {
    const bool complete = learns(labels_of(document, 1)) && learns(labels_of(document + 1, 1));
    row.pair_labels.push_back(complete ? 0 : kIgnoreLabel);
    if (!complete) std::ranges::fill(labels_of(document, 2), kIgnoreLabel);
  }
}

}  // namespace millrace::data
