// Lines of standard input.
#pragma once

#include <stop_token>
#include <string>

#include "millrace/base/result.h"

namespace millrace::cli {

/// Reads standard input. Blocks for input, and gives up with kCancelled when the stop token fires. One thread at a
/// time.
class InputLines {
 public:
  explicit InputLines(std::stop_token stop) : stop_(std::move(stop)) {}

  /// Reads the next line into `line`, without its newline. Returns false at the end of the input.
  /// Errors: kResourceExhausted if the line is longer than 64 MiB; kCancelled.
  Result<bool> Next(std::string& line);
  /// Reads whole lines with their newlines into `lines`: as many as there are without waiting, up to about `bytes`, but
  /// at least one. Returns false at the end of the input. Errors: as Next.
  Result<bool> NextBatch(std::size_t bytes, std::string& lines);

 private:
  /// Appends more input to the pending bytes.
  Status Read();

  std::stop_token stop_;
  std::string pending_;
  std::size_t searched_ = 0;  ///< no newline stands before this offset
  bool ended_ = false;
};

}  // namespace millrace::cli
