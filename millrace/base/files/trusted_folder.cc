#include "millrace/base/files/trusted_folder.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;           // the kernel's own limit (path_resolution(7))
constexpr mode_t kOwnersFolder = 0700;  // for the owner alone
constexpr mode_t kGroupMayWrite = S_IWGRP, kAllMayWrite = S_IWOTH;

bool IsInGroup(gid_t group) {
  if (group == ::getegid()) return true;
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(0, count)));
  return std::ranges::find(groups, group) != groups.end();
}

/// Returns whether this process's user is the only member of the group, as far as the user database knows. That holds
/// for a "user private group", which has the user's name and lists nobody else. It also holds for a group without a
/// name that this process is in, such as the fsGroup of a Kubernetes volume.
bool IsOwnGroup(gid_t group) {
  if (!IsInGroup(group)) return false;
  std::array<char, 16 * kKiB> group_text{}, user_text{};
  struct group group_entry{}, *found_group = nullptr;
  passwd user_entry{}, *found_user = nullptr;
  if (::getgrgid_r(group, &group_entry, group_text.data(), group_text.size(), &found_group) != 0) return false;
  if (found_group == nullptr) return true;
  ::getpwuid_r(::geteuid(), &user_entry, user_text.data(), user_text.size(), &found_user);
  if (found_user == nullptr) return false;
  const std::string_view user = found_user->pw_name;
  if (user != found_group->gr_name) return false;
  for (char** member = found_group->gr_mem; *member != nullptr; ++member) {
    if (user != *member) return false;
  }
  return true;
}

/// Returns whether the inode has an access control list. The group bits of its mode are then the list's mask, and the
/// list may name any user.
bool HasAccessList(int fd) {
  const std::string handle = fmt::format("/proc/self/fd/{}", fd);
  return ::getxattr(handle.c_str(), "system.posix_acl_access", nullptr, 0) > 0;
}

/// The walk from "/" to one folder.
class FolderWalk {
 public:
  FolderWalk(const fs::path& path, const FolderRole& role, MissingFolder missing)
      : path_(fs::absolute(path)), role_(role), missing_(missing) {
    for (const fs::path& component : path_) rest_.push_back(component);
    std::erase_if(rest_, [](const std::string& name) { return name.empty() || name == "." || name == "/"; });
  }

