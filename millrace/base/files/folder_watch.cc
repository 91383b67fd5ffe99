#include "millrace/base/files/folder_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <functional>

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kChanges = IN_CREATE | IN_CLOSE_WRITE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO |
                                   IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_DONT_FOLLOW;
constexpr int kLongestRounds = 10;

/// Waits for events on the descriptor. Returns false if there were none in time or `wake` is readable.
Result<bool> AwaitEvents(int events, int wake, Duration at_most) {
  using std::chrono::milliseconds;
  const auto wait = std::clamp(std::chrono::ceil<milliseconds>(at_most), milliseconds(0), milliseconds(1 << 30));
  std::array<pollfd, 2> fds = {pollfd{events, POLLIN, 0}, pollfd{wake, POLLIN, 0}};
  if (::poll(fds.data(), fds.size(), static_cast<int>(wait.count())) < 0) {
    if (errno == EINTR) return false;
    return Fail(ErrnoError(errno, "waiting for changes of files"));
  }
  if (fds[1].revents != 0 || fds[0].revents == 0) return false;
  std::array<char, 16 * 1024> drained;
  while (::read(events, drained.data(), drained.size()) > 0) {
  }
  return true;
}

}  // namespace

Result<FolderWatch> FolderWatch::Open(const std::string& folder) {
  UniqueFd events(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!events) return Fail(ErrnoError(errno, "inotify"));
  FolderWatch watch(std::move(events));
  MR_TRY(watch.Add(folder));
  return watch;
}

Status FolderWatch::Add(const std::string& folder) {
  if (::inotify_add_watch(events_.get(), folder.c_str(), kChanges) < 0) {
    if (errno == ENOSPC) {
      return Fail(Code::kResourceExhausted, "{} and others cannot be watched: raise fs.inotify.max_user_watches",
                  folder);
    }
    if (errno == ENOENT || errno == ENOTDIR || errno == EACCES) return {};  // gone meanwhile, or not to be read anyway
    return Fail(ErrnoError(errno, "watching " + folder));
  }
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (fs::is_directory(at->symlink_status(error))) MR_TRY(Add(at->path().string()));
  }
  return {};
}

Status FolderWatch::Wait(Duration at_most, Duration quiet, std::stop_token stop) {
  const UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  const std::stop_callback<std::function<void()>> on_stop(std::move(stop),
                                                          [fd = wake.get()] { ::eventfd_write(fd, 1); });
  if (!MR_TRY(AwaitEvents(events_.get(), wake.get(), at_most))) return {};
  for (int round = 0; round < kLongestRounds && MR_TRY(AwaitEvents(events_.get(), wake.get(), quiet)); ++round) {
  }
  return {};
}

}  // namespace millrace
