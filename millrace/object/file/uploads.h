// Multipart uploads of the file store: hidden folders beside the key that they will become.
#pragma once

#include <fcntl.h>

#include <functional>
#include <string>
#include <vector>

#include "millrace/object/file/file_io.h"
#include "millrace/object/file/paths.h"
#include "millrace/object/store.h"

namespace millrace::object {

/// The upload of key "a/b" with id N is the folder "a/.millrace~upload-N": a file "upload" with the key and its
/// attributes, and a file for each part. Thread-safe; several processes may work on one upload.
class FileUploads {
 public:
  explicit FileUploads(const RootFolder& root) : root_(root) {}

  Result<std::string> Create(const std::string& key, const PutOptions& options);
  /// Writes a part with `fill(fd)`; a part of that number from before gives way.
  Result<PartInfo> AddPart(const std::string& key, const std::string& id, int number, WallTime modified,
                           const std::function<Status(int fd)>& fill);
  Result<std::vector<PartInfo>> Parts(const std::string& key, const std::string& id);

  struct Piece {
    UniqueFd fd;
    std::uint64_t size = 0;
  };
  struct Assembly {
    PutOptions options;
    std::vector<Piece> parts;
    UniqueFd lock;  ///< excludes a second completion
  };
  /// The parts as they are named, opened; kInvalidArgument when one is missing or has another ETag.
  Result<Assembly> Open(const std::string& key, const std::string& id, const std::vector<PartInfo>& parts);
  Status Remove(const std::string& key, const std::string& id);
  Result<std::vector<UploadInfo>> List(const std::string& prefix, const KeepGoing& keep_going);

 private:
  struct Description {
    std::string key;
    PutOptions options;
    WallTime initiated;
  };
  Result<UniqueFd> OpenFolder(const std::string& key, const std::string& id) const;
  static Result<std::optional<Description>> Describe(int folder);

  const RootFolder& root_;
};

}  // namespace millrace::object
