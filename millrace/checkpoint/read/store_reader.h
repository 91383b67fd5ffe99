// The implementation of Reader, for checkpoints and for safetensors folders: a manifest and the folder of its files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/object/location.h"
#include "millrace/object/read_store.h"

namespace millrace::checkpoint {

/// Immutable after construction, therefore thread-safe.
class StoreReader final : public Reader {
 public:
  /// `folder` is the key prefix of the manifest's files, empty or with a slash at its end.
  /// REQUIRES: manifest.Check() holds.
  StoreReader(std::shared_ptr<object::ReadStore> store, std::string folder, std::string name, Manifest manifest);

  const Manifest& manifest() const override { return manifest_; }
  const std::string& name() const override { return name_; }
  Status Read(std::string_view tensor, std::uint64_t begin, MutableByteSpan into, object::Call call) override;
  Status ReadMany(const std::vector<TensorRange>& wanted, int parallel, object::Call call) override;
  Result<VerifyStats> Verify(int parallel, object::Call call, const ByteProgress& progress) override;

  /// Reads and checks every `of`-th file, from file `index` on.
  Status VerifyShare(int index, int of, const object::Call& call) const;
  /// Reads and checks a file of the manifest.
  Status VerifyFile(const std::string& file, const object::Call& call) const;

  object::ReadStore& store() const { return *store_; }
  const std::string& folder() const { return folder_; }

 private:
  using Files = std::map<std::string, FileMeta>;
  /// The destination of bytes of a file.
  struct CopyTarget {
    std::uint64_t offset = 0;
    MutableByteSpan into;
    std::uint64_t end() const { return offset + into.size(); }
  };
  class ChunkVerifier;
  /// One request: whole chunks of one file, and where their bytes are copied to.
  struct RangeRequest {
    Files::const_iterator file;
    std::uint64_t begin = 0, end = 0;
    std::vector<CopyTarget> targets;  ///< inside [begin, end)
  };

  static void AddWholeFile(Files::const_iterator file, std::uint64_t request, std::vector<RangeRequest>& requests);
  Status AddTargets(const TensorRange& wanted, std::map<std::string_view, std::vector<CopyTarget>>& by_file) const;
  std::vector<RangeRequest> PlanRequests(Files::const_iterator file, std::vector<CopyTarget> targets,
                                         std::uint64_t request) const;
  Status Execute(const std::vector<RangeRequest>& requests, int parallel, const object::Call& call,
                 const ByteProgress& progress = {}) const;
  Status Fetch(const RangeRequest& request, const object::Call& call) const;

  const std::shared_ptr<object::ReadStore> store_;
  const std::string folder_, name_;
  const Manifest manifest_;
  std::map<std::string_view, std::vector<const Slice*>> slices_of_;
};

/// Opens the committed checkpoint of a step. Blocks.
/// Errors: kNotFound if there is none; kCorrupt if its manifest is damaged.
Result<std::unique_ptr<StoreReader>> OpenAt(const object::ReadLocation& root, std::uint64_t step,
                                            object::Call call = {});

}  // namespace millrace::checkpoint
