// Tokenizes whole data sets into a .bin with its .idx, once, so that no run has to.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/data/loader.h"
#include "millrace/object/connection.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

struct TokenizeOptions {
  std::vector<Source> sources;  ///< each object once, in their order; weights do not matter
  std::string template_text = "{text}";
  std::string output;        ///< URL of what OUTPUT.bin and OUTPUT.idx have in common
  bool append_eod = true;    ///< the tokenizer's EOS behind every document that has tokens
  bool prepend_bos = false;  ///< its BOS in front of every document that has tokens
  std::string cache_url;     ///< as in DatasetOptions
  int threads = 2;
  std::uint64_t part_bytes = 16 * kMiB;  ///< of input; what is lost at most, times threads, when the process is killed
};

struct TokenizeSummary {
  std::uint64_t documents = 0, tokens = 0, broken = 0;
  std::uint64_t input_bytes = 0;
  std::size_t parts = 0, resumed = 0;  ///< resumed: finished by an earlier run
  int token_bytes = 0;
};

/// Told of the input: `done` bytes of `known` so far. Called by any thread, one at a time.
using TokenizeProgress = std::function<void(std::uint64_t done, std::uint64_t known)>;

/// The input is cut into parts; each is tokenized into an object of its own in a hidden folder beside the output, and
/// once all are there they are joined, inside the store as far as it can, and removed. A run that was stopped goes on
/// where it was: what it leaves depends on the input and the options alone. Blocks.
Result<TokenizeSummary> TokenizeToFile(object::Connection& connection, const tokenizer::Tokenizer& tokenizer,
                                       const TokenizeOptions& options, const TokenizeProgress& progress,
                                       const Logger& log, object::Call call = {});

}  // namespace millrace::data
