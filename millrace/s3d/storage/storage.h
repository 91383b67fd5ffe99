// Buckets, objects and uploads: an index in memory, every change of it in the journal before anybody hears of it.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"
#include "millrace/s3d/protocol/s3_error.h"
#include "millrace/s3d/storage/journal.h"
#include "millrace/s3d/storage/model.h"
#include "millrace/s3d/storage/record.h"

namespace millrace::s3d {

/// What must hold of the present object for a write to take place. Checked under the same lock as the write.
struct WriteCondition {
  std::string if_match;        ///< an ETag without quotes, or "*" for any; empty: no matter
  bool if_none_match = false;  ///< the key must be free
};

struct ListQuery {
  std::string prefix, delimiter;
  std::string after;  ///< only keys and common prefixes greater than this
  int max_keys = 1000;
};
struct Listing {
  /// Objects and, with a null ObjectPtr, common prefixes, in the order of their bytes.
  std::vector<std::pair<std::string, ObjectPtr>> entries;
  bool truncated = false;  ///< more follow the last entry
};

struct UploadQuery {
  std::string prefix, key_marker, upload_id_marker;
  int max_uploads = 1000;
};
struct UploadListing {
  struct Entry {
    std::string key, upload_id;
    WallTime initiated;
  };
  std::vector<Entry> entries;
  bool truncated = false;
};

/// The state of an endpoint, on disk under one root folder, which is a managed one (base/files/managed_folder.h). Any
/// thread may call any method. Writes return once they are durable; the operations on one key take place in some order,
/// each as a whole. One process per root (a lock file holds off a second).
class Storage {
 public:
  /// With `sync` false a change survives this process at once and the machine soon.
  static Result<std::unique_ptr<Storage>> Open(const std::filesystem::path& root, bool sync, Clock& clock);
  ~Storage();

  BlobStore& blobs() { return *blobs_; }
  WallTime Now() const;  ///< in whole milliseconds, as times are stored

  Reply<void> CreateBucket(std::string_view name) MR_EXCLUDES(mutex_);
  Reply<void> DeleteBucket(std::string_view name) MR_EXCLUDES(mutex_);
  Reply<WallTime> HeadBucket(std::string_view name) const MR_EXCLUDES(mutex_);
  std::vector<std::pair<std::string, WallTime>> ListBuckets() const MR_EXCLUDES(mutex_);

  Reply<ObjectPtr> Get(std::string_view bucket, std::string_view key) const MR_EXCLUDES(mutex_);
  Reply<ObjectPtr> Put(std::string_view bucket, std::string_view key, Object object, const WriteCondition& condition)
      MR_EXCLUDES(mutex_);
  /// Keys that do not exist are deleted already. A condition holds for every key.
  Reply<void> Delete(std::string_view bucket, std::span<const std::string> keys, const WriteCondition& condition)
      MR_EXCLUDES(mutex_);
  Reply<Listing> List(std::string_view bucket, const ListQuery& query) const MR_EXCLUDES(mutex_);

  Reply<std::string> CreateUpload(std::string_view bucket, std::string_view key, Upload upload) MR_EXCLUDES(mutex_);
  Reply<Upload> GetUpload(std::string_view bucket, std::string_view key, std::string_view id) const MR_EXCLUDES(mutex_);
  Reply<void> PutPart(std::string_view bucket, std::string_view key, std::string_view id, int number, Part part)
      MR_EXCLUDES(mutex_);
  Reply<void> AbortUpload(std::string_view bucket, std::string_view key, std::string_view id) MR_EXCLUDES(mutex_);
  /// `assemble` makes the object of the upload's parts; it runs under the lock. Completing an upload that was completed
  /// a while ago yields the object it made, as long as that is still there: clients repeat what got no answer.
  Reply<ObjectPtr> CompleteUpload(std::string_view bucket, std::string_view key, std::string_view id,
                                  const WriteCondition& condition,
                                  const std::function<Reply<Object>(const Upload&)>& assemble) MR_EXCLUDES(mutex_);
  Reply<UploadListing> ListUploads(std::string_view bucket, const UploadQuery& query) const MR_EXCLUDES(mutex_);

 private:
  using UploadKey = std::pair<std::string, std::string>;  ///< key, upload id
  struct Bucket {
    WallTime created;
    std::map<std::string, ObjectPtr, std::less<>> objects;
    std::map<UploadKey, std::shared_ptr<Upload>> uploads;
  };
  /// What a change took out of the index; its files may go only when the change is durable.
  using Displaced = std::vector<std::shared_ptr<const void>>;

  Storage(ManagedFolder root, Clock& clock);
  Status Load(bool sync);
  Status TidyPacks(bool sync) MR_REQUIRES(mutex_);

  const Bucket* FindBucket(std::string_view name) const MR_REQUIRES(mutex_);
  Reply<std::shared_ptr<Upload>> FindUpload(std::string_view bucket, std::string_view key, std::string_view id) const
      MR_REQUIRES(mutex_);
  static Reply<void> Check(const Bucket& bucket, std::string_view key, const WriteCondition& condition);
  Displaced Apply(const Record& record) MR_REQUIRES(mutex_);
  void Remember(const Record& completed) MR_REQUIRES(mutex_);
  /// Journals and applies the records, lets the lock go and waits for the disk.
  Reply<void> Commit(MutexLock& lock, std::span<const Record> records) MR_REQUIRES(mutex_);
  Result<std::string> Snapshot() const MR_REQUIRES(mutex_);
  Status CompactIfWorthIt() MR_REQUIRES(mutex_);

  const ManagedFolder root_;
  Clock& clock_;
  UniqueFd root_lock_;
  std::unique_ptr<BlobStore> blobs_;  ///< outlives every Extent below
  mutable Mutex mutex_;
  std::unique_ptr<Journal> journal_;
  std::map<std::string, Bucket, std::less<>> buckets_ MR_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::weak_ptr<const Object>> completed_
      MR_GUARDED_BY(mutex_);  ///< by upload id, the last few
  std::deque<std::string> completed_order_ MR_GUARDED_BY(mutex_);
  std::uint64_t snapshot_bytes_ MR_GUARDED_BY(mutex_) = 0;  ///< the journal's size when it was last compact
};

/// 3…63 characters of a-z, 0-9, '-' and '.', as S3 wants them.
bool IsValidBucketName(std::string_view name);

}  // namespace millrace::s3d
