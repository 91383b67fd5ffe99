// Tokenizes a data set once into a .bin and its .idx, so that no run has to.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/process/work_share.h"
#include "millrace/base/result.h"
#include "millrace/data/options/data_source.h"
#include "millrace/object/connection.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

struct TokenizeOptions {
  std::vector<DataSource> sources;  ///< each object is read once, in this order; weights are ignored
  std::string template_text = "{text}";
  std::string output;        ///< URL without the endings: OUTPUT.bin and OUTPUT.idx
  bool append_eod = true;    ///< add the tokenizer's EOS to every document that has tokens
  bool prepend_bos = false;  ///< put the tokenizer's BOS in front of every such document
  std::string cache_url;     ///< as DatasetOptions::cache_url
  int threads = 2;
  /// Bytes of input in a part. A killed process loses at most one part a thread.
  std::uint64_t part_bytes = 16 * kMiB;
  WorkShare share = {};  ///< the parts that this process makes; the first share joins all of them
};

struct TokenizeSummary {
  std::uint64_t documents = 0, tokens = 0, broken = 0;
  std::uint64_t input_bytes = 0;
  std::size_t parts = 0, resumed = 0;  ///< resumed: parts that an earlier run finished
  int token_bytes = 0;
  bool joined = true;         ///< false: this share is done, and the first one joins all; no documents are counted
  std::size_t own_parts = 0;  ///< of this share
};

/// Reports that `done` of `known` bytes of the input are tokenized. Any thread calls it, one at a time.
using TokenizeProgress = std::function<void(std::uint64_t done, std::uint64_t known)>;

/// Divides the input into parts and tokenizes each into an object in a hidden folder beside the output. When all parts
/// are finished, joins them, inside the store where it can copy, and removes them. A run after a stopped one takes over
/// the finished parts, since they depend on the input and the options alone. Blocks.
///
/// With several shares, each process makes its own parts. The first then waits until the others' parts are there, for
/// as long as that takes, and joins all. The result has the bytes that one process alone would make.
Result<TokenizeSummary> TokenizeToFile(object::Connection& connection, const tokenizer::Tokenizer& tokenizer,
                                       const TokenizeOptions& options, const TokenizeProgress& progress,
                                       const Logger& log, object::Call call = {});

}  // namespace millrace::data
