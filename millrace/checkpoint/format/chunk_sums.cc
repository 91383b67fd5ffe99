#include "millrace/checkpoint/format/chunk_sums.h"

#include <algorithm>
#include <utility>

#include "millrace/base/hash/crc.h"

namespace millrace::checkpoint {

std::uint32_t ChunkSums::Add(ByteSpan bytes) {
  std::uint32_t all = 0;
  while (!bytes.empty()) {
    const std::uint64_t room = chunk_bytes_ - size_ % chunk_bytes_;
    ByteSpan run = bytes.first(std::min<std::uint64_t>(room, bytes.size()));
    const std::uint32_t own = Crc32c(run);
    open_ = Crc32cCombine(open_, own, run.size());
    all = Crc32cCombine(all, own, run.size());
    size_ += run.size();
    bytes = bytes.subspan(run.size());
    if (size_ % chunk_bytes_ == 0) sums_.push_back(std::exchange(open_, 0));
  }
  return all;
}

FileMeta ChunkSums::Finish() {
  if (size_ % chunk_bytes_ != 0) sums_.push_back(open_);
  return {size_, chunk_bytes_, std::move(sums_)};
}

}  // namespace millrace::checkpoint
