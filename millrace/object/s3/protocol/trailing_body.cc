#include "millrace/object/s3/protocol/trailing_body.h"

#include <algorithm>
#include <cstring>

#include "millrace/base/hash/crc.h"
#include "millrace/object/s3/protocol/checksums.h"

namespace millrace::object::s3 {
namespace {

// S3 demands chunks of at least 8 KiB. Servers buffer a whole chunk, so it should not be large either.
constexpr std::uint64_t kPiece = 64 * kKiB;
constexpr std::string_view kHead = "10000\r\n", kEnd = "\r\n";  // kPiece in hexadecimal, as chunked coding demands
constexpr std::uint64_t kStride = kHead.size() + kPiece + kEnd.size();
constexpr std::string_view kField = "x-amz-checksum-crc32c";

std::string Tail(std::string_view checksum) { return fmt::format("0\r\n{}:{}\r\n\r\n", kField, checksum); }

}  // namespace

TrailingBody::TrailingBody(Source& source)
    : source_(source),
      bytes_(source.size()),
      last_(bytes_ % kPiece),
      last_head_(last_ == 0 ? "" : fmt::format("{:x}\r\n", last_)),
      pieces_end_(bytes_ / kPiece * kStride + (last_ == 0 ? 0 : last_head_.size() + last_ + kEnd.size())),
      tail_size_(Tail(EncodeCrc32c(std::uint32_t{0})).size()) {}

std::string TrailingBody::checksum() const { return EncodeCrc32c(crc_); }

void TrailingBody::SetHeaders(http::Headers& headers) const {
  headers.Set("X-Amz-Content-Sha256", std::string(kUnsignedTrailer));
  headers.Set("Content-Encoding", "aws-chunked");
  headers.Set("X-Amz-Decoded-Content-Length", std::to_string(bytes_));
  headers.Set("X-Amz-Trailer", std::string(kField));
}

Status TrailingBody::Read(std::uint64_t offset, MutableByteSpan into) {
  while (!into.empty()) {
    std::size_t done = 0;
    auto copy = [&](std::string_view text, std::uint64_t from) {
      done = std::min<std::size_t>(text.size() - from, into.size());
      std::memcpy(into.data(), text.data() + from, done);
    };
    if (offset >= pieces_end_) {
      MR_TRY(SumUpTo(bytes_));
      copy(Tail(checksum()), offset - pieces_end_);
    } else {
      const std::uint64_t piece = offset / kStride, at = offset % kStride;
      const bool full = piece < bytes_ / kPiece;
      const std::string_view head = full ? kHead : std::string_view(last_head_);
      const std::uint64_t length = full ? kPiece : last_;
      if (at < head.size()) {
        copy(head, at);
      } else if (at < head.size() + length) {
        done = std::min<std::uint64_t>(head.size() + length - at, into.size());
        MR_TRY(ReadData(piece * kPiece + at - head.size(), into.first(done)));
      } else {
        copy(kEnd, at - head.size() - length);
      }
    }
    offset += done;
    into = into.subspan(done);
  }
  return {};
}

Status TrailingBody::ReadData(std::uint64_t at, MutableByteSpan into) {
  MR_TRY(SumUpTo(at));
  MR_TRY(source_.Read(at, into));
  crc_ = Crc32c(into, crc_);
  summed_ += into.size();
  return {};
}

/// Makes crc_ cover the first `end` bytes.
Status TrailingBody::SumUpTo(std::uint64_t end) {
  if (summed_ == end) return {};
  if (summed_ > end) summed_ = crc_ = 0;
  Buffer piece(std::min(kPiece, end - summed_));
  while (summed_ < end) {
    MutableByteSpan bytes = piece.span().first(std::min<std::uint64_t>(piece.size(), end - summed_));
    MR_TRY(source_.Read(summed_, bytes));
    crc_ = Crc32c(bytes, crc_);
    summed_ += bytes.size();
  }
  return {};
}

}  // namespace millrace::object::s3
