// A folder on the local disk for bytes that were written and are not in the store yet.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/files/files.h"
#include "millrace/base/files/managed_folder.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/cache/block_cache.h"
#include "millrace/object/store.h"
#include "millrace/vfs/staging/interval_set.h"

namespace millrace::vfs {

/// Everything but the staged bytes that another process needs to publish a file if this process dies.
/// docs/formats/staging.md has the format. A value type.
struct StagedRecord {
  std::string key;
  std::uint64_t size = 0;
  WallTime modified;
  /// The time at which this content got this name: a StagingArea::NextStamp. Of two records for one key, the later
  /// counts.
  WallTime saved;
  /// True: publish this file. False: the file was being written; only its upload must be aborted.
  bool complete = false;
  /// Set while the name is being removed. If the store still has this ETag under the key (empty: no object), the name
  /// was not removed.
  std::optional<std::string> removing;
  bool exclusive = false;                    ///< the key must not exist
  std::optional<cache::ObjectVersion> base;  ///< the version that the content builds on
  std::uint64_t base_bytes = 0;              ///< how many of the base's first bytes are in the content
  std::optional<std::map<std::string, std::string>> metadata;
  std::string content_type;
  IntervalSet held;     ///< in the staging file
  IntervalSet changed;  ///< differs from the base
  /// The ETag of the object that the present publication makes; empty: not known, or no publication.
  std::string expected;
  /// The multipart upload. The record is first written before the upload is begun; the id is empty then.
  std::string upload_id, upload_key;
  WallTime upload_begun;
};

class StagingArea;

/// The staged bytes of one file: a sparse local file, and the set of bytes that it holds. Not thread-safe: it belongs
/// to a FileContent or an UploadLedger. Destruction removes bytes and record, unless the file was kept. The area must
/// outlive it.
class StagedFile {
 public:
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  const IntervalSet& held() const { return held_; }
  /// Errors: kNoSpace if the area's limit is reached, or the disk is full; then nothing has changed.
  Status Write(std::uint64_t offset, ByteSpan bytes);
  /// Writes zeros. Errors: as Write.
  Status Zero(std::uint64_t begin, std::uint64_t end);
  /// REQUIRES: the file holds the whole range.
  Status Read(std::uint64_t offset, MutableByteSpan into) const;
  /// Removes the range from the file, and frees its disk space.
  void Drop(std::uint64_t begin, std::uint64_t end);
  /// Returns another file that holds the same bytes. Errors: as Write.
  Result<std::unique_ptr<StagedFile>> Clone() const;

  /// Writes the record beside the bytes. From now on, bytes and record survive the death of the process; if `durable`,
  /// also of the machine.
  Status Save(const StagedRecord& record, bool durable);
  /// Removes the record. Call when the content is in the store or elsewhere.
  void RemoveRecord();
  /// Makes the destructor leave bytes and record on the disk, for StagingArea::Adopt of this or another process.
  void LeaveOnDisk() { kept_ = true; }
  /// Undoes LeaveOnDisk: the destructor removes bytes and record.
  void Release() { kept_ = false; }
  std::string path() const;
  const std::string& id() const { return id_; }

 private:
  friend class StagingArea;
  StagedFile(StagingArea& area, std::string id, UniqueFd fd);
  void EmptySpareRecord() const;
  bool Punch(std::uint64_t begin, std::uint64_t end) const;
  Status MakeZero(std::uint64_t begin, std::uint64_t end) const;
  bool HasRoom(std::uint64_t bytes) const;
  Status Charge(std::uint64_t bytes) const;

