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

  /// Puts the next line into `line`, without its newline. False at the end of the input. Fails with kResourceExhausted
  /// on a line of more than 64 MiB.
  Result<bool> Next(std::string& line);
  /// Puts whole lines with their newlines into `lines`: as many as there are without waiting, up to about `bytes`, but
  /// one at least. False at the end. Fails as Next does.
  Result<bool> NextBatch(std::size_t bytes, std::string& lines);

 private:
  /// Reads some more behind what is pending, which is no whole line if it is long.
  Status Read();

  std::stop_token stop_;
  std::string pending_;
  std::size_t searched_ = 0;  ///< no newline is in front of it
  bool ended_ = false;
};

}  // namespace millrace::cli