  Result<UniqueFd> Open() {
    MR_TRY(StartAtRoot());
    while (!rest_.empty()) {
      const std::string name = std::move(rest_.front());
      rest_.pop_front();
      MR_TRY(Step(name));
    }
    UniqueFd folder(::openat(at_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return SystemFailure("opening");
    return folder;
  }

 private:
  Status StartAtRoot() {
    at_ = MR_TRY(OpenFile("/", O_PATH | O_DIRECTORY));
    at_name_ = "/";
    return Check();
  }

  Status Step(const std::string& name) {
    const bool last = rest_.empty();
    UniqueFd next(::openat(at_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!next && errno == ENOENT) {
      if (missing_ == MissingFolder::kFail) return SystemFailure("opening");
      if (::mkdirat(at_.get(), name.c_str(), kOwnersFolder) != 0 && errno != EEXIST) return SystemFailure("making");
      next = UniqueFd(::openat(at_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    }
    struct stat info{};
    if (!next || ::fstat(next.get(), &info) != 0) return SystemFailure("opening");
    const std::string next_name = (fs::path(at_name_) / name).string();
    if (S_ISLNK(info.st_mode)) {
      if (last) return Refuse(fmt::format("{} is a symbolic link; name the folder itself", next_name));
      return FollowLink(next, next_name, info);
    }
    if (!S_ISDIR(info.st_mode)) {
      return Fail(Code::kNotDirectory, "{} {} cannot be used: {} is not a folder{}", role_.what, path_.string(),
                  next_name, Cure());
    }
    at_ = std::move(next);
    at_name_ = next_name;
    return Check();
  }

  Status FollowLink(const UniqueFd& link, const std::string& name, const struct stat& info) {
    const bool ours = info.st_uid == 0 || info.st_uid == ::geteuid();
    if (!ours || stranger_on_the_way_) {
      return Refuse(fmt::format("{} is a symbolic link that another user may have made", name), "; ");
    }
    if (++links_ > kMaxLinks) return Refuse(fmt::format("{} is a symbolic link in a circle", name), "; ");
    std::array<char, PATH_MAX> target{};
    const ssize_t size = ::readlinkat(link.get(), "", target.data(), target.size());
    if (size <= 0) return SystemFailure("reading a symbolic link of");
    const fs::path to(std::string(target.data(), static_cast<std::size_t>(size)));
    std::deque<std::string> ahead;
    for (const fs::path& component : to) {
      const std::string text = component.string();
      if (!text.empty() && text != "." && text != "/") ahead.push_back(text);
    }
    rest_.insert(rest_.begin(), ahead.begin(), ahead.end());
    return to.is_absolute() ? StartAtRoot() : Status();
  }

  /// Checks the folder at_: as the wanted folder if no components are left, else as a parent.
  Status Check() {
    struct stat info{};
    if (::fstat(at_.get(), &info) != 0) return SystemFailure("opening");
    const bool last = rest_.empty();
    if (last && info.st_uid != ::geteuid()) {
      return Refuse(fmt::format("it belongs to user {}, not to user {}, who runs this", info.st_uid, ::geteuid()),
                    "; ");
    }
    if (info.st_uid != 0 && info.st_uid != ::geteuid()) stranger_on_the_way_ = true;
    if (!OthersMayWrite(at_.get(), info)) return {};
    const unsigned mode = info.st_mode & 07777;
    if (last) {
      return Refuse(
          fmt::format("other users may write to it (mode {:04o}); if its content can be trusted, take that "
                      "right away with `chmod go-w {}`",
                      mode, at_name_));
    }
    if ((info.st_mode & S_ISVTX) != 0) return {};
    return Refuse(
        fmt::format("other users may write to {} (mode {:04o}), and so put another folder in its place; take "
                    "that right away with `chmod go-w {}`",
                    at_name_, mode, at_name_));
  }

  std::string Cure() const { return role_.cure.empty() ? std::string() : fmt::format("; {}", role_.cure); }
  /// `joint` is the text between the reason and the role's cure. The reason may contain a cure of its own.
  std::unexpected<Error> Refuse(const std::string& why, std::string_view joint = ", or ") const {
    const std::string cure = role_.cure.empty() ? std::string() : fmt::format("{}{}", joint, role_.cure);
    return Fail(Code::kPermissionDenied, "{} {} is not used: {}{}", role_.what, path_.string(), why, cure);
  }
  std::unexpected<Error> SystemFailure(std::string_view doing) const {
    const Error why = ErrnoError(errno, fmt::format("{} {} {}", doing, role_.what, path_.string()));
    return Fail(Error(why.code(), why.ToString() + Cure()));
  }

  const fs::path path_;
  const FolderRole& role_;
  const MissingFolder missing_;
  std::deque<std::string> rest_;  ///< the components after at_
  UniqueFd at_;
  std::string at_name_;
  bool stranger_on_the_way_ = false;  ///< another user owns a parent; later links are refused
  int links_ = 0;
};

}  // namespace

bool OthersMayWrite(int fd, const struct stat& info) {
  if ((info.st_mode & kAllMayWrite) != 0) return true;
  if ((info.st_mode & kGroupMayWrite) == 0) return false;
  return HasAccessList(fd) || !IsOwnGroup(info.st_gid);
}

Result<UniqueFd> OpenTrustedFolder(const fs::path& path, const FolderRole& role, MissingFolder missing) {
  if (path.empty()) return Fail(Code::kInvalidArgument, "{} has no name; name a folder", role.what);
  return FolderWalk(path, role, missing).Open();
}

}  // namespace millrace
