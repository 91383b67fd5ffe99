// Buckets, objects and uploads: an index in memory. A change is durable in the journal before the caller gets an
// answer.
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

/// A condition of a write on the object that it replaces. Checked under the same lock as the write.
struct WriteCondition {
  std::string if_match;        ///< an ETag without quotes, or "*" for any; empty: no condition
  bool if_none_match = false;  ///< the key must not exist
};

struct ListQuery {
  std::string prefix, delimiter;
  std::string after;  ///< only keys and common prefixes greater than this
  int max_keys = 1000;
};
/// An object or a common prefix in a listing.
struct ListingEntry {
  std::string name;  ///< the key, or the prefix
  ObjectPtr object;  ///< null: `name` is a common prefix
};
struct Listing {
  std::vector<ListingEntry> entries;  ///< in the byte order of their names
  bool truncated = false;             ///< more follow the last entry
};

struct UploadQuery {
  std::string prefix, key_marker, upload_id_marker;
  int max_uploads = 1000;
};
struct UploadListingEntry {
  std::string key, upload_id;
  WallTime initiated;
};
struct UploadListing {
  std::vector<UploadListingEntry> entries;
  bool truncated = false;
};

struct BucketInfo {
  std::string name;
  WallTime created;
};

/// The state of an endpoint, on disk in one managed folder (base/files/managed_folder.h). Thread-safe. A write returns
/// when it is durable. Operations on one key are atomic and take place in some order. One process per root: a lock file
/// excludes a second one.
class Storage {
 public:
  /// If `sync` is false, a change survives this process at once, and a power failure some seconds later.
  static Result<std::unique_ptr<Storage>> Open(const std::filesystem::path& root, bool sync, Clock& clock);
  ~Storage();

  BlobStore& blobs() { return *blobs_; }
  WallTime Now() const;  ///< in whole milliseconds, as times are stored

  Reply<void> CreateBucket(std::string_view name) MR_EXCLUDES(mutex_);
  Reply<void> DeleteBucket(std::string_view name) MR_EXCLUDES(mutex_);
  Reply<WallTime> HeadBucket(std::string_view name) const MR_EXCLUDES(mutex_);
  std::vector<BucketInfo> ListBuckets() const MR_EXCLUDES(mutex_);

  Reply<ObjectPtr> Get(std::string_view bucket, std::string_view key) const MR_EXCLUDES(mutex_);
  Reply<ObjectPtr> Put(std::string_view bucket, std::string_view key, Object object, const WriteCondition& condition)
      MR_EXCLUDES(mutex_);
  /// Deletes keys. A key that does not exist is no error. The condition applies to every key.
  Reply<void> Delete(std::string_view bucket, std::span<const std::string> keys, const WriteCondition& condition)
      MR_EXCLUDES(mutex_);
  Reply<Listing> List(std::string_view bucket, const ListQuery& query) const MR_EXCLUDES(mutex_);

  Reply<std::string> CreateUpload(std::string_view bucket, std::string_view key, Upload upload) MR_EXCLUDES(mutex_);
  Reply<Upload> GetUpload(std::string_view bucket, std::string_view key, std::string_view id) const MR_EXCLUDES(mutex_);
  Reply<void> PutPart(std::string_view bucket, std::string_view key, std::string_view id, int number, StoredPart part)
      MR_EXCLUDES(mutex_);
  Reply<void> AbortUpload(std::string_view bucket, std::string_view key, std::string_view id) MR_EXCLUDES(mutex_);
  /// Completes an upload. `assemble` makes the object of the upload's parts and runs under the lock. If the upload is
  /// already completed, returns the object that it made, as long as that exists: clients repeat a request that got no
  /// answer.
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
  /// Objects, uploads and parts that a change took out of the index. They keep their files until the change is durable.
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
  /// Appends the records to the journal, applies them, releases the lock and waits for the disk.
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
      MR_GUARDED_BY(mutex_);  ///< by upload id, the latest ones
  std::deque<std::string> completed_order_ MR_GUARDED_BY(mutex_);
  std::uint64_t snapshot_bytes_ MR_GUARDED_BY(mutex_) = 0;  ///< the journal's size when it was last compact
};

/// Returns whether S3 allows the name: 3 to 63 characters of a-z, 0-9, '-' and '.', and its other rules.
bool IsValidBucketName(std::string_view name);

}  // namespace millrace::s3d
