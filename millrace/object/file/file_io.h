// Steps of the file store that work on descriptors: pieces of bytes, temporary files, attributes.
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

/// Checked between pieces of long reads and writes.
using KeepGoing = std::function<Status()>;

/// Reads up to into.size() bytes from `offset`; fewer only at the end of the file.
Result<std::uint64_t> ReadPieces(int fd, MutableByteSpan into, std::uint64_t offset, const KeepGoing& keep_going,
                                 const std::string& what);
/// Passes the bytes of `range` on, as far as the file has them; yields how many those are.
Result<std::uint64_t> PassPieces(int fd, ByteRange range, Sink& sink, const KeepGoing& keep_going,
                                 const std::string& what);
Status WritePieces(int fd, ByteSpan bytes, std::uint64_t offset, const KeepGoing& keep_going, const std::string& what);
/// Copies `range` of one file into another, from `offset` on, inside the kernel, sharing blocks where the file system
/// can.
Status CopyPieces(int from, ByteRange range, int to, std::uint64_t offset, const KeepGoing& keep_going,
                  const std::string& what);
/// The modification time, which is part of the ETag.
Status SetModified(int fd, WallTime modified, const std::string& what);

/// A file under a temporary name in a folder until Publish gives it its own; removed when that never happens.
class PendingFile {
 public:
  /// `folder` must stay open for as long as the file is pending.
  static Result<PendingFile> Create(int folder, const std::string& what);
  /// Takes a file of another folder; PutBack returns it, else it is removed like any.
  static Result<PendingFile> Take(int folder, int from, const std::string& name, const std::string& what);
  void PutBack(int from, const std::string& name);
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;
  ~PendingFile();
  int fd() const { return fd_.get(); }
  /// Sets the modification time, and makes the bytes durable when asked to.
  Status Seal(WallTime modified, bool durable, const std::string& what);
  /// Renames over whatever file has the name. An empty folder of that name gives way when `replace_empty_folder`.
  Status Publish(const std::string& name, bool replace_empty_folder, const std::string& what);

 private:
  PendingFile(int folder, UniqueFd fd, std::string temp)
      : folder_(folder), fd_(std::move(fd)), temp_(std::move(temp)) {}
  int folder_;
  UniqueFd fd_;
  std::string temp_;  ///< empty once published
};

/// Content type and metadata as an extended attribute of the file; nothing is written when both are empty.
Status WriteAttributes(int fd, const std::string& content_type, const std::map<std::string, std::string>& metadata,
                       const std::string& what);
Status ReadAttributes(int fd, ObjectInfo& into);
std::string EncodeAttributes(const std::string& content_type, const std::map<std::string, std::string>& metadata);
Status DecodeAttributes(std::string_view text, const std::string& what, std::string& content_type,
                        std::map<std::string, std::string>& metadata);

}  // namespace millrace::object
