#include "millrace/checkpoint/convert/megatron/stored_fragment.h"

#include <algorithm>

namespace millrace::checkpoint {
namespace {

std::uint64_t Product(const std::vector<std::uint64_t>& lengths, std::size_t from) {
  std::uint64_t product = 1;
  for (std::size_t d = from; d < lengths.size(); ++d) product *= lengths[d];
  return product;
}

/// Returns the box of rows [begin, end) of one layer of a fragment, in the tensor that has them.
SourceBox CutRows(const StoredFragment& fragment, std::size_t row_dimension, const RowSpan& span, std::uint64_t begin,
                  std::uint64_t end) {
  const Box& from = fragment.part.box;
  SourceBox cut{.file = fragment.part.file};
  cut.box.offsets.assign(from.offsets.begin() + static_cast<std::ptrdiff_t>(row_dimension), from.offsets.end());
  cut.box.lengths.assign(from.lengths.begin() + static_cast<std::ptrdiff_t>(row_dimension), from.lengths.end());
  cut.box.offsets[0] = span.to + (begin - span.from);
  cut.box.lengths[0] = end - begin;
  return cut;
}

}  // namespace

Result<SourceBox> UnflattenedPart(const SourceBox& part, const std::vector<std::int64_t>& stored,
                                  const std::vector<std::int64_t>& shape) {
  const std::size_t dimensions = shape.size();
  const auto wrong = [&] { return Fail(Code::kCorrupt, "{}: its flattened parts do not fit its shape", part.tensor); };
  if (stored.size() != dimensions + 1 || dimensions == 0 || !part.strides.empty()) return wrong();
  Box whole = part.box;
  if (whole.whole()) whole = {std::vector<std::uint64_t>(stored.size()), {stored.begin(), stored.end()}};
  SourceBox fragment = part;
  fragment.box = {};
  std::uint64_t elements = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    if (stored[d] <= 0 || shape[d] % stored[d] != 0 || whole.lengths[d] != 1) return wrong();
    const auto length = static_cast<std::uint64_t>(shape[d] / stored[d]);
    fragment.box.offsets.push_back(whole.offsets[d] * length);
    fragment.box.lengths.push_back(length);
    elements *= length;
  }
  if (elements != static_cast<std::uint64_t>(stored[dimensions])) return wrong();
  fragment.begin = whole.offsets[dimensions];
  fragment.elements = whole.lengths[dimensions];
  return fragment;
}

void CutFragment(const StoredFragment& fragment, bool layers, const std::vector<RowSpan>& spans,
                 const std::function<void(std::uint64_t layer, SourceBox part)>& add) {
  const Box& box = fragment.part.box;
  const std::size_t row_dimension = layers ? 1 : 0;
  const std::uint64_t first_row = box.offsets[row_dimension], rows = box.lengths[row_dimension];
  const std::uint64_t row_elements = Product(box.lengths, row_dimension + 1);
  const std::uint64_t run_begin = fragment.part.begin;
  const std::uint64_t run_end =
      run_begin + (fragment.part.elements > 0 ? fragment.part.elements : Product(box.lengths, 0));
  const auto& strides = fragment.part.strides;
  for (std::uint64_t layer = 0; layer < (layers ? box.lengths[0] : 1); ++layer) {
    for (const RowSpan& span : spans) {
      const std::uint64_t begin = std::max(span.from, first_row),
                          end = std::min(span.from + span.rows, first_row + rows);
      if (begin >= end) continue;
      SourceBox cut = CutRows(fragment, row_dimension, span, begin, end);
      const std::uint64_t at = (layer * rows + (begin - first_row)) * row_elements;
      const std::uint64_t elements = (end - begin) * row_elements;
      const std::uint64_t from = std::max(at, run_begin), to = std::min(at + elements, run_end);
      if (from >= to) continue;
      std::uint64_t skipped = from - run_begin;
      if (to - from < elements) {
        cut.begin = from - at;
        cut.elements = to - from;
      }
      if (!strides.empty()) {  // never a run
        cut.strides.assign(strides.begin() + static_cast<std::ptrdiff_t>(row_dimension), strides.end());
        skipped = (begin - first_row) * static_cast<std::uint64_t>(strides[row_dimension]) +
                  (layers ? layer * static_cast<std::uint64_t>(strides[0]) : 0);
      }
      cut.offset = fragment.part.offset + skipped * fragment.element_bytes;
      add(layers ? box.offsets[0] + layer : 0, std::move(cut));
    }
  }
}

}  // namespace millrace::checkpoint
