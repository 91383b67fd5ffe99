// MD5 of many byte streams while they arrive, several at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/md5_lanes.h"
#include "millrace/base/threads/sync.h"

namespace millrace::transfer {

/// Joins the MD5 work of concurrent streams. A connection delivers several pieces before the next one gets its turn, so
/// they wait in a queue for each stream; when all streams have one waiting, or much waits in all, the thread that
/// appends hashes one piece of each stream at the same time (base/hash/md5_lanes.h). It has no threads of its own.
/// Holds at most 16 MiB of waiting pieces. Thread-safe; outlives its streams.
class Md5Pool {
 public:
  class Stream;
  static constexpr std::size_t kPieceBytes = 64 * kKiB;

  /// A download under way. Any thread.
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
  /// 16 MiB: of each of sixteen streams twice what a connection delivers in its turn.
  static constexpr std::size_t kMostWaiting = 256;

  /// The shared part of a stream. Guarded by the pool's mutex, except `state` and the front piece during in_work.
  struct Queue {
    Md5State state;
    std::deque<Buffer> pieces;  ///< complete ones, in order
    bool in_work = false;       ///< a thread hashes the front piece
    bool begun = false;         ///< is counted in begun_
  };

  /// An empty buffer for a piece.
  Buffer Take() MR_EXCLUDES(mutex_);
  void Add(Queue& queue, Buffer piece) MR_EXCLUDES(mutex_);
  /// True if there is nothing to gain from waiting for more pieces.
  bool WorthHashing() const MR_REQUIRES(mutex_) {
    return ready_.size() >= std::min(kMd5Lanes, begun_) || waiting_ >= kMostWaiting;
  }
  /// Ends the queue's message: blocks until all its pieces are hashed, at work itself where no other thread is.
  void Drain(Queue& queue) MR_EXCLUDES(mutex_);
  /// Hashes the front pieces of the queues that have waited longest, at most kMd5Lanes.
  void HashWaiting() MR_EXCLUDES(mutex_);

  std::atomic<int> downloads_{0};
  Mutex mutex_;
  CondVar changed_;
  std::deque<Queue*> ready_ MR_GUARDED_BY(mutex_);  ///< with a piece, and not in work
  std::size_t waiting_ MR_GUARDED_BY(mutex_) = 0;   ///< pieces in all queues, those in work too
  std::size_t begun_ MR_GUARDED_BY(mutex_) = 0;     ///< queues in the middle of a message
  std::vector<Buffer> spare_ MR_GUARDED_BY(mutex_);
};

/// One message at a time. Used by one thread at a time. Append and Finish block for as long as pieces that wait take to
/// be hashed (0.3 ms for 16 of them), and never wait for another stream's bytes.
class Md5Pool::Stream {
 public:
  explicit Stream(Md5Pool& pool) : pool_(pool) {}
  ~Stream() { pool_.Drain(queue_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// kPieceBytes of memory for Append.
  Buffer NewPiece() { return pool_.Take(); }
  /// Appends a piece's first `size` bytes.
  /// REQUIRES: size <= kPieceBytes; a piece that is not full is the message's last.
  void Append(Buffer piece, std::size_t size);
  /// The digest of what was appended since the last Finish or Reset. The stream then begins a new message.
  Md5Digest Finish();
  /// Forgets what was appended.
  void Reset();

 private:
  Md5Pool& pool_;
  Queue queue_;
  Buffer last_;
  std::size_t last_bytes_ = 0;
  std::uint64_t total_ = 0;  ///< bytes of the message
};

}  // namespace millrace::transfer
