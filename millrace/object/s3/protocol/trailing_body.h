// A request body with a trailing checksum (aws-chunked), so that its source is read once instead of twice.
// Source: "Trailing checksums" and "Signature calculations … including trailing headers (chunked upload)", Amazon S3
// API reference.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/http/client/request.h"
#include "millrace/object/body.h"

namespace millrace::object::s3 {

/// The payload hash in the signature of a request with such a body.
inline constexpr std::string_view kUnsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

/// Encodes a source in chunks ("10000\r\n", bytes, "\r\n"), with x-amz-checksum-crc32c behind the last. Not
/// thread-safe. Made for reads from front to back, also repeated. A read elsewhere first reads all bytes before it.
class TrailingBody final : public http::BodySource {
 public:
  explicit TrailingBody(Source& source);
  std::uint64_t size() const override { return pieces_end_ + tail_size_; }
  Status Read(std::uint64_t offset, MutableByteSpan into) override;
  void OnSent(std::uint64_t /*end*/) override { source_.OnSent(summed_); }

  /// Sets the header fields for the coding.
  void SetHeaders(http::Headers& headers) const;
  /// The checksum of the bytes read so far, in base64, as a server returns it.
  std::string checksum() const;

 private:
  Status ReadData(std::uint64_t at, MutableByteSpan into);
  Status SumUpTo(std::uint64_t end);

  Source& source_;
  const std::uint64_t bytes_, last_;  ///< of the source; of its last piece, which may be shorter than the others
  const std::string last_head_;
  const std::uint64_t pieces_end_, tail_size_;
  std::uint64_t summed_ = 0;  ///< crc_ covers this many bytes
  std::uint32_t crc_ = 0;
};

}  // namespace millrace::object::s3
