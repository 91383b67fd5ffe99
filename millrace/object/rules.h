// Rules that all stores share: which keys are possible, when a call is over, which bytes a range selects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/object/object_info.h"
#include "millrace/object/requests.h"

namespace millrace::object {

/// The limit of S3: https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html
inline constexpr std::size_t kMaxKeyBytes = 1024;

/// Errors: kInvalidArgument unless `key` is non-empty UTF-8 of at most kMaxKeyBytes; the message quotes the key.
Status CheckKey(std::string_view key);
/// Errors: kCancelled or kDeadlineExceeded if the call is over.
Status CheckCall(const Call& call, const Clock& clock);

/// The bytes that `range` selects of an object of `size` bytes; see GetOptions::range.
ByteRange ClipRange(const std::optional<ByteRange>& range, std::uint64_t size);
/// ClipRange. Errors: kInvalidArgument if the selected bytes do not fit a buffer of `room` bytes.
Result<ByteRange> FitRange(const std::optional<ByteRange>& range, std::uint64_t size, std::uint64_t room);

/// Checks the conditions of a write against the current ETag of the key; an empty one means that the key does not
/// exist. Errors: kPreconditionFailed if a condition does not hold.
Status CheckConditions(std::string_view key, std::string_view if_match, bool if_none_match,
                       std::string_view current_etag);
/// The attributes that a copy within one store must repeat, because replacing the metadata or copying by parts loses
/// them: the headers that describe the content, the storage class, the encryption and the redirect. Not the ACL, which
/// Head never returns.
Attributes KeptAttributes(const ObjectInfo& source);
/// Errors: kInvalidArgument unless there is a part and the numbers ascend within 1…limits.max_parts.
Status CheckPartOrder(const std::vector<PartInfo>& parts, const Limits& limits);

}  // namespace millrace::object