  StagingArea& area_;
  const std::string id_;  ///< the beginning of the names of its files
  UniqueFd fd_;           ///< locked while the file has an owner
  IntervalSet held_;
  bool saved_ = false, kept_ = false;
};

/// A private, managed folder (base/files/managed_folder.h) of staged files. All mounts of a user share it. A process
/// locks its files; if another process can lock a file, the owner is dead. Files that are not needed any more are
/// emptied and used again. Creating a file is the most expensive part of staging a small one. On ext4 it costs even
/// more after many files were removed. Thread-safe.
class StagingArea {
 public:
  struct Options {
    std::filesystem::path directory;  ///< created if missing; see ManagedFolder
    std::uint64_t limit_bytes = 16 * kGiB;
    std::string target;            ///< names the store: files staged for one store are never published to another
    std::size_t most_spare = 512;  ///< empty files kept
    const Clock* clock = &SystemClock();
  };
  /// Fails as ManagedFolder::Open does.
  static Result<std::unique_ptr<StagingArea>> Open(Options options);

  Result<std::unique_ptr<StagedFile>> Create() MR_EXCLUDES(mutex_);

  struct AdoptedFile {
    std::unique_ptr<StagedFile> file;
    StagedRecord record;
  };
  /// Takes over the files below `prefix` that dead processes left for this store, in the order of StagedRecord::saved.
  /// Removes files without a record. Keeps records that cannot be read, and adds their errors to `unreadable`. The
  /// files returned are kept (StagedFile::LeaveOnDisk): they stay on the disk unless Release is called.
  Result<std::vector<AdoptedFile>> Adopt(const std::string& prefix, std::vector<std::string>* unreadable)
      MR_EXCLUDES(mutex_);

  /// Files without an owner.
  struct Leftovers {
    int files = 0;
    std::uint64_t bytes = 0;  ///< of the files when they are published
  };
  /// Takes over one file that a dead process left, with or without a record. `held`: the bytes that it holds. The file
  /// is not kept, and its record is removed with it. Errors: kNotFound if there is no such file; kBusy if it has an
  /// owner; kCorrupt if it is shorter than `held`: then it is left alone.
  Result<std::unique_ptr<StagedFile>> Claim(const std::string& id, IntervalSet held) MR_EXCLUDES(mutex_);

  /// Moves the files with a record that dead processes left in a staging folder to another one on the same disk, for
  /// the area that adopts them there. Files with an owner stay. Returns how many were moved. Fails as
  /// ManagedFolder::Open does, or with the first file's error; what was moved by then stays moved.
  static Result<int> HandOver(const std::filesystem::path& from, const std::filesystem::path& to);

  /// Counts the files that dead processes left in a folder for a store, for status reports. Changes nothing.
  static Leftovers FindLeftovers(const std::filesystem::path& directory, const std::string& target);

  /// Returns a time that is later than all returned before, so that records can be ordered.
  WallTime NextStamp() MR_EXCLUDES(mutex_);

  const Options& options() const { return options_; }
  std::uint64_t used() const MR_EXCLUDES(mutex_);
  /// Returns true if the area is more than half full. Writers then drop staged bytes that the store also has.
  bool crowded() const { return used() > options_.limit_bytes / 2; }

 private:
  friend class StagedFile;
  StagingArea(Options options, ManagedFolder folder) : options_(std::move(options)), folder_(std::move(folder)) {}
  std::optional<std::pair<std::string, UniqueFd>> TakeSpare() MR_REQUIRES(mutex_);
  void Retire(const std::string& id, UniqueFd fd) MR_EXCLUDES(mutex_);
  bool ReserveBytes(std::uint64_t bytes) MR_EXCLUDES(mutex_);
  void ReleaseBytes(std::uint64_t bytes) MR_EXCLUDES(mutex_);

  const Options options_;
  const ManagedFolder folder_;
  UniqueFd lock_;  ///< locked shared while a file is created and not locked yet; exclusive while Adopt looks for owners
  mutable Mutex mutex_;
  std::uint64_t used_ MR_GUARDED_BY(mutex_) = 0;
  WallTime last_stamp_ MR_GUARDED_BY(mutex_);
  std::vector<std::string> spare_ MR_GUARDED_BY(mutex_);  ///< ids of empty files; other processes may take them
};

}  // namespace millrace::vfs
