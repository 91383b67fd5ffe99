// `millrace-train outputs`: what a merge did to a model's outputs. `millrace ckpt merge` runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <stop_token>
#include <string>

#include "apps/common/globals.h"
#include "millrace/base/result.h"
#include "millrace/train/compare_outputs.h"

namespace millrace {

struct OutputsArguments {
  train::MergedAdapter merged;
  std::string quantization;  ///< the name of a Quantization; empty: none
  std::int64_t sequences = 4, length = 128;
  std::uint64_t weight_bytes = 0;  ///< 0: half of the machine's memory
};

/// Adds the command. `arguments` must outlive the parsing.
CLI::App* AddOutputsCommand(CLI::App& app, OutputsArguments& arguments);

/// Compares the outputs and prints a JSON object: the keys of train::OutputDifference::ToJson(), with `event`, `of`
/// (data or random) and, for random tokens, `why`. The tokens are of the data that the adapter's run learnt, or random
/// where these data are not there. Instead of failing, prints an object with `error`. Returns the exit status.
int PrintOutputs(const OutputsArguments& arguments, const cli::Globals& globals, std::stop_token stop);

}  // namespace millrace
