// Reads lines from pipes and writes lines to them. A pipe may have a part of a line at a time.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"

namespace millrace::jobs {

/// Collects bytes of a descriptor and divides them into lines. Does not block if the descriptor is readable.
class LineBuffer {
 public:
  /// The longest line of an agent has a job file and an environment. A line beyond this limit does not come from an
  /// agent.
  static constexpr std::size_t kMaxLine = 16 * kMiB;

  /// Reads what is there, at most 64 KiB. Returns false at the end, after an error, and if a line is too long.
  bool Fill(int fd) {
    char chunk[64 * kKiB];
    const ssize_t n = ::read(fd, chunk, sizeof chunk);
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    if (n == 0) return false;
    text_.append(chunk, static_cast<std::size_t>(n));
    return text_.size() - begin_ <= kMaxLine;
  }

  /// Returns the next whole line, without its newline.
  std::optional<std::string> Next() {
    const std::size_t end = text_.find('\n', begin_);
    if (end == std::string::npos) {
      text_.erase(0, begin_);
      begin_ = 0;
      return std::nullopt;
    }
    std::string line = text_.substr(begin_, end - begin_);
    begin_ = end + 1;
    return line;
  }

 private:
  std::string text_;
  std::size_t begin_ = 0;
};

/// Writes a line to a pipe. Returns false if nobody reads it any more; then the last line may be cut. If the descriptor
/// does not block, its reader has `patience_ms` to make room, in which this process runs. REQUIRES: the process ignores
/// SIGPIPE.
inline bool WriteLine(int fd, std::string line, int patience_ms = 0) {
  constexpr int kTickMs = 1000;  // a wait that a stop of this process makes longer counts as one
  int left_ms = patience_ms;
  line += '\n';
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t n = ::write(fd, rest.data(), rest.size());
    if (n > 0) {
      rest.remove_prefix(static_cast<std::size_t>(n));
      left_ms = patience_ms;
    }
    if (n >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN || left_ms <= 0) return false;
    pollfd pipe{.fd = fd, .events = POLLOUT, .revents = 0};
    const int wait_ms = std::min(left_ms, kTickMs);
    if (::poll(&pipe, 1, wait_ms) == 0) left_ms -= wait_ms;
  }
  return true;
}

}  // namespace millrace::jobs
