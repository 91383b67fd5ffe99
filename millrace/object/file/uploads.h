// Multipart uploads of the file store: hidden folders beside the key that they will become.
#pragma once

#include <fcntl.h>

#include <functional>
#include <string>
#include <vector>

#include "millrace/object/file/file_io.h"
#include "millrace/object/file/paths.h"
#include "millrace/object/requests.h"

namespace millrace::object {

/// The upload of key "a/b" with id N is the folder "a/.millrace~upload-N": a file "upload" with the key and its
/// attributes, and the parts. Parts of one size, but for the last, are written into one file, each where it will be in
/// the object, so that completion need not write their bytes again; others get files of their own. Thread-safe; several
/// processes may work on one upload.
class FileUploads {
 public:
  /// `durable`: a part that is there survives the machine.
  FileUploads(const RootFolder& root, bool durable) : root_(root), durable_(durable) {}

  Result<std::string> Create(const std::string& key, const PutOptions& options);
  /// Writes a part of `size` bytes with `fill(fd, offset)`; a part of that number from before gives way.
  Result<PartInfo> AddPart(const std::string& key, const std::string& id, int number, std::uint64_t size,
                           WallTime modified, const std::function<Status(int fd, std::uint64_t offset)>& fill);
  Result<std::vector<PartInfo>> Parts(const std::string& key, const std::string& id);

  struct Piece {
    std::string file;  ///< in the upload's folder
    ByteRange range;   ///< of that file
  };
  struct Assembly {
    PutOptions options;
    std::vector<Piece> parts;
    UniqueFd folder;        ///< locked: excludes a second completion, and parts that come in place
    bool in_place = false;  ///< kWhole in `folder` is the object, byte for byte
  };
  static constexpr char kWhole[] = "whole";
  /// The parts as they are named; kInvalidArgument when one is missing or has another ETag.
  Result<Assembly> Open(const std::string& key, const std::string& id, const std::vector<PartInfo>& parts);
  Status Remove(const std::string& key, const std::string& id);
  Result<std::vector<UploadInfo>> List(const std::string& prefix, const KeepGoing& keep_going);

 private:
  struct Description {
    std::string key;
    PutOptions options;
    WallTime initiated;
  };
  /// A part's place in kWhole.
  struct Place {
    UniqueFd whole;
    std::uint64_t offset = 0;
    UniqueFd record;  ///< the part is there once this file says its size
  };
  Result<UniqueFd> OpenFolder(const std::string& key, const std::string& id) const;
  static Result<std::optional<Description>> Describe(int folder);
  static Result<std::optional<Place>> Claim(int folder, int number, std::uint64_t size, const std::string& key);
  static Result<std::optional<Piece>> Find(int folder, std::optional<std::uint64_t> grid, const PartInfo& part);

  const RootFolder& root_;
  const bool durable_;
};

}  // namespace millrace::object
