#include "millrace/object/rules.h"

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace::object {

Status CheckKey(std::string_view key) {
  if (key.empty()) return Fail(Code::kInvalidArgument, "an object key must not be empty");
  if (key.size() > kMaxKeyBytes) {
    return Fail(Code::kInvalidArgument, "key \"{}…\" has {} bytes; S3 allows at most {}", key.substr(0, 64), key.size(),
                kMaxKeyBytes);
  }
  if (!IsValidUtf8(key))
    return Fail(Code::kInvalidArgument, "key \"{}\" is not valid UTF-8; choose a name in UTF-8", key);
  return {};
}

Status CheckCall(const Call& call, const Clock& clock) {
  if (call.stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
  if (call.deadline.Passed(clock)) return Fail(Code::kDeadlineExceeded, "the deadline has passed");
  return {};
}

ByteRange ClipRange(const std::optional<ByteRange>& range, std::uint64_t size) {
  if (!range) return {0, size};
  if (range->offset >= size) return {size, 0};
  return {range->offset, std::min(range->length, size - range->offset)};
}

Result<ByteRange> FitRange(const std::optional<ByteRange>& range, std::uint64_t size, std::uint64_t room) {
  ByteRange clipped = ClipRange(range, size);
  if (clipped.length > room) {
    return Fail(Code::kInvalidArgument, "{} bytes were asked for but the buffer holds {}; ask for fewer",
                clipped.length, room);
  }
  return clipped;
}

Status CheckConditions(std::string_view key, std::string_view if_match, bool if_none_match,
                       std::string_view current_etag) {
  if (if_none_match && !current_etag.empty()) {
    return Fail(Code::kPreconditionFailed, "{} exists already; choose another name, or remove it first", key);
  }
  if (!if_match.empty() && if_match != current_etag) {
    return current_etag.empty()
               ? Fail(Code::kPreconditionFailed, "{} no longer exists; `millrace ls` lists what is there", key)
               : Fail(Code::kPreconditionFailed, "{} has changed: expected version {}, found {}", key, if_match,
                      current_etag);
  }
  return {};
}

Attributes KeptAttributes(const ObjectInfo& source) {
  if (!source.attributes) return {};
  Attributes kept = *source.attributes;
  kept.acl.clear();
  return kept;
}

Status CheckPartOrder(const std::vector<PartInfo>& parts, const Limits& limits) {
  if (parts.empty()) return Fail(Code::kInvalidArgument, "a multipart upload needs at least one part");
  int before = 0;
  for (const PartInfo& part : parts) {
    if (part.number <= before || part.number > limits.max_parts) {
      return Fail(Code::kInvalidArgument, "part number {} after {}: numbers must ascend within 1…{}", part.number,
                  before, limits.max_parts);
    }
    before = part.number;
  }
  return {};
}

}  // namespace millrace::object
