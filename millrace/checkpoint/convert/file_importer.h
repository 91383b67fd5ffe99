// The files of an import: their plan, and their writing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/import.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

/// Divides the tensors of a source into files, and writes these from the source's bytes. Blocks that several tensors
/// share are written once. Compares the source's checksums, most of them while it writes. One thread. The source, the
/// budget and the options must outlive it.
class FileImporter {
 public:
  FileImporter(const ImportSource& source, MemoryBudget& budget, const ImportOptions& options, object::Call call,
               ByteProgress progress)
      : source_(source), budget_(budget), options_(options), call_(std::move(call)), progress_(std::move(progress)) {}

  /// Plans the files. Checks the types and extents of all tensors.
  Status Plan();

  /// Returns the manifest of the planned files, complete but for their checksums. Checks coverage.
  Result<Manifest> ManifestOf(const std::string& attempt) const;

  std::size_t files() const { return headers_.size(); }
  /// Bytes of a planned file.
  std::uint64_t size(std::size_t file) const { return sizes_[file]; }
  static std::string FileName(const std::string& attempt, std::size_t file);

  /// Returns a text that is the same for all imports that write the same bytes: the versions of the source's files and
  /// all headers, with the place of every block.
  std::string Identity() const;

  /// Takes note of a file that is complete.
  using FileDone = std::function<Status(std::size_t file, const FileMeta& meta)>;
  /// Writes some of the planned files, in ascending order.
  Status Write(object::Store& store, const std::string& folder, const std::string& attempt,
               const std::vector<std::size_t>& chosen, const FileDone& done);

  /// Returns the number of checksums that no Write compares, such as those of storages whose views overlap.
  std::size_t unwritten_checksums() const { return source_.checksums.size() - covered_.size(); }
  /// Compares those of them that the share has.
  Status VerifyRest();

 private:
  using Sink = std::function<Status(ByteSpan)>;
  class ExtentReader;
  /// Bytes that are written once. Several tensors may share them.
  struct TensorBlock {
    const SourceBox* source_box = nullptr;  ///< one of the boxes with these bytes
    SafetensorsEntry entry;                 ///< in the written file
    std::size_t file = 0;                   ///< number of the written file
    std::uint64_t span = 0;                 ///< bytes from the first element to the last, with gaps
    /// The checksum of a range that this block and its neighbours in the source lie in; null if the range is verified
    /// afterwards. Blocks that are written one after the other share it. The first and the last one read the rest of
    /// the range, for the checksum alone.
    const SourceChecksum* checksum = nullptr;
    std::uint64_t gap_before = 0, gap_after = 0;  ///< bytes of the range that no block has, around this block
    bool begins_range = false, ends_range = false;

    std::uint64_t begin() const { return source_box->offset; }
    std::uint64_t end() const { return source_box->offset + span; }
  };
  static SafetensorsEntry EntryOf(const SourceBox& source_box, const TensorMeta& meta);
  Status PlanBlocks();
  /// Finds the checksums that can be compared while the blocks are written: those of ranges whose blocks are written
  /// one after the other, in the order of their offsets. Files that different shares write are not written one after
  /// the other.
  void PlanChecksums();
  /// Sorts the blocks in file order and splits them into files.
  void PlanFiles();
  /// The sort key of file order: large elements first, so that all are aligned, then the order of the source.
  static std::tuple<int, std::string_view, std::uint64_t> KeyOf(const TensorBlock& block);
  Status WriteBlock(const TensorBlock& block, ExtentReader& reader, const Sink& sink);
  /// Decodes some units at a time.
  Status WriteDecoded(const TensorBlock& block, ExtentReader& reader, const Sink& sink);
  Status WriteStrided(const TensorBlock& block, ExtentReader& reader, const Sink& checked, const Sink& sink);
  Error Damaged(const SourceChecksum& checksum) const;

  const ImportSource& source_;
  MemoryBudget& budget_;
  const ImportOptions& options_;
  const object::Call call_;
  const ByteProgress progress_;
  std::vector<TensorBlock> blocks_;
  std::vector<std::pair<const SourceBox*, std::size_t>> block_index_, block_of_;  ///< before and after sorting
  std::set<const SourceChecksum*> covered_;  ///< the checksums that are compared while blocks are written
  std::uint32_t crc_ = 0;                    ///< of the bytes read so far of the current range
  std::vector<std::string> headers_;         ///< of the files
  std::vector<std::uint64_t> sizes_;         ///< of the files
};

}  // namespace millrace::checkpoint
