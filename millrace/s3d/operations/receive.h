// Receives the body of a request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/s3d/protocol/payload.h"
#include "millrace/s3d/protocol/s3_error.h"
#include "millrace/s3d/storage/blob.h"
#include "millrace/s3d/storage/model.h"

namespace millrace::s3d {

/// Stores the whole body. On return it is durable, and its length and all its checksums are verified. After a failure
/// nothing stays.
Reply<Extents> ReceiveBody(Payload& payload, BlobStore& blobs, std::uint64_t& size);

/// Reads the bytes of part.extents and sets the part's ETag and, if `kind` is given, its checksum.
Reply<void> DigestPart(std::optional<ChecksumKind> kind, StoredPart& part);

/// Returns the whole body of a request. The payload's own limit bounds its size.
Reply<std::string> ReadDocument(Payload& payload);

}  // namespace millrace::s3d
