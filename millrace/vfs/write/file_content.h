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

/// The content of a Writer. It has a base (the front of a stored version, or nothing), overlaid by the bytes in a
/// staging file. A byte that neither has is zero. While the staging area is full, bytes may also be in sent parts of an
/// upload only; these bytes cannot be read.
///
/// A content that was kept has a record beside its staging file, so that another process can publish it. Changes go to
/// a copy of a kept staging file, so that the record stays true.
///
/// Not thread-safe: it belongs to a Writer, whose mutex guards it. Works on the local disk only; never asks the store.
/// The staging area must outlive it.
class FileContent {
 public:
  /// The content of a stored version, or an empty content.
  FileContent(StagingArea& staging, std::optional<cache::ObjectVersion> base);
  /// The content that Keep left, of this or another process.
  FileContent(StagingArea& staging, StagingArea::AdoptedFile left);

  std::uint64_t size() const { return size_; }
  const std::optional<cache::ObjectVersion>& base() const { return base_; }
  /// The bytes of the base that count where nothing is staged.
  std::uint64_t base_bytes() const { return base_bytes_; }
  /// True when the content builds on the base: an append to an empty file does, bytes over a base that was cut to
  /// nothing do not.
  bool builds_on_base() const { return base_ && (base_bytes_ > 0 || base_->size == 0); }
  /// True when the record beside the staging file tells the present content.
  bool kept() const { return kept_; }
  /// True while an older kept content is on the disk besides the present one.
  bool has_older() const { return older_ != nullptr; }
  /// True when every byte can be read here or in the base.
  bool readable() const { return upload_only_.empty(); }
  /// True when some bytes of the range are in sent parts only.
  bool IsUploadOnly(std::uint64_t begin, std::uint64_t end) const { return upload_only_.Intersects(begin, end); }
  /// True when the range is, byte for byte, the same range of the base.
  bool IsUnchanged(Interval range) const;
  /// True when all bytes of the range differ from the base, or may.
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

  /// Copies the staged bytes of a range into `into`. Makes zeros of the bytes that neither the base nor the staging
  /// file has. Returns the ranges that are to be read from the base.
  Result<std::vector<Interval>> Read(std::uint64_t offset, MutableByteSpan into) const;
  /// The ranges within a range that are to be read from the base.
  std::vector<Interval> InBase(Interval range) const;
  /// Stages bytes of the base, where nothing is staged yet: the content stays the same. Errors: as Write.
  Status StageBase(std::uint64_t offset, ByteSpan bytes);
  /// The first range of the base, from `from` on, that is not staged.
  std::optional<Interval> FirstInBase(std::uint64_t from) const;

  std::uint64_t staged_bytes() const { return staged_ ? staged_->held().bytes() : 0; }
  /// Frees staged bytes that the base has, too.
  void DropUnchanged();
  /// Frees the staged bytes of a part that was sent. From now on only the upload has them.
  void MoveToUpload(Interval range);

  /// The content is published as `version`, which is the base from now on.
  void SetPublished(cache::ObjectVersion version);
  /// The base is under another key or ETag from now on. Its bytes are those of the content.
  void MoveBase(std::string key, std::string etag);
  /// Forgets the base. REQUIRES: FirstInBase(0) is nothing.
  void DropBase();

  /// Writes the record beside the staging file. Fills the fields of `record` that describe the content. If `durable`,
  /// content and record outlive the machine's death, else the process's. The content is then kept.
  Status Keep(StagedRecord record, bool durable);
  /// Writes a record that names an upload, and no content. REQUIRES: !kept().
  Status SaveUpload(const StagedRecord& record);
  /// The kept content is out of date: removes the record.
  void Unkeep();
  /// The content is given up: nobody publishes it. If `upload`, its record takes the place of the content's record
  /// until the end of this object; else no record stays.
  void GiveUp(const StagedRecord* upload);
  /// Drops the staged bytes and leaves the record of an upload on the disk, for the next mount.
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
  std::unique_ptr<StagedFile> older_;  ///< what Keep wrote, once the content has changed since
  IntervalSet changed_;                ///< differs from the base
  IntervalSet upload_only_;
};

}  // namespace millrace::vfs
