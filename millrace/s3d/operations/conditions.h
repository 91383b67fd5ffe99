// Preconditions and ranges of reads (RFC 9110, sections 13 and 14.2, as S3 applies them).
#pragma once

#include <optional>
#include <string_view>

#include "millrace/http/headers.h"
#include "millrace/s3d/protocol/s3_error.h"
#include "millrace/s3d/storage/model.h"
#include "millrace/s3d/storage/storage.h"

namespace millrace::s3d {

enum class ReadVerdict { kServe, kNotModified, kFailed };

/// Checks If-Match, If-None-Match, If-Modified-Since and If-Unmodified-Since. With `prefix` "x-amz-copy-source-",
/// checks the fields for the source of a copy.
ReadVerdict CheckRead(const http::Headers& headers, std::string_view prefix, const Object& object);

struct BodyRange {
  std::uint64_t offset = 0, length = 0;
};
/// Returns the bytes that a Range header names. Returns nothing if the header is empty, malformed or has several
/// ranges: the whole object is then served. Errors: InvalidRange if the range has none of the object's bytes.
Reply<std::optional<BodyRange>> ParseRange(std::string_view range, std::uint64_t size);

/// Returns If-Match and If-None-Match of a write. For If-None-Match, S3 accepts only "*".
Reply<WriteCondition> ParseWriteCondition(const http::Headers& headers);

}  // namespace millrace::s3d
