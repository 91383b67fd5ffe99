// The checksums that S3 keeps beside objects (x-amz-checksum-*).
#pragma once

#include <functional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/http/client/request.h"
#include "millrace/object/body.h"
#include "millrace/object/object_info.h"

namespace millrace::object::s3 {

/// The value of x-amz-checksum-crc32c: base64 of the big-endian CRC-32C. Computes it unless `bytes` comes with it.
std::string EncodeCrc32c(const Payload& bytes);
std::string EncodeCrc32c(std::uint32_t crc);
/// Reads a whole body and passes it to `take`, piece by piece.
Status ReadThrough(http::BodySource& source, const std::function<void(ByteSpan)>& take);
/// EncodeCrc32c for a body that is not in memory. Reads it once.
Result<std::string> EncodeCrc32c(http::BodySource& source);
/// The checksum of a whole object, from a response's headers: CRC32C, CRC64NVME, or the ETag. The ETag is the MD5 of
/// the bytes or of the parts' MD5s, unless the object is encrypted with a customer's or a KMS key.
Checksum WholeChecksum(const http::Headers& headers);
/// Checks the `bytes` of a whole object against the cheapest checksum in the headers: CRC32C, CRC64NVME or SHA-256.
/// Ignores composite checksums of multipart objects ("…-3"), which cover the checksums of the parts.
/// Errors: kCorrupt if the checksum differs.
Status VerifyChecksum(const http::Headers& headers, ByteSpan bytes);

}  // namespace millrace::object::s3
