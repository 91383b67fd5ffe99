// The mapping of keys to paths below a folder, and a root folder that paths cannot leave.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace::object {

/// Names with this prefix belong to the store. No key shows them (docs/formats/file-store.md).
inline constexpr std::string_view kReservedName = ".millrace~";
inline constexpr std::string_view kEscapedName = ".millrace~=";       ///< followed by the segment of the key
inline constexpr std::string_view kUploadName = ".millrace~upload-";  ///< followed by the upload's id
inline constexpr std::string_view kTempName = ".millrace~tmp-";

/// The file name for one segment of a key: the segment, or an escaped form if it cannot be a name ("", ".", "..",
/// reserved).
std::string NameOfSegment(std::string_view segment);
/// The segment of a key for a file name; no value for the store's own files.
std::optional<std::string> SegmentOfName(std::string_view name);

/// The path of a key, relative to the root.
struct KeyPath {
  std::string folder;  ///< "" for the root itself
  std::string name;    ///< in that folder
  std::string Full() const { return folder.empty() ? name : folder + "/" + name; }
};
/// REQUIRES: `key` is a valid key. Errors: kInvalidArgument for NUL bytes, kNameTooLong for segments of more than 255
/// bytes.
Result<KeyPath> PathOfKey(std::string_view key);

/// A folder that paths cannot leave. Paths are relative to it. "..", symbolic links and absolute links resolve as if it
/// were "/" (OpenBeneath() of base/files/beneath.h). Thread-safe.
class RootFolder {
 public:
  /// `create`: creates the folder if needed.
  static Result<RootFolder> Open(const std::filesystem::path& path, bool create);

  /// An invalid descriptor if the path or a folder on its way does not exist, or if such a folder is a file.
  Result<UniqueFd> TryOpen(const std::string& path, int flags) const;
  /// Opens a folder for reading. Creates it and the folders above it as needed.
  Result<UniqueFd> MakeFolder(const std::string& path) const;

  const std::string& path() const { return path_; }
  /// Returns the path of a key from "/" on, for messages.
  std::string PathOf(const std::string& key) const { return path_ + (path_ == "/" ? "" : "/") + key; }

 private:
  RootFolder(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

/// The ETag of a file's version: inode, modification time in nanoseconds and size, in hex.
std::string FileETag(const struct stat& status);

}  // namespace millrace::object
