// Writes two answers to one prompt into a row.
#pragma once

#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/documents/document_encoder.h"

namespace millrace::data {

/// Writes both documents of a pair, one behind the other. Each gets half of the row at most, and is cut if it is
/// longer. If a half has no label, the row has none and its row label is kIgnoreLabel.
void WritePairRow(const EncodedDocument& pair, TokenId padding, SequenceRow& row);

}  // namespace millrace::data
