// MD5 of many byte streams while they arrive, several at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/md5_lanes.h"
#include "millrace/base/sync.h"

namespace millrace::transfer {

/// Joins the MD5 work of concurrent streams: each gathers its bytes in pieces of 64 KiB, and the thread that completes
/// one hashes it together with complete pieces of other streams (base/md5_lanes.h). It has no threads of its own, and
/// holds 128 KiB a stream. Thread-safe; outlives its streams.
class Md5Pool {
 public:
  class Stream;

 private:
  static constexpr std::size_t kPieceBytes = 64 * kKiB;
  static_assert(kPieceBytes % kMd5BlockBytes == 0);

  /// A stream's complete piece, and the state that is to advance over it.
  struct Piece {
    enum class Stage { kHashed, kWaiting, kInWork };
    Md5State state;
    Buffer bytes;
    Stage stage = Stage::kHashed;
  };

  /// Blocks until the piece is hashed, at work itself where no other thread is.
  void AwaitHashed(Piece& piece) MR_EXCLUDES(mutex_);
  /// REQUIRES: piece.stage is kHashed; its bytes are new.
  void Add(Piece& piece) MR_EXCLUDES(mutex_);
  /// Hashes the pieces that have waited longest, at most kMd5Lanes.
  void HashWaiting() MR_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::vector<Piece*> waiting_ MR_GUARDED_BY(mutex_);  ///< their stages are guarded too
};

/// One message at a time. Used by one thread at a time. Append and Finish block for as long as 64 KiB of 16 streams
/// take to be hashed (0.3 ms), and never wait for another stream's bytes.
class Md5Pool::Stream {
 public:
  explicit Stream(Md5Pool& pool) : pool_(pool) {}
  ~Stream() { pool_.AwaitHashed(piece_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void Append(ByteSpan bytes);
  /// The digest of what was appended since the last Finish or Reset. The stream then begins a new message.
  Md5Digest Finish();
  /// Forgets what was appended.
  void Reset();

 private:
  Md5Pool& pool_;
  Piece piece_;
  Buffer filling_;
  std::size_t filled_ = 0;
  std::uint64_t total_ = 0;  ///< bytes of the message
};

}  // namespace millrace::transfer
