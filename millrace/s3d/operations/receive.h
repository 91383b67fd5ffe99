// From a payload to where it is kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/s3d/protocol/payload.h"
#include "millrace/s3d/protocol/s3_error.h"
#include "millrace/s3d/storage/blob.h"
#include "millrace/s3d/storage/model.h"

namespace millrace::s3d {

/// Stores the whole body; on return it is durable and every promise about it has held. On failure nothing stays.
Reply<Extents> ReceiveBody(Payload& payload, BlobStore& blobs, std::uint64_t& size);

/// Reads the bytes that `part` names and sets its ETag and, with a kind, its checksum.
Reply<void> DigestPart(std::optional<ChecksumKind> kind, Part& part);

/// The whole body of a request that is a document; its size is bounded by the payload's own limit.
Reply<std::string> ReadDocument(Payload& payload);

}  // namespace millrace::s3d
