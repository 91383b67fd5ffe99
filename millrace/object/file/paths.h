// How keys become paths beneath a folder, and the descriptor that paths cannot escape.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace::object {

/// Names that begin so belong to the store; keys never show them (docs/formats/file-store.md).
inline constexpr std::string_view kReservedName = ".millrace~";
inline constexpr std::string_view kEscapedName = ".millrace~=";       ///< then the segment, as it is in the key
inline constexpr std::string_view kUploadName = ".millrace~upload-";  ///< then the upload's id
inline constexpr std::string_view kTempName = ".millrace~tmp-";

/// The file name for one segment of a key: itself, or escaped where it cannot be a name ("", ".", "..", reserved).
std::string NameOfSegment(std::string_view segment);
/// The segment that a directory entry stands for, or nothing for the store's own files.
std::optional<std::string> SegmentOfName(std::string_view name);

/// A valid key as a path relative to the root: the folder ("" for the root itself) and the name in it. Fails with
/// kInvalidArgument on NUL bytes and with kNameTooLong on segments that no file system takes.
struct KeyPath {
  std::string folder;
  std::string name;
  std::string Full() const { return folder.empty() ? name : folder + "/" + name; }
};
Result<KeyPath> PathOfKey(std::string_view key);

/// A root folder. Paths are relative to it; "..", symbolic links and absolute links resolve as if it were "/"
/// (openat2's RESOLVE_IN_ROOT), so nothing outside can be reached. Thread-safe.
class RootFolder {
 public:
  /// Creates the folder when asked to. Fails with kUnsupported on kernels before 5.6.
  static Result<RootFolder> Open(const std::filesystem::path& path, bool create);

  /// Result holds an invalid descriptor when the path, or a folder on its way, does not exist or is no folder.
  Result<UniqueFd> TryOpen(const std::string& path, int flags) const;
  /// Opens a folder for reading; creates it and those above as needed.
  Result<UniqueFd> MakeFolder(const std::string& path) const;

  const std::string& path() const { return path_; }

 private:
  RootFolder(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

/// What identifies a version of a file: inode, modification time in nanoseconds and size, in hex.
std::string FileETag(const struct stat& status);

}  // namespace millrace::object
