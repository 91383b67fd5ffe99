// One sequence in the making.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/loader.h"

namespace millrace::data {

/// Writes a row of L inputs and L labels from L + 1 tokens: the first L are its inputs, the last L its labels. One
/// owner; the row must outlive it.
class RowWriter {
 public:
  /// With `boundaries` no label crosses from one document into the next.
  RowWriter(Row& row, bool boundaries) : row_(row), boundaries_(boundaries) {}

  std::size_t room() const { return row_.inputs.size() + 1 - filled_; }
  /// Appends the document's tokens from `first` on, at most `count` and as far as there is room: where `joined`, they
  /// go on with what was appended before. Returns how many.
  std::size_t Append(const EncodedDocument& document, std::size_t first, std::size_t count);
  /// Fills the rest with padding.
  void Finish(TokenId padding);

 private:
  Row& row_;
  const bool boundaries_;
  std::size_t filled_ = 0;
};

}  // namespace millrace::data
