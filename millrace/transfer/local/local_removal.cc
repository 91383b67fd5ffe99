#include "millrace/transfer/local/local_removal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "millrace/base/files/beneath.h"
#include "millrace/base/files/special_file.h"
#include "millrace/base/hash/random.h"
#include "millrace/object/local/paths.h"

namespace millrace::transfer {
namespace {

constexpr long kFuseMagic = 0x65735546;  // FUSE_SUPER_MAGIC of statfs(2)

/// Opens a folder below `root` and follows no symbolic links. Returns an invalid descriptor, with errno set, on
/// failure.
UniqueFd OpenFolderBelow(int root, const std::string& path) {
  return OpenBeneath(root, path, O_RDONLY | O_DIRECTORY, BeneathLinks::kRefuse);
}

bool SameTime(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

bool SameInode(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

bool SameState(const struct stat& a, const struct stat& b) {
  return SameInode(a, b) && a.st_size == b.st_size && SameTime(a.st_mtim, b.st_mtim);
}

/// Returns whether it is the file that was sent, unchanged. A file with several names may have a new ctime: adding or
/// removing another hard link changes it.
bool IsUnchanged(const struct stat& now, const struct stat& sent) {
  return SameState(now, sent) && (sent.st_nlink > 1 || SameTime(now.st_ctim, sent.st_ctim));
}

Error Replaced(const std::string& path) {
  return {Code::kStale, fmt::format("{} was sent, but another version has its name now; that one stays", path)};
}

/// Renames a file from its private name back to its own. Never replaces a file that has that name meanwhile.
Status PutBack(int folder, const std::string& hidden, const std::string& name, const std::string& path) {
  if (renameat2(folder, hidden.c_str(), folder, name.c_str(), RENAME_NOREPLACE) == 0) return {};
  if (errno == EINVAL && linkat(folder, hidden.c_str(), folder, name.c_str(), 0) == 0) {
    unlinkat(folder, hidden.c_str(), 0);
    return {};
  }
  return Fail(ErrnoError(errno, fmt::format("{} was replaced while it was moved; a version that was not sent is in {} "
                                            "beside it",
                                            path, hidden)));
}

}  // namespace

/// A name and the handle of its folder.
struct LocalRemover::OpenedName {
  UniqueFd folder;  ///< invalid if the folder could not be opened
  std::string name;
  int why = 0;  ///< the errno of that failure
};

Result<LocalRemover> LocalRemover::Open(const std::string& folder) {
  std::string path = folder;
  while (path.ends_with('/')) path.pop_back();
  return LocalRemover(MR_TRY(OpenFile(folder, O_RDONLY | O_DIRECTORY)), std::move(path));
}

Result<LocalRemover::OpenedName> LocalRemover::Find(const std::string& name) const {
  object::KeyPath path = MR_TRY(object::PathOfKey(name.ends_with('/') ? name.substr(0, name.size() - 1) : name));
  UniqueFd folder = OpenFolderBelow(root_.get(), path.folder);
  if (folder) return OpenedName{std::move(folder), std::move(path.name)};
  if (errno == ELOOP || errno == ENOENT || errno == ENOTDIR) return OpenedName{{}, std::move(path.name), errno};
  return Fail(ErrnoError(errno, "opening the folder of " + PathOf(name)));
}

std::optional<std::string> LocalRemover::LinkOn(const std::string& name) const {
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    const auto path = object::PathOfKey(std::string_view(name).substr(0, slash));
    struct stat status;
    if (!path) return std::nullopt;
    const UniqueFd folder = OpenFolderBelow(root_.get(), path->folder);
    if (!folder || fstatat(folder.get(), path->name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
    if (S_ISLNK(status.st_mode)) return name.substr(0, slash);
  }
  return std::nullopt;
}

Result<LocalRemover::Outcome> LocalRemover::Remove(const std::string& name) const {
  const OpenedName at = MR_TRY(Find(name));
  if (!at.folder) return at.why == ELOOP ? Outcome::kBehindLink : Outcome::kAbsent;
  struct stat now;
  if (fstatat(at.folder.get(), at.name.c_str(), &now, AT_SYMLINK_NOFOLLOW) != 0) return Outcome::kAbsent;
  if (const std::string_view type = SpecialTypeOf(now.st_mode); !type.empty()) {
    return Fail(Code::kStale, "{} is {}, not a file; it stays", PathOf(name), type);
  }
  if (name.ends_with('/') && !S_ISLNK(now.st_mode)) {
    return Fail(Code::kStale, "{} is no symbolic link any more; it stays", PathOf(name));
  }
  if (unlinkat(at.folder.get(), at.name.c_str(), 0) == 0) return Outcome::kRemoved;
  if (errno == ENOENT) return Outcome::kAbsent;
  return Fail(ErrnoError(errno, "removing " + PathOf(name)));
}

Result<LocalRemover::Outcome> LocalRemover::RemoveSent(const std::string& name, const LocalFile& sent) const {
  const OpenedName at = MR_TRY(Find(name));
  if (!at.folder) return at.why == ELOOP ? Outcome::kBehindLink : Outcome::kAbsent;
  const int folder = at.folder.get();
  struct stat now, target;
  if (fstatat(folder, at.name.c_str(), &now, AT_SYMLINK_NOFOLLOW) != 0) return Outcome::kAbsent;
  const bool leads_to_sent = S_ISLNK(now.st_mode)
                                 ? fstatat(folder, at.name.c_str(), &target, 0) == 0 && SameInode(target, sent.state())
                                 : IsUnchanged(now, sent.state());
  if (!leads_to_sent) return std::unexpected(Replaced(PathOf(name)));
  struct statfs system;
  // Under a private name nobody can replace the file between its check and its removal. A FUSE file system may copy a
  // file to rename it. There the check above must be enough.
  if (fstatfs(folder, &system) == 0 && system.f_type == kFuseMagic) {
    if (unlinkat(folder, at.name.c_str(), 0) == 0 || errno == ENOENT) return Outcome::kRemoved;
    return Fail(ErrnoError(errno, "removing " + PathOf(name)));
  }
  // A reserved name: if the process dies here, no later command takes the file for an object.
  const std::string hidden = std::string(object::kTempName) + SecureHex(8);
  if (renameat(folder, at.name.c_str(), folder, hidden.c_str()) != 0) {
    if (errno == ENOENT) return Outcome::kAbsent;
    return Fail(ErrnoError(errno, "removing " + PathOf(name)));
  }
  struct stat held;
  if (fstatat(folder, hidden.c_str(), &held, AT_SYMLINK_NOFOLLOW) != 0 || !SameState(held, now)) {
    MR_TRY(PutBack(folder, hidden, at.name, PathOf(name)));
    return std::unexpected(Replaced(PathOf(name)));
  }
  if (unlinkat(folder, hidden.c_str(), 0) == 0) return Outcome::kRemoved;
  const Error failed = ErrnoError(errno, "removing " + PathOf(name));
  MR_TRY(PutBack(folder, hidden, at.name, PathOf(name)));
  return std::unexpected(failed);
}

}  // namespace millrace::transfer
