// What every store must decide alike: which keys are possible, when a call is over, which bytes a range means.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/object/object_info.h"
#include "millrace/object/requests.h"

namespace millrace::object {

inline constexpr std::size_t kMaxKeyBytes = 1024;

/// kInvalidArgument unless `key` is non-empty UTF-8 of at most kMaxKeyBytes; the message quotes the key.
Status CheckKey(std::string_view key);
/// kCancelled or kDeadlineExceeded once the call is over.
Status CheckCall(const Call& call, const Clock& clock);

/// The bytes of an object of `size` bytes that `range` selects; see GetOptions::range.
ByteRange ClipRange(const std::optional<ByteRange>& range, std::uint64_t size);
/// ClipRange, or kInvalidArgument when the selected bytes do not fit a buffer of `room` bytes.
Result<ByteRange> FitRange(const std::optional<ByteRange>& range, std::uint64_t size, std::uint64_t room);

/// Do the conditions of a write hold, given the ETag of what is there now (empty: nothing is)? kPreconditionFailed if
/// not.
Status CheckConditions(std::string_view key, std::string_view if_match, bool if_none_match,
                       std::string_view current_etag);
/// What a copy within one store must say again of its source, since replacing the metadata or copying by parts forgets
/// it: the headers that describe the content, the storage class and the encryption. An ACL is never told.
Attributes KeptAttributes(const ObjectInfo& source);
/// Numbers ascend within 1…limits.max_parts and there is at least one part.
Status CheckPartOrder(const std::vector<PartInfo>& parts, const Limits& limits);

}  // namespace millrace::object
