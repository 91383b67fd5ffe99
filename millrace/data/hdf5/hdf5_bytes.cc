#include "millrace/data/hdf5/hdf5_bytes.h"

#include <algorithm>
#include <cstring>

namespace millrace::data {

ByteSpan FieldCursor::Bytes(std::size_t count) {
  if (count > bytes_.size()) {
    ok_ = false;
    bytes_ = {};
    return {};
  }
  ByteSpan taken = bytes_.first(count);
  bytes_ = bytes_.subspan(count);
  return taken;
}

std::uint64_t FieldCursor::Take(std::size_t width) {
  std::uint64_t value = 0;
  int shift = 0;
  for (std::byte byte : Bytes(width)) {
    value |= std::to_integer<std::uint64_t>(byte) << shift;
    shift += 8;
  }
  return value;
}

Result<Buffer> MetadataReader::Read(std::uint64_t address, std::uint64_t bytes) {
  if (address > object_.info.size || bytes > object_.info.size - address) {
    return Corrupt("a part of it lies behind its end");
  }
  Buffer read(bytes);
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t page = (address + done) / kPageBytes, begin = (address + done) % kPageBytes;
    auto at = pages_.find(page);
    if (at == pages_.end()) {
      if ((pages_.size() + 1) * kPageBytes > kMax) return Unsupported("its tables are too large to be held in memory");
      Buffer content(std::min(kPageBytes, object_.info.size - page * kPageBytes));
      MR_TRY(ReadRange(object_, page * kPageBytes, content.span(), "reading the tables of", call_));
      at = pages_.emplace(page, std::move(content)).first;
    }
    const std::uint64_t some = std::min(bytes - done, at->second.size() - begin);
    std::memcpy(read.data() + done, at->second.data() + begin, some);
    done += some;
  }
  return read;
}

std::unexpected<Error> MetadataReader::Corrupt(std::string_view why) const {
  return Fail(Code::kCorrupt, "{}: this HDF5 file is damaged: {}", object_.url, why);
}

std::unexpected<Error> MetadataReader::Unsupported(std::string_view what) const {
  return Fail(
      Code::kUnsupported,
      "{}: this HDF5 file cannot be read: {}. Write it with h5py's defaults (no libver), gzip or no compression",
      object_.url, what);
}

}  // namespace millrace::data
