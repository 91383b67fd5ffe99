// A write-ahead log of this process's multipart uploads. The next mount aborts those that a crash left open.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/object/store.h"
#include "millrace/vfs/staging/staging_area.h"

namespace millrace::vfs {

/// Aborts the upload of a record. If the answer of the store was lost, the record has no upload id. Then aborts all
/// uploads of the key that have no parts and were begun from five minutes before to ten minutes after the record was
/// written. Some of these may be other clients'; those clients begin them again.
Status AbortRecorded(object::Store& store, const StagedRecord& record, const object::Call& call);

/// The multipart uploads of one process. A record in the staging area is written before an upload is begun, so that the
/// next mount aborts the upload if this process dies. If the store did not confirm the beginning or the end of an
/// upload, Remove() aborts it later. Thread-safe. The store, the area and the clock must outlive it.
class UploadLedger {
 public:
  UploadLedger(object::Store& store, StagingArea& staging, const Clock& clock)
      : store_(store), staging_(staging), clock_(clock) {}

  /// The record of one upload. If it is destroyed before MarkEnded, the upload is left for Remove() and the next mount.
  class UploadRecord {
   public:
    UploadRecord(UploadRecord&&) = default;
    UploadRecord& operator=(UploadRecord&&) = delete;
    ~UploadRecord();
    Status SetId(std::string id);
    /// Call when the store has confirmed that the upload is completed or aborted.
    void MarkEnded() { file_.reset(); }

   private:
    friend class UploadLedger;
    UploadRecord(UploadLedger& ledger, std::unique_ptr<StagedFile> file, StagedRecord record)
        : ledger_(ledger), file_(std::move(file)), record_(std::move(record)) {}
    UploadLedger& ledger_;
    std::unique_ptr<StagedFile> file_;
    StagedRecord record_;
  };
  /// Writes a record. Call before an upload of that key is begun.
  Result<UploadRecord> Begin(const std::string& key);
  /// Records an upload of `key`, begun at `begun` or later, whose end the store did not confirm. `id` is empty if the
  /// store did not confirm the beginning either.
  void AddUnconfirmed(const std::string& key, WallTime begun, std::string id = {}) MR_EXCLUDES(mutex_);

  /// Aborts the unconfirmed uploads. Blocks. Returns the first failure; the upload that failed, and the rest, stay for
  /// the next call or the next mount.
  Status Remove(const object::Call& call) MR_EXCLUDES(mutex_);

 private:
  struct UnconfirmedUpload {
    std::unique_ptr<StagedFile> file;
    StagedRecord record;
  };
  void Add(UnconfirmedUpload left) MR_EXCLUDES(mutex_);

  object::Store& store_;
  StagingArea& staging_;
  const Clock& clock_;
  Mutex mutex_;
  std::vector<UnconfirmedUpload> unconfirmed_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
