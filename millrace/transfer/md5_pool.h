// MD5 of many byte streams while they arrive, several at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/md5_lanes.h"
#include "millrace/base/sync.h"

namespace millrace::transfer {

/// Joins the MD5 work of concurrent streams. Bytes of a stream come in bursts, so each gathers pieces of 64 KiB in a
/// queue; when many streams have one waiting, or much waits in all, the thread that appends hashes one piece of each
/// stream at the same time (base/md5_lanes.h). It has no threads of its own. Holds at most 8 MiB of waiting pieces, and
/// 64 KiB a stream. Thread-safe; outlives its streams.
class Md5Pool {
 public:
  class Stream;

 private:
  static constexpr std::size_t kPieceBytes = 64 * kKiB;
  static_assert(kPieceBytes % kMd5BlockBytes == 0);
  /// 8 MiB: eight pieces of each of sixteen streams, which is about a socket's buffer each.
  static constexpr std::size_t kMostWaiting = 128;

  /// What is shared of a stream. Guarded by the pool's mutex, but `state` and the front piece while it is in work.
  struct Queue {
    Md5State state;
    std::deque<Buffer> pieces;  ///< complete ones, in order
    bool in_work = false;       ///< a thread hashes the front piece
  };

  /// An empty buffer for a piece.
  Buffer Take() MR_EXCLUDES(mutex_);
  void Add(Queue& queue, Buffer piece) MR_EXCLUDES(mutex_);
  /// Blocks until all pieces of the queue are hashed, at work itself where no other thread is.
  void AwaitHashed(Queue& queue) MR_EXCLUDES(mutex_);
  /// Hashes the front pieces of the queues that have waited longest, at most kMd5Lanes.
  void HashWaiting() MR_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::deque<Queue*> ready_ MR_GUARDED_BY(mutex_);  ///< with a piece, and not in work
  std::size_t waiting_ MR_GUARDED_BY(mutex_) = 0;   ///< pieces in all queues, those in work too
  std::vector<Buffer> spare_ MR_GUARDED_BY(mutex_);
};

/// One message at a time. Used by one thread at a time. Append and Finish block for as long as pieces that wait take to
/// be hashed (0.3 ms for 16 of them), and never wait for another stream's bytes.
class Md5Pool::Stream {
 public:
  explicit Stream(Md5Pool& pool) : pool_(pool) {}
  ~Stream() { pool_.AwaitHashed(queue_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void Append(ByteSpan bytes);
  /// The digest of what was appended since the last Finish or Reset. The stream then begins a new message.
  Md5Digest Finish();
  /// Forgets what was appended.
  void Reset();

 private:
  Md5Pool& pool_;
  Queue queue_;
  Buffer filling_;
  std::size_t filled_ = 0;
  std::uint64_t total_ = 0;  ///< bytes of the message
};

}  // namespace millrace::transfer
