#include "millrace/transfer/copy/download_md5.h"

#include <algorithm>

#include "millrace/base/files/files.h"

namespace millrace::transfer {
PartMd5s::PartMd5s(Md5Pool& pool, std::uint64_t object_bytes, std::uint64_t part_bytes)
    : pool_(pool),
      object_bytes_(object_bytes),
      part_bytes_(part_bytes),
      digests_(static_cast<std::size_t>((object_bytes + part_bytes - 1) / part_bytes)) {}

std::size_t PartMd5s::Request::PieceAt(std::uint64_t offset) const {
  const std::uint64_t part_end = (offset / md5s_.part_bytes_ + 1) * md5s_.part_bytes_;
  const std::uint64_t end = std::min(part_end, md5s_.object_bytes_);
  return static_cast<std::size_t>(std::min<std::uint64_t>(Md5Pool::kPieceBytes, end - offset));
}

void PartMd5s::Request::Take(std::uint64_t offset, Buffer piece) {
  const std::uint64_t part = offset / md5s_.part_bytes_;
  const std::uint64_t end = offset + PieceAt(offset);
  stream_.Append(std::move(piece), static_cast<std::size_t>(end - offset));
  if (end % md5s_.part_bytes_ == 0 || end == md5s_.object_bytes_) md5s_.digests_[part] = stream_.Finish();
}

bool PartMd5s::Matches(const object::Checksum& expected) const {
  PartDigests digests;
  for (const auto& digest : digests_) {
    if (!digest) return false;
    digests.push_back(*digest);
  }
  if (expected.parts > 0) return DigestsHave(digests, expected);
  return digests.size() == 1 && AsText(digests.front()) == expected.value;
}

FollowingMd5::FollowingMd5(Md5Pool& pool, int fd, std::uint64_t object_bytes, std::uint64_t part_bytes,
                           std::string what)
    : fd_(fd),
      object_bytes_(object_bytes),
      part_bytes_(part_bytes),
      what_(std::move(what)),
      arrived_(static_cast<std::size_t>((object_bytes + part_bytes - 1) / part_bytes)),
      stream_(pool) {}

Result<bool> FollowingMd5::Advance() {
  if (hashed_ == object_bytes_) return false;
  const std::uint64_t end = std::min(hashed_ + Md5Pool::kPieceBytes, object_bytes_);
  for (std::uint64_t part = hashed_ / part_bytes_; part <= (end - 1) / part_bytes_; ++part) {
    if (!arrived_[part].load(std::memory_order_acquire)) return false;
  }
  Buffer piece = stream_.NewPiece();
  const auto size = static_cast<std::size_t>(end - hashed_);
  MR_TRY(ReadExactly(fd_, piece.span().first(size), hashed_, what_));
  stream_.Append(std::move(piece), size);
  hashed_ = end;
  return true;
}

bool FollowingMd5::Matches(const object::Checksum& expected) {
  return hashed_ == object_bytes_ && AsText(stream_.Finish()) == expected.value;
}

}  // namespace millrace::transfer
