// Writes pairs of answers into a row.
#pragma once

#include <memory>
#include <span>

#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/documents/document_encoder.h"

namespace millrace::data {

/// Writes the two documents of each pair, one behind the other. Each gets half of the row at most, and is cut if it is
/// longer. Padding is documents of at most half of the row. If a document has no label, its pair has none and the
/// pair's label is kIgnoreLabel. REQUIRES: the documents fit into the row.
void WritePairs(std::span<const std::shared_ptr<const EncodedDocument>> pairs, TokenId padding, SequenceRow& row);

}  // namespace millrace::data
