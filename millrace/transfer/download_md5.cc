#include "millrace/transfer/download_md5.h"

#include <algorithm>

#include "millrace/base/files.h"

namespace millrace::transfer {
namespace {

constexpr std::uint64_t kFollowPiece = 256 * kKiB;  // stays in the processor's cache between reading and hashing

}  // namespace

PartMd5s::PartMd5s(Md5Pool& pool, std::uint64_t object_bytes, std::uint64_t part_bytes)
    : pool_(pool),
      object_bytes_(object_bytes),
      part_bytes_(part_bytes),
      digests_(static_cast<std::size_t>((object_bytes + part_bytes - 1) / part_bytes)) {}

void PartMd5s::Request::Take(std::uint64_t offset, ByteSpan bytes) {
  while (!bytes.empty() && offset < md5s_.object_bytes_) {
    const std::uint64_t part = offset / md5s_.part_bytes_;
    const std::uint64_t end = std::min((part + 1) * md5s_.part_bytes_, md5s_.object_bytes_);
    const ByteSpan some = bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), end - offset)));
    stream_.Append(some);
    offset += some.size();
    bytes = bytes.subspan(some.size());
    if (offset == end) md5s_.digests_[part] = stream_.Finish();
  }
}

bool PartMd5s::Prove(const object::Checksum& expected) const {
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
      stream_(pool),
      piece_(static_cast<std::size_t>(std::min(kFollowPiece, object_bytes))) {}

Result<bool> FollowingMd5::Advance() {
  if (hashed_ == object_bytes_) return false;
  const std::uint64_t part = hashed_ / part_bytes_;
  if (!arrived_[part].load(std::memory_order_acquire)) return false;
  const std::uint64_t end = std::min((part + 1) * part_bytes_, object_bytes_);
  const MutableByteSpan bytes = piece_.span().first(std::min<std::uint64_t>(piece_.size(), end - hashed_));
  MR_TRY(ReadExactly(fd_, bytes, hashed_, what_));
  stream_.Append(bytes);
  hashed_ += bytes.size();
  return true;
}

bool FollowingMd5::Prove(const object::Checksum& expected) {
  return hashed_ == object_bytes_ && AsText(stream_.Finish()) == expected.value;
}

}  // namespace millrace::transfer
