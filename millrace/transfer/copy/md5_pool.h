// MD5 of many byte streams while they arrive, several at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/md5_lanes.h"
#include "millrace/base/threads/sync.h"

namespace millrace::transfer {

/// Joins the MD5 work of concurrent streams. A connection delivers several pieces before the next connection gets its
/// turn, so each stream has a queue of pieces. When all streams have a piece waiting, or kMaxWaiting pieces wait in
/// all, the appending thread hashes one piece of each stream at the same time (base/hash/md5_lanes.h). The pool has no
/// threads of its own. It holds at most 16 MiB of waiting pieces. Thread-safe.
/// REQUIRES: the pool outlives its streams.
class Md5Pool {
 public:
  class Stream;
  /// Long enough that waking and queueing cost little beside hashing (12 µs at 5 GB/s), short enough that a stream's
  /// last, partial piece matters little.
  static constexpr std::size_t kPieceBytes = 64 * kKiB;

  /// Counts a download while it exists. Any thread may make one.
  class Download {
   public:
    explicit Download(Md5Pool& pool) : pool_(pool) { ++pool_.downloads_; }
    ~Download() { --pool_.downloads_; }
    Download(const Download&) = delete;
    Download& operator=(const Download&) = delete;

   private:
    Md5Pool& pool_;
  };
  int downloads() const { return downloads_; }

 private:
  static_assert(kPieceBytes % kMd5BlockBytes == 0);
  /// 16 MiB: for each of sixteen streams, twice the 512 KiB that a connection delivers in its turn.
  static constexpr std::size_t kMaxWaiting = 256;

  /// The part of a stream that other threads use. Guarded by mutex_, except `state` and the front piece while in_work.
  struct Queue {
    Md5State state;
    std::deque<Buffer> pieces;  ///< complete ones, in order
    bool in_work = false;       ///< a thread hashes the front piece
    bool begun = false;         ///< is counted in begun_
  };

  /// Returns a buffer for a piece.
  Buffer Take() MR_EXCLUDES(mutex_);
  /// Queues a whole piece, and hashes if WorthHashing().
  void Add(Queue& queue, Buffer piece) MR_EXCLUDES(mutex_);
  /// Returns true if waiting for more pieces gains nothing.
  bool WorthHashing() const MR_REQUIRES(mutex_) {
    return ready_.size() >= std::min(kMd5Lanes, begun_) || waiting_ >= kMaxWaiting;
  }
  /// Blocks until all pieces of the queue are hashed. Hashes them itself if no other thread does.
  void Drain(Queue& queue) MR_EXCLUDES(mutex_);
  /// Hashes the front pieces of the queues that have waited longest, at most kMd5Lanes.
  void HashWaiting() MR_EXCLUDES(mutex_);

  std::atomic<int> downloads_{0};
  Mutex mutex_;
  CondVar changed_;
  std::deque<Queue*> ready_ MR_GUARDED_BY(mutex_);  ///< queues with a piece that are not in_work
  std::size_t waiting_ MR_GUARDED_BY(mutex_) = 0;   ///< pieces in all queues, also those that are being hashed
  std::size_t begun_ MR_GUARDED_BY(mutex_) = 0;     ///< queues in the middle of a message
  std::vector<Buffer> spare_ MR_GUARDED_BY(mutex_);
};

/// Computes the MD5 of one message after another. One thread at a time. Append and Finish may block while waiting
/// pieces are hashed (0.3 ms for 16 of them). They never wait for another stream's bytes.
class Md5Pool::Stream {
 public:
  explicit Stream(Md5Pool& pool) : pool_(pool) {}
  ~Stream() { pool_.Drain(queue_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Returns kPieceBytes of memory for Append().
  Buffer NewPiece() { return pool_.Take(); }
  /// Appends a piece's first `size` bytes.
  /// REQUIRES: size <= kPieceBytes; a piece that is not full is the message's last.
  void Append(Buffer piece, std::size_t size);
  /// Returns the digest of the bytes appended since the last Finish or Reset. The stream then begins a new message.
  Md5Digest Finish();
  /// Drops the message and begins a new one.
  void Reset();

 private:
  Md5Pool& pool_;
  Queue queue_;
  Buffer last_;
  std::size_t last_bytes_ = 0;
  std::uint64_t total_ = 0;  ///< bytes of the message
};

}  // namespace millrace::transfer
