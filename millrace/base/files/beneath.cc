#include "millrace/base/files/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/text.h"

namespace millrace {
namespace {

constexpr int kMaxLinksBeneath = 40;  // the kernel's own limit (path_resolution(7))
constexpr mode_t kOwnersFile = 0600;

UniqueFd FailWith(int error) {
  errno = error;
  return {};
}

UniqueFd OpenAt(int folder, const std::string& name, int flags) {
  int opened = -1;
  do opened = ::openat(folder, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, kOwnersFile);
  while (opened < 0 && errno == EINTR);
  return UniqueFd(opened);
}

/// The walk from a folder to one path below it. Each component is opened from the handle of the one before, and no call
/// follows a link: a component that another process replaces by a link leads nowhere else. ".." walks again from the
/// folder, because the kernel's ".." leads out of it if the component before was moved away.
class BeneathWalk {
 public:
  BeneathWalk(int root, BeneathLinks links) : root_(root), links_(links) {}

  UniqueFd Open(std::string_view path, int flags) {
    if (path.starts_with('/') && links_ == BeneathLinks::kRefuse) return FailWith(EXDEV);
    Prepend(path);
    const bool made_new = (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0;
    const bool follow_last = (flags & O_NOFOLLOW) == 0 && !made_new;
    while (!rest_.empty()) {
      const std::string name = std::move(rest_.front());
      rest_.pop_front();
      if (name == "..") {
        if (!GoUp()) return {};
        continue;
      }
      UniqueFd next = OpenAt(at(), name, O_PATH);
      const bool last = rest_.empty();
      struct stat info{};
      if (!next && (!last || errno != ENOENT)) return {};
      if (next && ::fstat(next.get(), &info) != 0) return {};
      if (next && S_ISLNK(info.st_mode) && (!last || follow_last || folder_only_)) {
        if (!EnterLink(next)) return {};
        continue;
      }
      if (last) return OpenAt(at(), name, folder_only_ ? flags | O_DIRECTORY : flags);
      if (!S_ISDIR(info.st_mode)) return FailWith(ENOTDIR);
      walked_.push_back(name);
      at_ = std::move(next);
    }
    return OpenAt(at(), ".", flags);
  }

 private:
  int at() const { return at_ ? at_.get() : root_; }

  void Prepend(std::string_view path) {
    if (rest_.empty()) folder_only_ = folder_only_ || path.ends_with('/') || path.ends_with("/.");
    std::vector<std::string> names;
    for (std::string_view name : Split(path, '/')) {
      if (!name.empty() && name != ".") names.emplace_back(name);
    }
    rest_.insert(rest_.begin(), names.begin(), names.end());
  }

  /// Begins again at the folder, on the way to `walked_`.
  void StartOver() {
    rest_.insert(rest_.begin(), walked_.begin(), walked_.end());
    walked_.clear();
    at_.Reset();
  }

  bool GoUp() {
    if (walked_.empty() && links_ == BeneathLinks::kRefuse) {
      errno = EXDEV;
      return false;
    }
    if (!walked_.empty()) walked_.pop_back();
    StartOver();
    return true;
  }

  bool EnterLink(const UniqueFd& link) {
    errno = ELOOP;
    if (links_ == BeneathLinks::kRefuse || ++count_ > kMaxLinksBeneath) return false;
    std::array<char, PATH_MAX> target{};
    const ssize_t size = ::readlinkat(link.get(), "", target.data(), target.size());
    if (size <= 0) return false;
    const std::string_view text(target.data(), static_cast<std::size_t>(size));
    Prepend(text);
    if (text.starts_with('/')) {
      walked_.clear();
      at_.Reset();
    }
    return true;
  }

  const int root_;
  const BeneathLinks links_;
  UniqueFd at_;                      ///< the folder reached; invalid: root_
  std::vector<std::string> walked_;  ///< from root_ to at_, without links
  std::deque<std::string> rest_;     ///< the components after at_
  bool folder_only_ = false;         ///< the last component must be a folder: a slash follows it
  int count_ = 0;                    ///< links entered
};

}  // namespace

UniqueFd OpenBeneath(int root, std::string_view path, int flags, BeneathLinks links) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags) | O_CLOEXEC;
  if ((flags & O_CREAT) != 0) how.mode = kOwnersFile;
  how.resolve = links == BeneathLinks::kInRoot ? RESOLVE_IN_ROOT : RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const std::string name(path.empty() ? "." : path);
  for (;;) {
    const long fd = ::syscall(SYS_openat2, root, name.c_str(), &how, sizeof how);
    if (fd >= 0) return UniqueFd(static_cast<int>(fd));
    // EPERM: a seccomp profile from before openat2 refuses it so. If the file itself is the reason, the walk says so.
    if (errno == ENOSYS || errno == EPERM) return WalkBeneath(root, path, flags, links);
    // EAGAIN: a rename below the folder raced with the resolution of "..".
    if (errno != EINTR && errno != EAGAIN) return {};
  }
}

UniqueFd WalkBeneath(int root, std::string_view path, int flags, BeneathLinks links) {
  return BeneathWalk(root, links).Open(path, flags);
}

}  // namespace millrace
