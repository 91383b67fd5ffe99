// Multipart uploads that nobody may be left to end, written down in the staging folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/object/store.h"
#include "millrace/vfs/staging/staging_area.h"

namespace millrace::vfs {

/// Removes from the store the upload that a record names. Of one whose id nobody learnt only the key is known, about
/// when it was begun (from five minutes before to ten after it was written down), and that it has no parts: those of
/// others that are like it go too, and are begun anew.
Status AbortRecorded(object::Store& store, const StagedRecord& record, const object::Call& call);

/// Uploads of one process. Each is written down before it is begun, so that the next mount removes it should this
/// process die; one whose end, or beginning, the store did not confirm is removed later. Thread-safe. The store, the
/// area and the clock must outlive it.
class UploadLedger {
 public:
  UploadLedger(object::Store& store, StagingArea& staging, const Clock& clock)
      : store_(store), staging_(staging), clock_(clock) {}

  /// One upload. Destroyed before it is over, it is left for Remove, and for the next mount.
  class UploadRecord {
   public:
    UploadRecord(UploadRecord&&) = default;
    UploadRecord& operator=(UploadRecord&&) = delete;
    ~UploadRecord();
    Status SetId(std::string id);
    /// It is completed, or aborted.
    void MarkEnded() { file_.reset(); }

   private:
    friend class UploadLedger;
    UploadRecord(UploadLedger& ledger, std::unique_ptr<StagedFile> file, StagedRecord record)
        : ledger_(ledger), file_(std::move(file)), record_(std::move(record)) {}
    UploadLedger& ledger_;
    std::unique_ptr<StagedFile> file_;
    StagedRecord record_;
  };
  /// Before an upload of that key is begun.
  Result<UploadRecord> Begin(const std::string& key);
  /// The store may still have an upload of that key, begun since, whose end it did not confirm, nor, without an id, its
  /// beginning.
  void AddUnconfirmed(const std::string& key, WallTime begun, std::string id = {}) MR_EXCLUDES(mutex_);

  /// Removes what was left. Fails with the first failure; the rest stays for the next call, or the next mount.
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
