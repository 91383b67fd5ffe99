// Encoded bytes for a decoder, front to back.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/data/records/data_object.h"

namespace millrace::data {

/// A sequence of byte spans. One thread.
class InputStream {
 public:
  virtual ~InputStream() = default;
  /// Returns the next span, which is valid until the next call. Empty: the end. Blocks.
  virtual Result<ByteSpan> Next() = 0;
};

/// One span in memory, which must outlive the stream.
class MemoryInputStream final : public InputStream {
 public:
  explicit MemoryInputStream(ByteSpan bytes) : bytes_(bytes) {}
  Result<ByteSpan> Next() override { return std::exchange(bytes_, {}); }

 private:
  ByteSpan bytes_;
};

/// An object from `offset` to its end, read ahead. kAhead reads of up to kReadBytes are under way or wait to be taken.
/// The object must outlive the stream. Destruction cancels the reads and waits for them.
class ObjectInputStream final : public InputStream {
 public:
  // 16 MiB are in flight: 160 MB/s at a latency of 100 ms.
  static constexpr std::uint64_t kReadBytes = 4 * kMiB;
  static constexpr std::size_t kAhead = 4;

  ObjectInputStream(const DataObject& object, std::uint64_t offset, object::Call call);
  ~ObjectInputStream() override;
  /// Errors as ReadRange's.
  Result<ByteSpan> Next() override;

 private:
  struct PendingRead {
    Buffer bytes;
    std::uint64_t offset = 0;
    std::optional<Result<std::optional<object::GetResult>>> got;
  };
  /// Starts the next read, if there is one.
  void StartRead();

  const DataObject& object_;
  const object::Call call_;
  std::stop_source cancel_;
  std::stop_callback<std::function<void()>> relay_;
  std::uint64_t asked_;  ///< end of the last read that was started, in the object
  Buffer given_;         ///< the bytes that Next returned last; the next read uses the memory again
  Mutex mutex_;
  CondVar arrived_;
  std::deque<std::unique_ptr<PendingRead>> ahead_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::data
