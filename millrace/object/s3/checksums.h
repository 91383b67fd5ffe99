// The checksums S3 keeps beside objects (x-amz-checksum-*).
#pragma once

#include <string>

#include "millrace/base/bytes.h"
#include "millrace/http/client.h"

namespace millrace::object::s3 {

/// Base64 of the big-endian CRC-32C: the value of x-amz-checksum-crc32c.
std::string EncodeCrc32c(ByteSpan bytes);
/// kCorrupt unless the whole object's `bytes` have the checksum that came with them: CRC32C, CRC64NVME or SHA-256,
/// whichever costs least. Checksums of multipart objects that cover their parts' checksums only ("…-3") prove nothing
/// about the bytes and are passed over.
Status VerifyChecksum(const http::Headers& headers, ByteSpan bytes);

}  // namespace millrace::object::s3
