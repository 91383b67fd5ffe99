#include "millrace/vfs/staging/upload_ledger.h"

#include <algorithm>

#include "millrace/object/blocking.h"

namespace millrace::vfs {
namespace {

/// The most by which the clock of a store may differ from ours (docs/formats/staging.md).
constexpr Duration kSkew = std::chrono::minutes(5);
/// The most time from writing the record to the beginning of the upload: as long as a request is retried.
constexpr Duration kDelay = std::chrono::minutes(5);

Status Abort(object::Store& store, const std::string& key, const std::string& id, const object::Call& call) {
  Status aborted = object::AbortMultipart(store, key, id, call);
  if (!aborted && aborted.error().code() != Code::kNotFound) return aborted;
  return {};
}

}  // namespace

Status AbortRecorded(object::Store& store, const StagedRecord& record, const object::Call& call) {
  if (record.upload_key.empty()) return {};
  if (!record.upload_id.empty()) return Abort(store, record.upload_key, record.upload_id, call);
  for (const auto& upload : MR_TRY(object::ListUploads(store, record.upload_key, call))) {
    if (upload.key != record.upload_key) continue;
    if (upload.initiated < record.upload_begun - kSkew) continue;
    if (upload.initiated > record.upload_begun + kDelay + kSkew) continue;
    auto parts = object::ListParts(store, upload.key, upload.upload_id, call);
    if (!parts && parts.error().code() != Code::kNotFound) return Fail(parts.error());
    if (parts && parts->empty()) MR_TRY(Abort(store, upload.key, upload.upload_id, call));
  }
  return {};
}

Result<UploadLedger::UploadRecord> UploadLedger::Begin(const std::string& key) {
  StagedRecord record{.key = key, .upload_key = key, .upload_begun = clock_.Wall()};
  auto file = MR_TRY(staging_.Create());
  MR_TRY(file->Save(record, /*durable=*/false));
  return UploadRecord(*this, std::move(file), std::move(record));
}

Status UploadLedger::UploadRecord::SetId(std::string id) {
  record_.upload_id = std::move(id);
  return file_->Save(record_, /*durable=*/false);
}

UploadLedger::UploadRecord::~UploadRecord() {
  if (file_) ledger_.Add({std::move(file_), std::move(record_)});
}

void UploadLedger::AddUnconfirmed(const std::string& key, WallTime begun, std::string id) {
  {
    MutexLock lock(mutex_);
    auto earlier = [&](const UnconfirmedUpload& left) {
      return left.record.upload_key == key && left.record.upload_id == id;
    };
    if (std::ranges::any_of(unconfirmed_, earlier)) return;  // Remove() aborts both with one record
  }
  StagedRecord record{.key = key, .upload_id = std::move(id), .upload_key = key, .upload_begun = begun};
  auto file = staging_.Create();
  if (file && (*file)->Save(record, /*durable=*/false)) Add({*std::move(file), std::move(record)});
}

void UploadLedger::Add(UnconfirmedUpload left) {
  left.file->LeaveOnDisk();
  MutexLock lock(mutex_);
  unconfirmed_.push_back(std::move(left));
}

Status UploadLedger::Remove(const object::Call& call) {
  std::vector<UnconfirmedUpload> now;
  {
    MutexLock lock(mutex_);
    now.swap(unconfirmed_);
  }
  Status first;
  for (UnconfirmedUpload& left : now) {
    Status removed = first ? AbortRecorded(store_, left.record, call) : Status(Fail(first.error()));
    if (removed) {
      left.file->RemoveRecord();
    } else {
      first = std::move(removed);
      Add(std::move(left));
    }
  }
  return first;
}

}  // namespace millrace::vfs
