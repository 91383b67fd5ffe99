// Writes one or two texts into a row as BERT reads them.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/reading/bert_tokens.h"

namespace millrace::data {

/// Returns the numbers of tokens that stay of texts with `a` and `b` tokens, if both together may have `room`. Tokens
/// are removed from the end of the longer text, one at a time, as the `tokenizers` library truncates pairs ("longest
/// first").
std::pair<std::size_t, std::size_t> ShortenPair(std::size_t a, std::size_t b, std::size_t room);

/// Writes [CLS] a [SEP] and, unless `b` is empty, b [SEP] into `row`; or only a and b, if `tokens` lack the others. The
/// rest is padding, a document of its own. Every label becomes kIgnoreLabel. REQUIRES: the texts and their special
/// tokens fit.
void WriteBertRow(std::span<const TokenId> a, std::span<const TokenId> b, const BertTokens& tokens, SequenceRow& row);

}  // namespace millrace::data
