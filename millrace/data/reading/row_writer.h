// Writes documents into a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/documents/document_encoder.h"

namespace millrace::data {

/// Makes a row of L inputs and L labels from L + 1 tokens. The first L tokens are the inputs, the last L the labels.
/// One thread. The row must outlive the writer.
class RowWriter {
 public:
  /// With `boundaries` no label crosses from one document into the next one.
  RowWriter(SequenceRow& row, bool boundaries) : row_(row), boundaries_(boundaries) {}

  std::size_t room() const { return row_.inputs.size() + 1 - filled_; }
  /// Appends the document's tokens from `first` on: at most `count`, as far as there is room. Returns how many.
  std::size_t Append(const EncodedDocument& document, std::size_t first, std::size_t count);
  /// Fills the rest of the row with padding.
  void Finish(TokenId padding);

 private:
  SequenceRow& row_;
  const bool boundaries_;
  std::size_t filled_ = 0;
};

}  // namespace millrace::data
