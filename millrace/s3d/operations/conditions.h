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

/// If-Match, If-None-Match, If-Modified-Since and If-Unmodified-Since; or, with `prefix` "x-amz-copy-source-", the ones
/// of a copy's source.
ReadVerdict CheckRead(const http::Headers& headers, std::string_view prefix, const Object& object);

struct Span {
  std::uint64_t offset = 0, length = 0;
};
/// The bytes that a Range header names: nothing when it is absent, malformed or names several (the whole object is then
/// served); InvalidRange when it names none of the object's bytes.
Reply<std::optional<Span>> ParseRange(std::string_view range, std::uint64_t size);

/// If-Match and If-None-Match of a write. S3 takes If-None-Match: * only.
Reply<WriteCondition> ParseWriteCondition(const http::Headers& headers);

}  // namespace millrace::s3d
