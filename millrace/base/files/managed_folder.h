// A folder on local disk whose files Millrace makes, changes and removes by itself: staged writes, a disk cache, the
// root of the embedded S3 endpoint, local checkpoints. ManagedFolder opens all of them. It makes sure that Millrace
// never touches a file of another program or user, and never trusts a file that another user may have put there.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/files/trusted_folder.h"
#include "millrace/base/result.h"

namespace millrace {

/// The thing that Millrace makes under a name in a managed folder. kForeign: Millrace never makes such a name there.
enum class NameForm { kForeign, kFile, kFolder };

/// A handle of a managed folder. Open() resolves the path once. The methods reach files through the handle by a name of
/// one component and never follow symbolic links. So nobody can redirect them later by renaming the folder or a parent,
/// or by swapping one for a link. (For one component, O_NOFOLLOW gives what openat2's RESOLVE_NO_SYMLINKS and
/// RESOLVE_BENEATH would.) Movable. The methods are const and thread-safe.
///
/// Open() accepts a folder only if it passes OpenTrustedFolder() and one of these holds:
///   - It did not exist, or is empty (but for lost+found and other managed folders). It gets the marker kMarkerName.
///   - It has a marker of this format, written by the effective user.
///   - It has no marker, but a release before markers made it: the file Format::legacy_file, if any, is there, no name
///   is
///     kForeign, and every file is regular, has one link, belongs to the effective user, and no other user can write to
///     it. It gets the marker.
/// In a folder with a marker, kForeign names are neither touched nor listed.
class ManagedFolder {
 public:
  static constexpr char kMarkerName[] = ".millrace-folder";

  /// The use of a folder, and the names it may have.
  struct Format {
    std::string_view purpose;      ///< in the marker: "staging"
    std::uint64_t version = 1;     ///< in the marker: the version of the content's format
    FolderRole role;               ///< in error messages
    std::string_view legacy_file;  ///< releases before markers always made this file; empty: names alone decide
    NameForm (*name_form)(std::string_view);  ///< returns kForeign for kMarkerName, "." and ".."
  };

  /// Opens the folder at `path` and makes it if it is missing. Several processes may do so at a time. May wait for
  /// another process that is writing the marker.
  /// REQUIRES: `format` outlives the folder.
  /// Errors: those of OpenTrustedFolder; kInvalidArgument if the content is not Millrace's, or has another purpose;
  /// kUnsupported if a later release made it.
  static Result<ManagedFolder> Open(const std::filesystem::path& path, const Format& format);
  /// Opens the folder `name` in this one and makes it, mode 0700, if it is missing. It has no marker of its own.
  /// REQUIRES: `format` outlives the returned folder.
  /// Errors: kPermissionDenied if it belongs to another user or another user can write to it; kNotDirectory if it is a
  /// link.
  Result<ManagedFolder> Below(const std::string& name, const Format& format) const;

  /// Calls open(2) with O_CLOEXEC and O_NOFOLLOW. New files get mode 0600. Never waits for the other end of a pipe.
  /// Errors: kPermissionDenied if the file is not a regular one of the effective user.
  Result<UniqueFd> OpenFile(const std::string& name, int flags) const;
  /// Returns the whole content. Errors: kResourceExhausted if the file is longer than `max_bytes`.
  Result<std::string> ReadFile(const std::string& name, std::uint64_t max_bytes) const;
  /// Replaces the file. It has either the old or the new content, even after a power failure.
  Status WriteFileAtomic(const std::string& name, ByteSpan content) const;
  bool Has(const std::string& name) const;
  /// Errors: kNotFound if there is no such file.
  Status Remove(const std::string& name) const;
  Status Rename(const std::string& from, const std::string& to) const;
  /// Returns all names that are not kForeign, in no order.
  Result<std::vector<std::string>> Names() const;
  /// Makes new, renamed and removed names durable (fsync).
  Status Sync() const;

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return fd_.get(); }

 private:
  ManagedFolder(std::filesystem::path path, const Format& format, UniqueFd fd)
      : path_(std::move(path)), format_(&format), fd_(std::move(fd)) {}
  Result<bool> HasMarker() const;
  Status CheckContent() const;
  Status CheckEntry(const std::string& name) const;
  Status WriteMarker() const;
  std::unexpected<Error> Refuse(const std::string& why) const;

  std::filesystem::path path_;
  const Format* format_;
  UniqueFd fd_;
};

/// Returns the default folder for caches and staged files: $XDG_CACHE_HOME/millrace, else $HOME/.cache/millrace, else,
/// for root without HOME (a service), /var/cache/millrace. Does not make it.
/// Errors: kInvalidArgument if none of them applies; the message names `flag`.
Result<std::filesystem::path> DefaultCacheFolder(std::string_view flag);

/// Returns whether `text` consists of exactly `digits` lower-case hexadecimal digits. For Format::name_form.
bool IsHexName(std::string_view text, std::size_t digits);

}  // namespace millrace
