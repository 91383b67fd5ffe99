// Bytes of an object, front to back.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <stop_token>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/data/content/content.h"

namespace millrace::data {

/// A sequence of pieces of bytes. One thread.
class Input {
 public:
  virtual ~Input() = default;
  /// The next piece, valid until the next call; an empty one at the end. Blocks.
  virtual Result<ByteSpan> Next() = 0;
};

/// One piece that is in memory. The bytes must outlive it.
class MemoryInput final : public Input {
 public:
  explicit MemoryInput(ByteSpan bytes) : bytes_(bytes) {}
  Result<ByteSpan> Next() override { return std::exchange(bytes_, {}); }

 private:
  ByteSpan bytes_;
};

/// The object from `offset` to its end, read ahead: kAhead pieces of up to kPieceBytes are on their way or waiting. The
/// object must outlive it. Destruction cancels what is on its way and waits for it.
class ObjectStream final : public Input {
 public:
  static constexpr std::uint64_t kPieceBytes = 4 * kMiB;
  static constexpr std::size_t kAhead = 4;

  ObjectStream(const DataObject& object, std::uint64_t offset, object::Call call);
  ~ObjectStream() override;
  /// Errors as ReadRange's.
  Result<ByteSpan> Next() override;

 private:
  struct Piece {
    Buffer bytes;
    std::uint64_t offset = 0;
    std::optional<Result<std::optional<object::GetResult>>> got;
  };
  void Ask();

  const DataObject& object_;
  const object::Call call_;
  std::stop_source cancel_;
  std::stop_callback<std::function<void()>> relay_;
  std::uint64_t asked_;  ///< up to here
  Buffer given_;         ///< what Next returned last; its memory is used again
  Mutex mutex_;
  CondVar arrived_;
  std::deque<std::unique_ptr<Piece>> ahead_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::data
