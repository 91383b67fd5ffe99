// Parts of `millrace tokenizer` that have files of their own.
#pragma once

#include <string>

#include "apps/millrace/cli/cli.h"

namespace millrace::cli {

struct EncodeOptions {
  std::string model;      ///< URL or path
  bool specials = false;  ///< BOS in front of each document, and EOS behind it
};
/// Reads documents from standard input, one a line, and writes the ids of each to standard output as one line, in
/// order. Uses all cores; holds a few batches of lines for each. Stops with an error at the first line that cannot be
/// used, after the output of the lines before it.
Status EncodeInput(const Context& context, const EncodeOptions& options);

}  // namespace millrace::cli
