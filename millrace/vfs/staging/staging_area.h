// Local disk for what was written and is not in the store yet.
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

/// Everything besides the staged bytes themselves that is needed to publish a file, should this process not live to do
/// it. docs/formats/staging.md has the bytes.
struct StagedRecord {
  std::string key;
  std::uint64_t size = 0;
  WallTime modified;
  /// When this content got this name, a StagingArea::NextStamp: of two records for one key, the later one is the file.
  WallTime saved;
  /// Finish this file; otherwise it was in the middle of being written, and only its upload must be removed.
  bool complete = false;
  /// The file was about to lose its name: if the store still has that ETag under the key (empty: nothing), it did not.
  std::optional<std::string> removing;
  bool exclusive = false;                    ///< the key must not exist
  std::optional<cache::ObjectVersion> base;  ///< what the content builds on
  std::uint64_t base_bytes = 0;              ///< so many bytes of it count
  std::optional<std::map<std::string, std::string>> metadata;
  std::string content_type;
  IntervalSet held;     ///< in the staging file
  IntervalSet changed;  ///< differs from the base
  /// The ETag that the object gets when its publication, which may have been under way, is done; empty: not known.
  std::string expected;
  /// A multipart upload under way. It is written down before it is begun, when it has no id yet.
  std::string upload_id, upload_key;
  WallTime upload_begun;
};

class StagingArea;

/// The staged bytes of one file: a sparse local file, and the set of bytes that count in it. Not thread-safe: it
/// belongs to a Writer, under whose lock it is used. Destruction forgets everything, but for a file that was kept.
class StagedFile {
 public:
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  const IntervalSet& held() const { return held_; }
  /// kNoSpace when the area's limit or the disk is reached; nothing has changed then.
  Status Write(std::uint64_t offset, ByteSpan bytes);
  /// Makes the range held, as zeros.
  Status Zero(std::uint64_t begin, std::uint64_t end);
  /// All of it must be held.
  Status Read(std::uint64_t offset, MutableByteSpan into) const;
  /// Forgets the range, and gives its room back.
  void Drop(std::uint64_t begin, std::uint64_t end);
  /// A file of its own that holds the same.
  Result<std::unique_ptr<StagedFile>> Clone() const;

  /// Writes the record beside the bytes: from here on, the death of this process loses neither. `durable`: nor does the
  /// machine's.
  Status Save(const StagedRecord& record, bool durable);
  /// The record is out of date and must not be used: the content is in the store, or elsewhere.
  void Unsave();
  /// Leaves bytes and record where they are, for StagingArea::Adopt of this or another process.
  void Keep() { kept_ = true; }
  /// They go with this object again.
  void Release() { kept_ = false; }
  std::string path() const;

 private:
  friend class StagingArea;
  StagedFile(StagingArea& area, std::string id, UniqueFd fd);
  void EmptySpareRecord() const;
  bool Punch(std::uint64_t begin, std::uint64_t end) const;
  Status MakeZero(std::uint64_t begin, std::uint64_t end) const;
  Status Charge(std::uint64_t bytes) const;

  StagingArea& area_;
  const std::string id_;  ///< what the names of its files begin with
  UniqueFd fd_;           ///< locked: says that the file has an owner
  IntervalSet held_;
  bool saved_ = false, kept_ = false;
};

/// A private, managed folder (base/files/managed_folder.h) of staged files, shared by all mounts of a user. Each file
/// is locked by the process that works on it; a lock that can be had means that its owner has gone. Files that have
/// done their work stay for the next ones, empty: making a file is the most expensive part of staging a small one, the
/// more so (on ext4) the more were removed in the last minutes. Thread-safe.
class StagingArea {
 public:
  struct Options {
    std::filesystem::path directory;  ///< made when missing; see ManagedFolder
    std::uint64_t limit_bytes = 16 * kGiB;
    std::string target;            ///< names the store: what is staged for one store is never published to another
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
  /// Takes over what processes that have gone left for this store below `prefix`, earlier records first. Files without
  /// a record are removed; records that cannot be read are left alone and named in `unreadable`. Whoever drops one
  /// gives it back as it was, unless it was unsaved.
  Result<std::vector<AdoptedFile>> Adopt(const std::string& prefix, std::vector<std::string>* unreadable)
      MR_EXCLUDES(mutex_);

  /// What lies in a folder for a store and has no owner: for those who only tell about it. Changes nothing.
  struct Leftovers {
    int files = 0;
    std::uint64_t bytes = 0;  ///< of the files when they are published
  };
  static Leftovers FindLeftovers(const std::filesystem::path& directory, const std::string& target);

  /// Later than all before it, so that records can be ordered.
  WallTime NextStamp() MR_EXCLUDES(mutex_);

  const Options& options() const { return options_; }
  std::uint64_t used() const MR_EXCLUDES(mutex_);
  /// More than half full: whoever can spare something should.
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
  UniqueFd lock_;  ///< held, shared, while a file is made and not locked yet; exclusive while owners are looked for
  mutable Mutex mutex_;
  std::uint64_t used_ MR_GUARDED_BY(mutex_) = 0;
  WallTime last_stamp_ MR_GUARDED_BY(mutex_);
  std::vector<std::string> spare_ MR_GUARDED_BY(mutex_);  ///< their ids; not locked: other processes may take them
};

}  // namespace millrace::vfs
