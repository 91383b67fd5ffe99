// A body whose checksum follows it (aws-chunked), so that it is read once instead of twice.
// Source: "Trailing checksums" and "Signature calculations … including trailing headers (chunked upload)", Amazon S3
// API reference.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/http/client/request.h"
#include "millrace/object/body.h"

namespace millrace::object::s3 {

/// The payload "hash" of a request with such a body.
inline constexpr std::string_view kUnsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

/// Passes a source on in pieces ("10000\r\n", bytes, "\r\n") with x-amz-checksum-crc32c behind the last. One reader,
/// from front to back or again from the front; elsewhere costs a reading of what lies before.
class TrailingBody final : public http::BodySource {
 public:
  explicit TrailingBody(Source& source);
  std::uint64_t size() const override { return pieces_end_ + tail_size_; }
  Status Read(std::uint64_t offset, MutableByteSpan into) override;

  /// The fields that go ahead of the body.
  void SetHeaders(http::Headers& headers) const;
  /// Base64, as the server would repeat it; of the bytes read so far.
  std::string checksum() const;

 private:
  Status ReadData(std::uint64_t at, MutableByteSpan into);
  Status SumUpTo(std::uint64_t end);

  Source& source_;
  const std::uint64_t bytes_, last_;  ///< of the source; of its last piece, which may be shorter than the others
  const std::string last_head_;
  const std::uint64_t pieces_end_, tail_size_;
  std::uint64_t summed_ = 0;  ///< how many bytes crc_ is of
  std::uint32_t crc_ = 0;
};

}  // namespace millrace::object::s3
