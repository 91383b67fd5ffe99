#include "millrace/jobs/launchers/log_follower.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace millrace::jobs {
namespace {

// Both bound the memory. Lines of a log have some hundred bytes.
constexpr std::size_t kMaxLine = 64 * kKiB;
constexpr std::size_t kMaxTail = 16 * kKiB;

}  // namespace

bool LogFollower::Poll(const std::function<void(std::string_view)>& on_line) {
  if (failed_) return false;
  if (!file_) {
    auto file = OpenFile(path_, O_RDONLY);
    if (!file) return file.error().code() == Code::kNotFound;
    file_ = *std::move(file);
  }
  char chunk[kMaxLine];
  for (;;) {
    ssize_t n = ::pread(file_.get(), chunk, sizeof chunk, static_cast<off_t>(offset_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed_ = true;
    if (n <= 0) return n == 0;
    offset_ += static_cast<std::uint64_t>(n);
    std::string_view rest(chunk, static_cast<std::size_t>(n));
    for (std::size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      partial_ += rest.substr(0, end);
      on_line(partial_);
      partial_.clear();
    }
    partial_ += rest;
    if (partial_.size() >= kMaxLine) {
      on_line(partial_);
      partial_.clear();
    }
  }
}

bool LogFollower::SkipToTail(int lines) {
  auto file = OpenFile(path_, O_RDONLY);
  struct stat info{};
  if (!file || ::fstat(file->get(), &info) != 0) return false;
  const auto size = static_cast<std::uint64_t>(info.st_size);
  char chunk[kMaxLine];
  int newlines = 0;
  for (std::uint64_t end = size; end > 0;) {
    const std::uint64_t begin = end - std::min<std::uint64_t>(end, sizeof chunk);
    const ssize_t n = ::pread(file->get(), chunk, end - begin, static_cast<off_t>(begin));
    if (n != static_cast<ssize_t>(end - begin)) return false;
    for (std::uint64_t at = end; at-- > begin;) {
      // The newline at the end ends the last line; it does not begin one.
      if (chunk[at - begin] != '\n' || at + 1 == size || ++newlines < lines) continue;
      offset_ = at + 1;
      return true;
    }
    end = begin;
  }
  return true;
}

bool LogFollower::Drain(const std::function<void(std::string_view)>& on_line) {
  bool good = Poll(on_line);
  if (!partial_.empty()) on_line(partial_);
  partial_.clear();
  return good;
}

std::string TailOf(const std::filesystem::path& path, std::uint64_t begin, int lines) {
  auto file = OpenFile(path, O_RDONLY);
  if (!file) return {};
  auto size = static_cast<std::uint64_t>(std::max<off_t>(::lseek(file->get(), 0, SEEK_END), 0));
  std::string text(std::min<std::uint64_t>(kMaxTail, size - std::min(begin, size)), '\0');
  if (!ReadExactly(file->get(), AsWritableBytes(text), size - text.size(), path.string())) return {};
  while (text.ends_with('\n')) text.pop_back();
  std::size_t start = text.size();
  for (int i = 0; i < lines && start != std::string::npos && start > 0; ++i) start = text.rfind('\n', start - 1);
  return start == std::string::npos || start == 0 ? text : text.substr(start + 1);
}

}  // namespace millrace::jobs
