#include "millrace/data/content.h"

#include "millrace/object/blocking.h"

namespace millrace::data {

Status ReadRange(const DataObject& object, std::uint64_t offset, MutableByteSpan into, std::string_view purpose,
                 object::Call call) {
  auto got = object::Get(*object.store, object.info.key,
                         {.range = object::ByteRange{offset, into.size()}, .if_match = object.info.etag}, into,
                         std::move(call));
  if (!got && got.error().code() != Code::kPreconditionFailed) {
    return Fail(got.error().Context(fmt::format("{} {} at byte {}", purpose, object.url, offset)));
  }
  if (!got || !*got || (*got)->bytes != into.size()) {
    return Fail(Code::kStale, "{} {}: the object changed meanwhile; run again", purpose, object.url);
  }
  return {};
}

}  // namespace millrace::data
