// Multipart uploads of the file store. Each is a hidden folder beside its key.
#pragma once

#include <fcntl.h>

#include <functional>
#include <string>
#include <vector>

#include "millrace/object/local/file_io.h"
#include "millrace/object/local/paths.h"
#include "millrace/object/requests.h"

namespace millrace::object {

/// The upload of key "a/b" with id N is the folder "a/.millrace~upload-N". It has a file "upload" with the key and its
/// attributes, and the parts. Parts of equal size (the last may be shorter) go into one file, each at its offset in the
/// object, so that completion only renames the file. Other parts have files of their own. Thread-safe. Several
/// processes may work on one upload.
class FileUploads {
 public:
  /// `durable`: an uploaded part survives a crash of the machine.
  FileUploads(const RootFolder& root, bool durable) : root_(root), durable_(durable) {}

  Result<std::string> Create(const std::string& key, const PutOptions& options);
  /// Writes a part of `size` bytes with `fill(fd, offset)`. Replaces an earlier part of the same number.
  Result<PartInfo> AddPart(const std::string& key, const std::string& id, int number, std::uint64_t size,
                           WallTime modified, const std::function<Status(int fd, std::uint64_t offset)>& fill);
  Result<std::vector<PartInfo>> Parts(const std::string& key, const std::string& id);

  /// The bytes of one part.
  struct PartRange {
    std::string file;  ///< in the upload's folder
    ByteRange range;   ///< of that file
  };
  /// The parts from which a completion makes the object.
  struct Assembly {
    PutOptions options;
    std::vector<PartRange> parts;
    UniqueFd folder;        ///< locked against other completions and against new parts in kWhole
    bool in_place = false;  ///< kWhole in `folder` already is the object
  };
  /// The file with the parts of equal size.
  static constexpr char kWhole[] = "whole";
  /// Finds the given parts. Errors: kInvalidArgument if one is missing or has another ETag.
  Result<Assembly> Open(const std::string& key, const std::string& id, const std::vector<PartInfo>& parts);
  Status Remove(const std::string& key, const std::string& id);
  Result<std::vector<UploadInfo>> List(const std::string& prefix, const KeepGoing& keep_going);

 private:
  struct Description {
    std::string key;
    PutOptions options;
    WallTime initiated;
  };
  /// The place of one part in kWhole.
  struct PartSlot {
    UniqueFd whole;
    std::uint64_t offset = 0;
    UniqueFd record;  ///< the part exists as soon as this file contains its size
  };
  Result<UniqueFd> OpenFolder(const std::string& key, const std::string& id) const;
  static Result<std::optional<Description>> Describe(int folder);
  Result<std::optional<PartSlot>> ClaimSlot(int folder, int number, std::uint64_t size, const std::string& key) const;
  static Result<std::optional<PartRange>> FindPart(int folder, std::optional<std::uint64_t> grid, const PartInfo& part);

  const RootFolder& root_;
  const bool durable_;
};

}  // namespace millrace::object
