// Computes an object's MD5s while it is downloaded, to compare them with the store's ETag.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "millrace/base/hash/digest.h"
#include "millrace/base/result.h"
#include "millrace/object/object_info.h"
#include "millrace/transfer/copy/md5_pool.h"
#include "millrace/transfer/copy/verify.h"

namespace millrace::transfer {

/// The MD5s of the parts in which an object was uploaded. Each request begins at the beginning of such a part. Threads
/// may hash requests of different parts at the same time.
class PartMd5s {
 public:
  /// REQUIRES: part_bytes > 0; `pool` outlives this object.
  PartMd5s(Md5Pool& pool, std::uint64_t object_bytes, std::uint64_t part_bytes);

  /// Hashes the bytes of one request, in order.
  class Request {
   public:
    explicit Request(PartMd5s& md5s) : md5s_(md5s), stream_(md5s.pool_) {}
    /// Returns the size of the piece at `offset`: at most kPieceBytes, and never beyond the end of a part.
    std::size_t PieceAt(std::uint64_t offset) const;
    Buffer NewPiece() { return stream_.NewPiece(); }
    /// Hashes the first PieceAt(offset) bytes of `piece`.
    /// REQUIRES: `offset` is the beginning of a part or the end of the piece before.
    void Take(std::uint64_t offset, Buffer piece);
    /// Drops the bytes so far: the request begins again.
    void Reset() { stream_.Reset(); }

   private:
    PartMd5s& md5s_;
    Md5Pool::Stream stream_;
  };

  /// Returns true if every part was hashed to its end and the digests give `expected`. False does not mean damage:
  /// parts that an earlier run has downloaded are not hashed.
  bool Matches(const object::Checksum& expected) const;

 private:
  Md5Pool& pool_;
  const std::uint64_t object_bytes_, part_bytes_;
  std::vector<std::optional<Md5Digest>> digests_;  ///< per part
};

/// The MD5 of a whole object whose parts arrive in any order. Reads the parts from the file in their order while later
/// ones arrive. The parts have just been written, so they are in the page cache. Any thread may call Arrived; all else
/// is for the owner's thread.
class FollowingMd5 {
 public:
  FollowingMd5(Md5Pool& pool, int fd, std::uint64_t object_bytes, std::uint64_t part_bytes, std::string what);

  /// Reports that a part is in the file.
  void Arrived(std::uint64_t part) { arrived_[part].store(true, std::memory_order_release); }
  /// Hashes a piece and returns true. Returns false if the next part has not arrived, or all are hashed.
  Result<bool> Advance();
  /// Returns true if all parts were hashed and the digest is `expected`.
  bool Matches(const object::Checksum& expected);

 private:
  const int fd_;
  const std::uint64_t object_bytes_, part_bytes_;
  const std::string what_;
  std::deque<std::atomic<bool>> arrived_;
  std::uint64_t hashed_ = 0;  ///< bytes
  Md5Pool::Stream stream_;
};

}  // namespace millrace::transfer
