// The checksums S3 keeps beside objects (x-amz-checksum-*).
#pragma once

#include <functional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/http/client/request.h"
#include "millrace/object/body.h"
#include "millrace/object/object_info.h"

namespace millrace::object::s3 {

/// Base64 of the big-endian CRC-32C, found out where it is not known: the value of x-amz-checksum-crc32c.
std::string EncodeCrc32c(const Payload& bytes);
std::string EncodeCrc32c(std::uint32_t crc);
/// Reads all of a body, a piece at a time.
Status ReadThrough(http::BodySource& source, const std::function<void(ByteSpan)>& take);
/// EncodeCrc32c of a body that is not in memory.
Result<std::string> EncodeCrc32c(http::BodySource& source);
/// What an answer's headers say about the whole object's bytes: CRC32C, CRC64NVME, or the ETag, which is their MD5 or
/// that of their parts' MD5s unless a key of the owner's encrypts them.
Checksum WholeChecksum(const http::Headers& headers);
/// kCorrupt unless the whole object's `bytes` have the checksum that came with them: CRC32C, CRC64NVME or SHA-256,
/// whichever costs least. Checksums of multipart objects that cover their parts' checksums only ("…-3") prove nothing
/// about the bytes and are passed over.
Status VerifyChecksum(const http::Headers& headers, ByteSpan bytes);

}  // namespace millrace::object::s3
