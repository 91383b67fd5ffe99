// What `millrace data inspect` says beyond its list of objects.
#pragma once

#include <span>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/data/index/record_index.h"
#include "millrace/data/loader.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::cli {

/// Prints how long the indexed records are, in tokens or else in bytes, and draws it into `picture` unless that is
/// empty.
Status PrintLengths(const Context& context, std::span<const data::RecordIndex> indexes, bool counts_tokens,
                    const std::string& picture);

/// Reads every document of the sources and prints what they are.
Status PrintSurvey(const Context& context, const data::DatasetOptions& options);

/// A sample's tokens, a '│' between them, as their pieces; "‹…›" around those that no label asks for: masked answers
/// and padding. Runs of one token are counted.
Result<std::string> ShowTokens(const tokenizer::Tokenizer& tokenizer, std::span<const tokenizer::TokenId> inputs,
                               std::span<const tokenizer::TokenId> labels);

}  // namespace millrace::cli
