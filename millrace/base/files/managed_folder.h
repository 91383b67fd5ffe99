// A folder on local disk whose files Millrace makes, changes and removes by itself: staged writes, a disk cache, the
// root of the embedded S3 endpoint, local checkpoints. All of them are opened here, so that Millrace never touches a
// file of somebody else, and never trusts a file that somebody else may have put there.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/files/trusted_folder.h"
#include "millrace/base/result.h"

namespace millrace {

/// What a name in a managed folder stands for. A name has a form only if Millrace makes exactly such names.
enum class NameForm { kForeign, kFile, kFolder };

/// A handle of a managed folder. The path is resolved once, at Open; files are reached through the handle by a name of
/// one component, and symbolic links are never followed. So a folder or a parent that is renamed or swapped for a link
/// later leads nowhere else. (One component needs no openat2: O_NOFOLLOW is all that RESOLVE_NO_SYMLINKS and
/// RESOLVE_BENEATH would add.) Movable; the methods are const and thread-safe.
///
/// A folder is used only if it passes OpenTrustedFolder and
///   - it did not exist, or is empty (but for lost+found and other managed folders): it gets the marker kMarkerName; or
///   - it carries a marker of this kind, which the effective user wrote; or
///   - it carries none, but is what a release before the marker left: the file Kind::sign, if any, is there, every name
///     has a form of this kind, and every file is regular, has one link, belongs to the effective user and can be
///     written by no one else. It then gets the marker.
/// In a folder with a marker, names of other forms are neither touched nor told.
class ManagedFolder {
 public:
  static constexpr char kMarkerName[] = ".millrace-folder";

  struct Kind {
    std::string_view holds;              ///< in the marker: "staging"
    std::uint64_t version = 1;           ///< in the marker: of the format of the folder's content
    FolderRole role;                     ///< in error messages
    std::string_view sign;               ///< the file that earlier releases always made; empty: names alone tell
    NameForm (*form)(std::string_view);  ///< must not accept kMarkerName, "." and ".."
  };

  /// Opens the folder at `path`, makes it if it is missing. Several processes may do so at a time. `kind` must outlive
  /// the folder. May wait for another process that is writing the marker.
  /// Errors: those of OpenTrustedFolder; kInvalidArgument if the content is not Millrace's, or of another kind;
  /// kUnsupported if a later release made it.
  static Result<ManagedFolder> Open(const std::filesystem::path& path, const Kind& kind);
  /// The folder `name` in this one, made with mode 0700 if it is missing. It carries no marker of its own; `kind` says
  /// which names it has, and must outlive it.
  /// Errors: kPermissionDenied if it belongs to another user or can be written by one; kNotDirectory if it is a link.
  Result<ManagedFolder> Below(const std::string& name, const Kind& kind) const;

  /// open(2) with O_CLOEXEC and O_NOFOLLOW; new files get mode 0600. Never waits for the other end of a pipe.
  /// Errors: kPermissionDenied if the file is not a regular one of the effective user.
  Result<UniqueFd> OpenFile(const std::string& name, int flags) const;
  /// Fails with kResourceExhausted beyond `max_bytes`.
  Result<std::string> ReadFile(const std::string& name, std::uint64_t max_bytes) const;
  /// The file holds either the old or the new content, after a power failure too.
  Status WriteFileAtomic(const std::string& name, ByteSpan content) const;
  bool Has(const std::string& name) const;
  /// Fails with kNotFound if there is no such file.
  Status Remove(const std::string& name) const;
  Status Rename(const std::string& from, const std::string& to) const;
  /// All names that have a form, in no order.
  Result<std::vector<std::string>> Names() const;
  /// Makes names durable.
  Status Sync() const;

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return fd_.get(); }

 private:
  ManagedFolder(std::filesystem::path path, const Kind& kind, UniqueFd fd)
      : path_(std::move(path)), kind_(&kind), fd_(std::move(fd)) {}
  Result<bool> HasMarker() const;
  Status CheckContent() const;
  Status CheckEntry(const std::string& name) const;
  Status WriteMarker() const;
  std::unexpected<Error> Refuse(const std::string& why) const;

  std::filesystem::path path_;
  const Kind* kind_;
  UniqueFd fd_;
};

/// The folder that caches and staged files go to unless told otherwise: $XDG_CACHE_HOME/millrace, else
/// $HOME/.cache/millrace, else, for a service of root that has no HOME, /var/cache/millrace. Makes nothing.
/// Fails with kInvalidArgument, naming `flag`, if there is none of them.
Result<std::filesystem::path> DefaultCacheFolder(std::string_view flag);

/// Whether all of `text` are lower-case hexadecimal digits and there are `digits` of them: for NameForms.
bool IsHexName(std::string_view text, std::size_t digits);

}  // namespace millrace
