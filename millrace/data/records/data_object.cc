#include "millrace/data/records/data_object.h"

#include "millrace/object/blocking.h"

namespace millrace::data {

Status CheckRange(const DataObject& object, std::uint64_t offset, std::uint64_t bytes, std::string_view purpose,
                  Result<std::optional<object::GetResult>> got) {
  if (!got && got.error().code() != Code::kPreconditionFailed) {
    return Fail(got.error().Context(fmt::format("{} {} at byte {}", purpose, object.url, offset)));
  }
  if (!got || !*got || (*got)->bytes != bytes) {
    return Fail(Code::kStale, "{} {}: the object changed meanwhile; run again", purpose, object.url);
  }
  return {};
}

Status ReadRange(const DataObject& object, std::uint64_t offset, MutableByteSpan into, std::string_view purpose,
                 object::Call call) {
  auto got = object::Get(*object.store, object.info.key,
                         {.range = object::ByteRange{offset, into.size()}, .if_match = object.info.etag}, into,
                         std::move(call));
  return CheckRange(object, offset, into.size(), purpose, std::move(got));
}

}  // namespace millrace::data
