// File operations of the file store: reads and writes that can be cancelled, temporary files, attributes.
#pragma once

#include <functional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/object/body.h"
#include "millrace/object/object_info.h"
#include "millrace/object/requests.h"

namespace millrace::object {

/// Called between the pieces of long reads and writes. An error ends them with that error.
using KeepGoing = std::function<Status()>;

/// Reads into.size() bytes from `offset` on, or fewer at the end of the file. Returns their number. `what` names the
/// file in errors, here and below.
Result<std::uint64_t> ReadPieces(int fd, MutableByteSpan into, std::uint64_t offset, const KeepGoing& keep_going,
                                 const std::string& what);
/// Delivers the bytes of `range` that the file has to `sink`. Returns their number.
Result<std::uint64_t> PassPieces(int fd, ByteRange range, Sink& sink, const KeepGoing& keep_going,
                                 const std::string& what);
Status WritePieces(int fd, ByteSpan bytes, std::uint64_t offset, const KeepGoing& keep_going, const std::string& what);
/// Copies `range` of one file to `offset` of another, inside the kernel. Shares blocks if the file system can.
Status CopyPieces(int from, ByteRange range, int to, std::uint64_t offset, const KeepGoing& keep_going,
                  const std::string& what);
/// Sets the modification time, which is part of the ETag.
Status SetModified(int fd, WallTime modified, const std::string& what);

/// A file with a temporary name in a folder. Publish gives it its final name. Destruction without Publish removes it.
class PendingFile {
 public:
  /// `folder` must stay open until the file is published or destroyed.
  static Result<PendingFile> Create(int folder, const std::string& what);
  /// Moves a file of folder `from` here. PutBack moves it back; else it is removed as others are.
  static Result<PendingFile> Take(int folder, int from, const std::string& name, const std::string& what);
  void PutBack(int from, const std::string& name);
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;
  ~PendingFile();
  int fd() const { return fd_.get(); }
  /// Sets the modification time. Syncs the file if `durable`.
  Status Seal(WallTime modified, bool durable, const std::string& what);
  /// Renames the file, and replaces a file that has the name. `replace_empty_folder`: also replaces an empty folder.
  Status Publish(const std::string& name, bool replace_empty_folder, const std::string& what);

 private:
  PendingFile(int folder, UniqueFd fd, std::string temp)
      : folder_(folder), fd_(std::move(fd)), temp_(std::move(temp)) {}
  int folder_;
  UniqueFd fd_;
  std::string temp_;  ///< empty once published
};

/// Writes content type and metadata to an extended attribute of the file, unless both are empty.
Status WriteAttributes(int fd, const std::string& content_type, const std::map<std::string, std::string>& metadata,
                       const std::string& what);
Status ReadAttributes(int fd, ObjectInfo& into);
std::string EncodeAttributes(const std::string& content_type, const std::map<std::string, std::string>& metadata);
Status DecodeAttributes(std::string_view text, const std::string& what, std::string& content_type,
                        std::map<std::string, std::string>& metadata);

}  // namespace millrace::object
