// The reader behind both Reader::Open and OpenSafetensors: a manifest, and where its files are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/checkpoint/read/reader.h"
#include "millrace/object/location.h"
#include "millrace/object/read_store.h"

namespace millrace::checkpoint {

/// Immutable after construction, therefore thread-safe.
class StoreReader final : public Reader {
 public:
  /// `folder` is the key prefix in front of the manifest's file names, empty or with a slash at its end. `manifest` has
  /// passed Check().
  StoreReader(std::shared_ptr<object::ReadStore> store, std::string folder, std::string name, Manifest manifest);

  const Manifest& manifest() const override { return manifest_; }
  const std::string& name() const override { return name_; }
  Status Read(std::string_view tensor, std::uint64_t begin, MutableByteSpan into, object::Call call) override;
  Status ReadMany(const std::vector<Wanted>& wanted, int parallel, object::Call call) override;
  Result<Verified> Verify(int parallel, object::Call call, const Progress& progress) override;

  /// Reads and checks every `of`-th file, from file `index` on.
  Status VerifyShare(int index, int of, const object::Call& call) const;
  /// Reads and checks a file of the manifest.
  Status VerifyFile(const std::string& file, const object::Call& call) const;

  object::ReadStore& store() const { return *store_; }
  const std::string& folder() const { return folder_; }

 private:
  using Files = std::map<std::string, FileMeta>;
  /// Bytes of one file that go to one place.
  struct Extent {
    std::uint64_t offset = 0;
    MutableByteSpan into;
    std::uint64_t end() const { return offset + into.size(); }
  };
  class Arrival;
  /// One request: whole chunks of one file, and what to do with their bytes.
  struct Run {
    Files::const_iterator file;
    std::uint64_t begin = 0, end = 0;
    std::vector<Extent> extents;  ///< inside [begin, end)
  };

  static void AddWholeFile(Files::const_iterator file, std::uint64_t request, std::vector<Run>& runs);
  Status AddExtents(const Wanted& wanted, std::map<std::string_view, std::vector<Extent>>& by_file) const;
  std::vector<Run> PlanRuns(Files::const_iterator file, std::vector<Extent> extents, std::uint64_t request) const;
  Status Execute(const std::vector<Run>& runs, int parallel, const object::Call& call,
                 const Progress& progress = {}) const;
  Status Fetch(const Run& run, const object::Call& call) const;

  const std::shared_ptr<object::ReadStore> store_;
  const std::string folder_, name_;
  const Manifest manifest_;
  std::map<std::string_view, std::vector<const Slice*>> slices_of_;
};

/// The committed checkpoint of a step, kNotFound when there is none.
Result<std::unique_ptr<StoreReader>> OpenAt(const object::ReadLocation& root, std::uint64_t step,
                                            object::Call call = {});

}  // namespace millrace::checkpoint
