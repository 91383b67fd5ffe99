#include "millrace/data/hdf5/stored_sample.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "millrace/data/hdf5/hdf5_bytes.h"
#include "millrace/data/records/frame.h"

namespace millrace::data {
namespace {

/// Returns element `i` of an array of 32-bit numbers.
std::int32_t NumberAt(ByteSpan record, std::uint64_t array, std::size_t i) {
  return LoadLittle<std::int32_t>(record.data() + array + 4 * i);
}

}  // namespace

std::string StoredSampleFrame::Encode() const {
  std::string state;
  auto put = [&](auto value) { state.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(first_row);
  put(rows);
  put(layout.tokens);
  put(layout.predictions);
  return state;
}

Result<StoredSampleFrame> StoredSampleFrame::Decode(std::string_view state) {
  FieldCursor cursor(AsBytes(state));
  StoredSampleFrame frame{.first_row = cursor.U64(), .rows = cursor.U32()};
  frame.layout = {.tokens = cursor.U32(), .predictions = cursor.U32()};
  if (!cursor.ok() || cursor.left() > 0 || frame.layout.bytes() > kMaxFrameContent ||
      frame.rows > kMaxFrameContent / frame.layout.bytes()) {
    return Fail(Code::kCorrupt, "the index does not say which samples belong together; delete it to have it rebuilt");
  }
  return frame;
}

Status WriteStoredSample(ByteSpan record, const StoredSampleLayout& layout, int vocab_size, TokenId padding,
                         SequenceRow& row) {
  assert(record.size() >= layout.bytes());
  const std::size_t length = row.inputs.size(), used = LoadLittle<std::uint32_t>(record.data());
  if (layout.tokens > length) {
    return Fail(Code::kInvalidArgument,
                "samples of {} tokens do not fit into a sequence length of {}; raise data.sequence_length",
                layout.tokens, length);
  }
  if (used > layout.tokens) return Fail(Code::kCorrupt, "a sample is longer than its tokens");
  auto check = [&](TokenId id) -> Status {
    if (id >= 0 && id < vocab_size) return {};
    return Fail(Code::kCorrupt, "token {} is not in the tokenizer's vocabulary of {}; was it made with another?", id,
                vocab_size);
  };
  std::ranges::fill(row.inputs, padding);
  std::ranges::fill(row.labels, kIgnoreLabel);
  for (std::size_t i = 0; i < used; ++i) {
    row.inputs[i] = NumberAt(record, layout.ids_at(), i);
    MR_TRY(check(row.inputs[i]));
  }
  for (std::uint32_t p = 0; p < layout.predictions; ++p) {
    const std::int32_t position = NumberAt(record, layout.positions_at(), p);
    if (position == 0) break;
    if (position < 0 || static_cast<std::size_t>(position) >= used) {
      return Fail(Code::kCorrupt, "a prediction at token {} of a sample with {} tokens", position, used);
    }
    row.labels[static_cast<std::size_t>(position)] = NumberAt(record, layout.hidden_at(), p);
    MR_TRY(check(row.labels[static_cast<std::size_t>(position)]));
  }
  if (!row.segments.empty()) {
    std::ranges::fill(row.segments, 0);
    for (std::size_t i = 0; i < used; ++i) {
      row.segments[i] = std::to_integer<std::int32_t>(record[layout.segments_at() + i]);
    }
  }
  if (!row.positions.empty()) {
    auto text = row.positions.first(used), rest = row.positions.subspan(used);
    std::iota(text.begin(), text.end(), 0);
    std::iota(rest.begin(), rest.end(), 0);
  }
  row.length = static_cast<std::int32_t>(used);
  row.row_label = LoadLittle<std::int32_t>(record.data() + 4);
  return {};
}

}  // namespace millrace::data
