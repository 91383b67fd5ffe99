// Reads the lines that another process appends to a file.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace::jobs {

/// Remembers how far it has read. The file may not exist yet. One owner, one thread.
class LogFollower {
 public:
  explicit LogFollower(std::filesystem::path path) : path_(std::move(path)) {}

  /// Hands every line completed since the last call to `on_line`, without its newline; lines longer than 64 KiB come in
  /// pieces. Returns false once reading fails, after which the file is left alone.
  bool Poll(const std::function<void(std::string_view)>& on_line);
  /// Like Poll, and what follows the last newline counts as a line: for when the writer has ended.
  bool Drain(const std::function<void(std::string_view)>& on_line);

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  std::uint64_t offset_ = 0;
  std::string partial_;
  bool failed_ = false;
};

/// The last `lines` lines of a file behind its first `begin` bytes, looking at no more than its last 16 KiB; "" when it
/// cannot be read.
std::string TailOf(const std::filesystem::path& path, std::uint64_t begin, int lines);

}  // namespace millrace::jobs
