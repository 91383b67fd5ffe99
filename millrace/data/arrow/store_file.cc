#include "millrace/data/arrow/store_file.h"

#include <arrow/buffer.h>

#include <algorithm>

#include "millrace/data/arrow/status.h"

namespace millrace::data::arrow_format {
namespace {

/// Ranges with a smaller gap between them are read at once. A guess: 256 KiB cost less than another round trip.
constexpr std::uint64_t kMaxGap = 256 * kKiB;

}  // namespace

Status StoreFile::Fetch(std::vector<object::ByteRange> ranges) {
  std::ranges::sort(ranges, {}, &object::ByteRange::offset);
  for (std::size_t i = 0; i < ranges.size();) {
    object::ByteRange whole = ranges[i];
    for (++i; i < ranges.size() && ranges[i].offset <= whole.offset + whole.length + kMaxGap; ++i) {
      whole.length = std::max(whole.length, ranges[i].offset + ranges[i].length - whole.offset);
    }
    auto bytes = Load(whole);
    if (!bytes.ok()) return Fail(error_ ? *error_ : ToError(bytes.status(), object_.url));
    fetched_.push_back({whole.offset, *std::move(bytes)});
  }
  return {};
}

arrow::Result<std::shared_ptr<arrow::Buffer>> StoreFile::Load(object::ByteRange range) {
  ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateBuffer(static_cast<std::int64_t>(range.length)));
  MutableByteSpan into(reinterpret_cast<std::byte*>(buffer->mutable_data()), range.length);
  if (range.length > 0) {
    Status read = ReadRange(object_, range.offset, into, "reading", call_);
    if (!read) {
      if (!error_) error_ = read.error();
      return arrow::Status::IOError(read.error().ToString());
    }
  }
  return buffer;
}

arrow::Result<object::ByteRange> StoreFile::Clip(std::int64_t position, std::int64_t bytes) const {
  if (position < 0 || bytes < 0) return arrow::Status::Invalid("a read of ", bytes, " bytes at ", position);
  auto size = object_.info.size, offset = std::min(static_cast<std::uint64_t>(position), size);
  return object::ByteRange{offset, std::min(static_cast<std::uint64_t>(bytes), size - offset)};
}

arrow::Result<std::shared_ptr<arrow::Buffer>> StoreFile::ReadAt(std::int64_t position, std::int64_t bytes) {
  ARROW_ASSIGN_OR_RAISE(object::ByteRange range, Clip(position, bytes));
  for (const Fetched& one : fetched_) {
    std::uint64_t have = static_cast<std::uint64_t>(one.bytes->size());
    if (range.offset < one.offset || range.offset + range.length > one.offset + have) continue;
    return arrow::SliceBuffer(one.bytes, static_cast<std::int64_t>(range.offset - one.offset),
                              static_cast<std::int64_t>(range.length));
  }
  return Load(range);
}

arrow::Result<std::int64_t> StoreFile::ReadAt(std::int64_t position, std::int64_t bytes, void* into) {
  ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(position, bytes));
  std::copy_n(buffer->data(), buffer->size(), static_cast<std::uint8_t*>(into));
  return buffer->size();
}

arrow::Result<std::int64_t> StoreFile::Read(std::int64_t bytes, void* into) {
  ARROW_ASSIGN_OR_RAISE(std::int64_t got, ReadAt(position_, bytes, into));
  position_ += got;
  return got;
}

arrow::Result<std::shared_ptr<arrow::Buffer>> StoreFile::Read(std::int64_t bytes) {
  ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(position_, bytes));
  position_ += buffer->size();
  return buffer;
}

arrow::Status StoreFile::Seek(std::int64_t position) {
  if (position < 0) return arrow::Status::Invalid("a position of ", position);
  position_ = position;
  return arrow::Status::OK();
}

arrow::Status StoreFile::Close() {
  closed_ = true;
  return arrow::Status::OK();
}

}  // namespace millrace::data::arrow_format
