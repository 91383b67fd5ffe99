#include "millrace/data/reading/pair_row.h"

#include <algorithm>

#include "millrace/data/reading/row_writer.h"

namespace millrace::data {

void WritePairRow(const EncodedDocument& pair, TokenId padding, SequenceRow& row) {
  const std::size_t most = row.inputs.size() / 2;
  const std::size_t chosen = std::min<std::size_t>(pair.first_text, most);
  const std::size_t rejected = std::min(pair.ids.size() - pair.first_text, most);
  RowWriter writer(row, /*boundaries=*/true);
  writer.Append(pair, 0, chosen);
  writer.Append(pair, pair.first_text, rejected);
  writer.Finish(padding);
  const auto learns = [&](std::size_t begin, std::size_t count) {
    return std::ranges::any_of(row.labels.subspan(begin, count), [](TokenId label) { return label != kIgnoreLabel; });
  };
  const bool complete = learns(0, chosen) && learns(chosen, rejected);
  row.row_label = complete ? 0 : kIgnoreLabel;
  if (!complete) std::ranges::fill(row.labels, kIgnoreLabel);
}

}  // namespace millrace::data
