// The MD5s by which a store vouches for an object, found out while the object is downloaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "millrace/base/result.h"
#include "millrace/object/object_info.h"
#include "millrace/transfer/copy/md5_pool.h"
#include "millrace/transfer/copy/verify.h"

namespace millrace::transfer {

/// MD5s of the parts that an object was uploaded in, for requests that begin where such a part begins. Requests of
/// different parts may be written from different threads at the same time.
class PartMd5s {
 public:
  /// REQUIRES: part_bytes > 0. `pool` outlives this.
  PartMd5s(Md5Pool& pool, std::uint64_t object_bytes, std::uint64_t part_bytes);

  /// Hashes the bytes of one request, in order.
  class Request {
   public:
    explicit Request(PartMd5s& md5s) : md5s_(md5s), stream_(md5s.pool_) {}
    /// The size of the piece at `offset`: at most kPieceBytes, and never beyond the end of a part.
    std::size_t PieceAt(std::uint64_t offset) const;
    Buffer NewPiece() { return stream_.NewPiece(); }
    /// Takes PieceAt(offset) bytes. REQUIRES: `offset` begins a part, or follows the piece before.
    void Take(std::uint64_t offset, Buffer piece);
    /// The request begins again.
    void Reset() { stream_.Reset(); }

   private:
    PartMd5s& md5s_;
    Md5Pool::Stream stream_;
  };

  /// True if every part was seen to its end and their digests make up `expected`. False proves nothing: parts of an
  /// earlier run were not seen.
  bool Prove(const object::Checksum& expected) const;

 private:
  Md5Pool& pool_;
  const std::uint64_t object_bytes_, part_bytes_;
  std::vector<std::optional<Md5Digest>> digests_;  ///< one a part
};

/// The MD5 of a whole object whose parts arrive in any order. It follows them through the file in theirs, while later
/// ones arrive; what it reads has just been written. Arrived is for any thread, the rest for the owner.
class FollowingMd5 {
 public:
  FollowingMd5(Md5Pool& pool, int fd, std::uint64_t object_bytes, std::uint64_t part_bytes, std::string what);

  void Arrived(std::uint64_t part) { arrived_[part].store(true, std::memory_order_release); }
  /// Hashes a piece. False if the next part has not arrived, or all are hashed.
  Result<bool> Advance();
  /// True if all parts were hashed and the digest is `expected`.
  bool Prove(const object::Checksum& expected);

 private:
  const int fd_;
  const std::uint64_t object_bytes_, part_bytes_;
  const std::string what_;
  std::deque<std::atomic<bool>> arrived_;
  std::uint64_t hashed_ = 0;  ///< bytes
  Md5Pool::Stream stream_;
};

}  // namespace millrace::transfer
