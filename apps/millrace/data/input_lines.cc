#include "apps/millrace/data/input_lines.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "millrace/base/bytes.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr std::uint64_t kMaxLineBytes = 64 * kMiB;  // kMaxDocumentBytes: no longer document can be trained on
constexpr std::size_t kReadBytes = 256 * 1024;      // a guess: four times a pipe's buffer

bool IsReadable(int timeout_ms) {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN};
  return ::poll(&input, 1, timeout_ms) != 0;
}

}  // namespace

Result<bool> InputLines::Next(std::string& line) {
  while (true) {
    const std::size_t newline = pending_.find('\n', searched_);
    if (newline != pending_.npos || (ended_ && !pending_.empty())) {
      line = pending_.substr(0, newline);
      pending_.erase(0, newline == pending_.npos ? newline : newline + 1);
      searched_ = 0;
      return true;
    }
    if (ended_) return false;
    searched_ = pending_.size();
    MR_TRY(Read());
  }
}

Result<bool> InputLines::NextBatch(std::size_t bytes, std::string& lines) {
  while (true) {
    const std::size_t behind = std::string_view(pending_).substr(searched_).rfind('\n');
    const bool whole_line = behind != pending_.npos;
    if (whole_line && !ended_ && pending_.size() < bytes && IsReadable(0)) {
      MR_TRY(Read());
      continue;
    }
    if (whole_line || (ended_ && !pending_.empty())) {
      const std::size_t size = ended_ ? pending_.size() : searched_ + behind + 1;
      std::string rest = pending_.substr(size);
      pending_.resize(size);
      lines = std::exchange(pending_, std::move(rest));
      searched_ = pending_.size();
      return true;
    }
    if (ended_) return false;
    searched_ = pending_.size();
    MR_TRY(Read());
  }
}

Status InputLines::Read() {
  constexpr int kPollMilliseconds = 200;  // a guess: Ctrl-C ends the wait at once for a person
  if (pending_.size() > kMaxLineBytes) {
    return Fail(Code::kResourceExhausted, "a line of the input is longer than {}", FormatBytes(kMaxLineBytes));
  }
  while (!IsReadable(kPollMilliseconds)) {
    if (stop_.stop_requested()) return Fail(Code::kCancelled, "interrupted");
  }
  if (stop_.stop_requested()) return Fail(Code::kCancelled, "interrupted");
  const std::size_t before = pending_.size();
  ssize_t got = 0;
  pending_.resize_and_overwrite(before + kReadBytes, [&](char* to, std::size_t) {
    got = ::read(STDIN_FILENO, to + before, kReadBytes);
    return before + static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  });
  if (got < 0 && errno != EINTR) return Fail(ErrnoError(errno, "reading standard input"));
  ended_ = got == 0;
  return {};
}

}  // namespace millrace::cli
