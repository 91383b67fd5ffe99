// Reads the lines that another process appends to a file.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace::jobs {

/// Reads a growing file from the beginning. The file may not exist yet. One owner, one thread.
class LogFollower {
 public:
  explicit LogFollower(std::filesystem::path path) : path_(std::move(path)) {}

  /// Calls `on_line` with every line completed since the last call, without its newline. Lines longer than 64 KiB come
  /// in pieces. Returns false after reading has failed; later calls then do nothing.
  bool Poll(const std::function<void(std::string_view)>& on_line);
  /// Leaves out all but the last `lines` lines that are there. Call it first. Returns false if the file cannot be read.
  bool SkipToTail(int lines);
  /// Like Poll(), but the text after the last newline counts as a line. Call it when the writer has ended.
  bool Drain(const std::function<void(std::string_view)>& on_line);

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  std::uint64_t offset_ = 0;
  std::string partial_;
  bool failed_ = false;
};

/// Returns the last `lines` lines of a file, after its first `begin` bytes and within its last 16 KiB. Returns "" if
/// the file cannot be read.
std::string TailOf(const std::filesystem::path& path, std::uint64_t begin, int lines);

}  // namespace millrace::jobs
