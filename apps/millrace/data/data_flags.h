// The data of a command: a job file, or flags with the same names as its data section.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/data/options/dataset_options.h"

namespace millrace::cli {

/// Replaces the escapes "\n", "\t" and "\\" by newline, tab and backslash.
std::string Unescape(std::string_view text);

/// Help for each flag that tokenizer::OpenTokenizer reads.
inline constexpr char kTokenizerHelp[] =
    "URL of the tokenizer, or of a model that has one: SentencePiece, tokenizer.json, tekken.json, vocab.txt or "
    ".tiktoken (of unpublished "
    "ranks the name tells the pattern: ranks.cl100k.tiktoken; gpt2, cl100k, llama3, qwen, o200k)";

/// The values of the flags.
struct DataFlags {
  std::vector<std::string> inputs;  ///< one JOB.yaml, or URLs
  std::vector<std::string> set;
  std::vector<double> weights;
  std::string tokenizer, template_text, objective, mode, layout, response, instruction_template, response_template,
      part, index_cache, format, split;
  bool best_fit = false, split_long = false, boundaries = false;
  std::optional<double> held_out;
  int sequence_length = 0, global_batch = 0, threads = 0;
  std::optional<std::uint64_t> seed, window, split_seed, max_broken;
};
/// Adds the flags to a command. `flags` must outlive it.
void AddDataFlags(CLI::App& command, DataFlags& flags);

/// The data that the flags or the job file ask for.
struct DataRequest {
  data::DatasetOptions options;
  std::string tokenizer;  ///< URL; empty: none given
  int global_batch = 8, micro_batch = 1, ranks = 1;
  std::optional<std::uint64_t> steps;
  std::optional<double> epochs;
};
Result<DataRequest> ResolveDataFlags(const DataFlags& flags);

}  // namespace millrace::cli
