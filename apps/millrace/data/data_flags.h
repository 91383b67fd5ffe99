// Reads the data options of a command, from a job file or from flags with the names of the job file's data section.
// The declarations of the keys (jobs/spec/data_fields.h) give the names, the help and the values of the flags.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/data/options/dataset_options.h"

namespace millrace::cli {

/// Replaces the escapes "\n", "\t" and "\\" by newline, tab and backslash.
std::string Unescape(std::string_view text);

/// The help of each flag whose value tokenizer::OpenTokenizer() opens.
inline constexpr char kTokenizerHelp[] =
    "URL of the tokenizer, or of a model that has one: SentencePiece, tokenizer.json, tekken.json, vocab.txt or "
    ".tiktoken (of unpublished "
    "ranks the name tells the pattern: ranks.cl100k.tiktoken; gpt2, cl100k, llama3, qwen, o200k)";

/// The flags as the user typed them. DataRequest has the result.
struct DataFlags {
  std::vector<std::string> inputs;  ///< one JOB.yaml, or URLs of data
  std::vector<std::string> set;
  std::vector<double> weights;
  std::string tokenizer, format, split;
  int global_batch = 0;
  std::map<std::string, std::string> keys;  ///< flags that mean the same as a key of the job file: name and text
};
/// Adds the flags to a command. Parsing the command line fills `flags`, which must outlive the command.
void AddDataFlags(CLI::App& command, DataFlags& flags);

/// The data set and batches that the flags or the job file describe.
struct DataRequest {
  data::DatasetOptions options;
  std::string tokenizer;  ///< URL; empty: the user gave none
  int global_batch = 8, micro_batch = 1, ranks = 1;
  std::optional<std::uint64_t> steps;
  std::optional<double> epochs;
};
/// Returns the request of the job file, if the input is one, else that of the URLs. Other flags override the job file.
/// Errors: kInvalidArgument for values that are not known, and for flags that a job file excludes; those of reading the
/// job file.
Result<DataRequest> ResolveDataFlags(const DataFlags& flags);

}  // namespace millrace::cli
