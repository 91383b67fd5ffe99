#include "millrace/vfs/read/readahead.h"

#include <algorithm>

namespace millrace::vfs {
namespace {

/// The longest skips that do not end a sequence.
constexpr std::uint64_t kSkipForward = 16 * kMiB, kSkipBack = 1 * kMiB;

}  // namespace

bool ReadaheadWindow::Follows(std::uint64_t offset, std::uint64_t length) const {
  if (!started_) return offset < options_.initial;
  // After a jump, the next read or one sent out of order with it.
  if (window_ == 0) return offset <= expected_ + 2 * length && offset + 2 * length >= expected_;
  return offset <= std::max(expected_, ahead_) + kSkipForward && offset + kSkipBack >= expected_;
}

ReadaheadWindow::Plan ReadaheadWindow::OnRead(std::uint64_t offset, std::uint64_t length, std::uint64_t bound) {
  const std::uint64_t end = offset + length;
  const bool follows = Follows(offset, length);
  started_ = true;
  if (!follows) {
    window_ = 0;
    expected_ = end;
    return {.exact = true};
  }
  if (window_ == 0) {
    window_ = std::min(options_.initial, bound);
    ahead_ = 0;
    expected_ = end;
  }
  expected_ = std::max(expected_, end);
  ahead_ = std::max(ahead_, expected_);
  // A part is asked for as soon as there is room for it: parts wait for the server's first byte while others arrive.
  const std::uint64_t step = std::min(window_ / 2, options_.part);
  if (ahead_ - expected_ > window_ - step) return {};
  std::uint64_t until = expected_ + window_;
  if (window_ >= options_.part) until = (until + options_.part - 1) / options_.part * options_.part;
  window_ = std::min(window_ * 2, std::max(bound, options_.initial));
  return {.prefetch_from = ahead_, .prefetch_length = until - std::min(until, ahead_)};
}

void ReadaheadWindow::OnPrefetched(const Plan& plan, std::uint64_t accepted) {
  ahead_ = std::max(ahead_, plan.prefetch_from + accepted);
  // The plan has doubled the window already.
  if (accepted < plan.prefetch_length) window_ = std::max(window_ / 4, std::min(window_, options_.initial));
}

}  // namespace millrace::vfs
