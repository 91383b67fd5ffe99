// Prints the parts of `millrace data inspect` after its list of objects.
#pragma once

#include <span>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/options/dataset_options.h"
#include "millrace/data/records/record_index.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::cli {

/// Prints the distribution of the records' lengths: in tokens if `counts_tokens`, else in bytes. Also draws it into the
/// file `picture`, unless that is empty.
Status PrintLengths(const Context& context, std::span<const data::RecordIndex> indexes, bool counts_tokens,
                    const std::string& picture);

/// Reads every document of the sources, and prints which scripts they are written in and which documents are
/// duplicates.
Status PrintSurvey(const Context& context, const data::DatasetOptions& options);

/// Returns the tokens of a sample as the vocabulary writes them, with '│' between two tokens. A token that the model
/// does not learn to predict, such as a prompt or padding, is in "‹…›". A repeated token is written once, with its
/// count.
Result<std::string> ShowTokens(const tokenizer::Tokenizer& tokenizer, std::span<const tokenizer::TokenId> inputs,
                               std::span<const tokenizer::TokenId> labels);

/// Returns the tokens of a row for BERT as the vocabulary writes them, with spaces between them. A token that the model
/// must predict is in "‹…›", with the token that stands in its place: "‹cat: [MASK]›". Leaves out padding.
Result<std::string> ShowBertRow(const tokenizer::Tokenizer& tokenizer, const data::SequenceRow& row);

}  // namespace millrace::cli
