#include "millrace/checkpoint/save/upload.h"

#include <algorithm>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Counts the parts in flight and collects their results. The uploading thread must call WaitForAll before it destroys
/// this object.
class PartsInFlight {
 public:
  explicit PartsInFlight(std::size_t parts) : parts_(parts) {}

  /// Waits until fewer than `limit` parts are in flight. Returns false once a part has failed.
  bool WaitBelow(int limit) {
    MutexLock lock(mutex_);
    while (in_flight_ >= limit) changed_.Wait(mutex_);
    return !error_;
  }
  void Started() {
    MutexLock lock(mutex_);
    ++in_flight_;
  }
  void Fail(const Error& error) {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
  }
  void Finished(std::size_t index, Result<object::PartInfo> part) {
    MutexLock lock(mutex_);
    if (part) {
      parts_[index] = *std::move(part);
    } else if (!error_) {
      error_ = part.error().Context(fmt::format("part {}", index + 1));
    }
    --in_flight_;
    changed_.NotifyAll();  // under the lock: after the unlock the uploading thread may destroy this object
  }
  Result<std::vector<object::PartInfo>> WaitForAll() {
    WaitBelow(1);
    MutexLock lock(mutex_);
    if (error_) return millrace::Fail(*error_);
    return parts_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int in_flight_ MR_GUARDED_BY(mutex_) = 0;
  std::optional<Error> error_ MR_GUARDED_BY(mutex_);
  std::vector<object::PartInfo> parts_ MR_GUARDED_BY(mutex_);
};

std::uint64_t PartBytes(const object::Limits& limits, std::uint64_t wanted, std::uint64_t size) {
  std::uint64_t parts = static_cast<std::uint64_t>(limits.max_parts);
  return std::min(std::max({wanted, limits.min_part, size / parts + (size % parts != 0), std::uint64_t{1}}),
                  limits.max_part);
}

}  // namespace

Status UploadBytes(object::Store& store, const std::string& key, ByteSpan bytes, const UploadOptions& options,
                   const std::function<Result<std::uint32_t>(ByteSpan)>& before, const object::Call& call) {
  const std::uint64_t part_bytes = PartBytes(store.limits(), options.part_bytes, bytes.size());
  if (bytes.size() <= part_bytes) {
    const std::uint32_t crc32c = MR_TRY(before(bytes));
    MR_TRY(object::Put(store, key, {bytes, crc32c}, {}, call));
    return {};
  }
  const std::string upload_id = MR_TRY(object::CreateMultipart(store, key, {}, call));
  PartsInFlight parts((bytes.size() + part_bytes - 1) / part_bytes);
  for (std::size_t index = 0; index * part_bytes < bytes.size(); ++index) {
    ByteSpan part = bytes.subspan(index * part_bytes, std::min(part_bytes, bytes.size() - index * part_bytes));
    const Result<std::uint32_t> crc32c = before(part);
    if (!crc32c) {
      parts.Fail(crc32c.error());
      break;
    }
    if (!parts.WaitBelow(options.parallel_parts)) break;
    parts.Started();
    store.UploadPart(key, upload_id, static_cast<int>(index) + 1, {part, *crc32c}, call,
                     [&parts, index](Result<object::PartInfo> done) { parts.Finished(index, std::move(done)); });
  }
  auto complete = [&]() -> Status {
    auto uploaded = MR_TRY(parts.WaitForAll());
    MR_TRY(object::CompleteMultipart(store, key, upload_id, std::move(uploaded), {}, call));
    return {};
  };
  if (auto failed = complete(); !failed) {
    // Without the caller's stop token, which may have ended the upload. If the abort fails, the garbage collection
    // aborts the upload.
    std::ignore = object::AbortMultipart(store, key, upload_id, {});
    return failed;
  }
  return {};
}

}  // namespace millrace::checkpoint
