// The bytes of a file that is being written: a stored version with local changes laid over it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/cache/block_cache.h"
#include "millrace/vfs/staging/interval_set.h"
#include "millrace/vfs/staging/staging_area.h"

namespace millrace::vfs {

/// The content of a Writer. It has a base (the first bytes of a stored version, or nothing), overlaid by the bytes in a
/// staging file. A byte that is in neither is zero. While the staging area is full, some bytes may be only in sent
/// parts of an upload; these bytes cannot be read.
///
/// A kept content has a record beside its staging file, so that another process can publish it. A change of a kept
/// content goes to a copy of the staging file, so that the record stays valid.
///
/// Not thread-safe: it belongs to a Writer, whose mutex guards it. Works on the local disk only; never asks the store.
/// The staging area must outlive it.
class FileContent {
 public:
  /// The content of a stored version, or an empty content.
  FileContent(StagingArea& staging, std::optional<cache::ObjectVersion> base);
  /// The content that Writer::KeepOnDisk left, of this or another process.
  FileContent(StagingArea& staging, StagingArea::AdoptedFile left);
  /// A content that another process was changing. `left.file` is null if nothing is staged.
  static FileContent Restore(StagingArea& staging, StagingArea::AdoptedFile left);

  std::uint64_t size() const { return size_; }
  const std::optional<cache::ObjectVersion>& base() const { return base_; }
  /// Returns the number of the base's first bytes that are in the content, where nothing is staged over them.
  std::uint64_t base_bytes() const { return base_bytes_; }
  /// True if the content builds on the base. False if the base was truncated to no bytes, unless it was empty.
  bool builds_on_base() const { return base_ && (base_bytes_ > 0 || base_->size == 0); }
  /// True if the record beside the staging file describes the present content.
  bool kept() const { return kept_; }
  /// True while an older kept content is on the disk, too.
  bool has_older() const { return older_ != nullptr; }
  bool has_staged() const { return staged_ != nullptr; }
  /// True if every byte can be read from the staging file or the base.
  bool readable() const { return upload_only_.empty(); }
  /// True if some bytes of the range are only in sent parts.
  bool IsUploadOnly(std::uint64_t begin, std::uint64_t end) const { return upload_only_.Intersects(begin, end); }
  /// True if the range has the same bytes as the same range of the base.
  bool IsUnchanged(Interval range) const;
  /// True if all bytes of the range were written or zeroed since the base was set.
  bool IsChanged(Interval range) const { return changed_.Covers(range.begin, range.end); }

  /// Makes the content ready for a change. A kept content is copied first, with its bytes if `with_bytes`.
  /// Errors: kNoSpace if the copy has no room; then nothing has changed.
  Status Unfreeze(bool with_bytes);
  /// Creates the staging file if there is none.
  Status EnsureStaged();
  /// Overwrites bytes. The content grows if they go beyond its end. REQUIRES: a staging file.
  /// Errors: kNoSpace if the staging area is full; then nothing has changed.
  Status Write(std::uint64_t offset, ByteSpan bytes);
  /// Overwrites a range within the content with zeros. REQUIRES and errors: as Write.
  Status Zero(std::uint64_t begin, std::uint64_t end);
  /// Cuts the content, or extends it with zeros.
  void Truncate(std::uint64_t size);

  /// Fills the fields of `record` that describe the content. Returns the id of the staging file, or an empty text.
  std::string Describe(StagedRecord& record) const;
  /// Gives the content the older one that another process has kept.
  void SetOlder(std::unique_ptr<StagedFile> older) { older_ = std::move(older); }

  /// Copies the staged bytes of a range into `into`. Makes zeros of the bytes that neither the base nor the staging
  /// file has. Returns the ranges that are to be read from the base.
  Result<std::vector<Interval>> Read(std::uint64_t offset, MutableByteSpan into) const;
  /// Returns the parts of a range that are to be read from the base.
  std::vector<Interval> InBase(Interval range) const;
  /// Stages bytes of the base where nothing is staged yet. The content does not change. Errors: as Write.
  Status StageBase(std::uint64_t offset, ByteSpan bytes);
  /// Returns the first range of the base, from `from` on, that is not staged.
  std::optional<Interval> FirstInBase(std::uint64_t from) const;

  std::uint64_t staged_bytes() const { return staged_ ? staged_->held().bytes() : 0; }
  /// Frees staged bytes that the base also has.
  void DropUnchanged();
  /// Frees the staged bytes of a sent part. From now on they are only in the upload.
  void MoveToUpload(Interval range);

  /// Call when the content is published as `version`. Makes that version the base.
  void SetPublished(cache::ObjectVersion version);
  /// Call when the base has moved to another key or ETag. REQUIRES: base and content have the same bytes.
  void MoveBase(std::string key, std::string etag);
  /// Forgets the base. REQUIRES: FirstInBase(0) is nothing.
  void DropBase();

  /// Fills the fields of `record` that describe the content, and writes the record beside the staging file. The content
  /// is then kept: it survives the death of the process; if `durable`, also of the machine.
  Status SaveRecord(StagedRecord record, bool durable);
  /// Writes a record that names an upload, and no content. REQUIRES: !kept().
  Status SaveUpload(const StagedRecord& record);
  /// Removes the records of the present and of an older content.
  void RemoveRecords();
  /// Gives up the content, so that no process publishes it. Replaces its record by `upload`, which names an upload to
  /// abort, until this object is destroyed. If `upload` is null, leaves no record.
  void GiveUp(const StagedRecord* upload);
  /// Drops the staged bytes, and leaves the record of an upload on the disk for the next mount, which aborts it.
  void LeaveUpload(const StagedRecord& upload);
  /// The path of the staging file. REQUIRES: kept().
  std::string staged_path() const { return staged_->path(); }

 private:
  const IntervalSet& Held() const;
  void DropOlder();

  StagingArea& staging_;
  std::uint64_t size_;
  std::optional<cache::ObjectVersion> base_;
  std::uint64_t base_bytes_;
  std::unique_ptr<StagedFile> staged_;
  bool kept_ = false;
  std::unique_ptr<StagedFile> older_;  ///< the kept content, if the present one was changed since
  IntervalSet changed_;                ///< bytes written or zeroed since the base was set
  IntervalSet upload_only_;            ///< bytes that are only in sent parts
};

}  // namespace millrace::vfs
