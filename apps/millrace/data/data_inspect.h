// The parts of `millrace data inspect` after its list of objects.
#pragma once

#include <span>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/index/record_index.h"
#include "millrace/data/options/dataset_options.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::cli {

/// Prints the lengths of the indexed records, in tokens if they are counted, else in bytes. Draws them into `picture`
/// unless that is empty.
Status PrintLengths(const Context& context, std::span<const data::RecordIndex> indexes, bool counts_tokens,
                    const std::string& picture);

/// Reads every document of the sources and prints their scripts and duplicates.
Status PrintSurvey(const Context& context, const data::DatasetOptions& options);

/// Returns a sample's tokens as the vocabulary writes them, with '│' between them. Tokens that are not the label of
/// another token, such as prompts and padding, are in "‹…›". A token that repeats is written once, with its count.
Result<std::string> ShowTokens(const tokenizer::Tokenizer& tokenizer, std::span<const tokenizer::TokenId> inputs,
                               std::span<const tokenizer::TokenId> labels);

/// Returns a row for BERT as the vocabulary writes its tokens, with spaces between them. A token that is to be
/// predicted is in "‹…›" with what hides it: "‹cat: [MASK]›". Padding is left out.
Result<std::string> ShowBertRow(const tokenizer::Tokenizer& tokenizer, const data::SequenceRow& row);

}  // namespace millrace::cli
