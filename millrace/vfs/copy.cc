#include "millrace/vfs/copy.h"

#include <algorithm>

#include "millrace/object/blocking.h"

namespace millrace::vfs {
namespace {

Error Explain(const Error& error, const object::ObjectInfo& source, const std::string& destination,
              bool if_none_match) {
  Error explained = error.Context(fmt::format("copying {} to {}", source.key, destination));
  if (error.code() != Code::kPreconditionFailed) return explained;
  return explained.WithCode(if_none_match ? Code::kAlreadyExists : Code::kStale);
}

Result<std::vector<object::PartInfo>> CopyParts(object::Store& store, const object::ObjectInfo& source,
                                                const std::string& destination, const std::string& upload,
                                                const object::Call& call) {
  const object::Limits limits = store.limits();
  const auto max_parts = static_cast<std::uint64_t>(limits.max_parts);
  const std::uint64_t part_bytes =
      std::clamp(std::max(limits.max_put / 8, source.size / max_parts + 1), limits.min_part, limits.max_part);
  std::vector<object::PartInfo> parts;
  for (std::uint64_t at = 0; at < source.size; at += part_bytes) {
    object::ByteRange range{at, std::min(part_bytes, source.size - at)};
    parts.push_back(MR_TRY(object::CopyPart(store, destination, upload, static_cast<int>(parts.size()) + 1, source.key,
                                            range, {.source_if_match = source.etag}, call)));
  }
  return parts;
}

}  // namespace

Result<object::PutResult> CopyVersion(object::Store& store, const object::ObjectInfo& source,
                                      const std::string& destination, bool if_none_match, const object::Call& call) {
  auto explained = [&](const Error& error) { return Fail(Explain(error, source, destination, if_none_match)); };
  if (source.size <= store.limits().max_put) {
    auto copied = object::Copy(store, source.key, destination,
                               {.source_if_match = source.etag, .if_none_match = if_none_match}, call);
    if (!copied) return explained(copied.error());
    return copied;
  }
  std::string upload = MR_TRY(object::CreateMultipart(
      store, destination, {.content_type = source.content_type, .metadata = source.metadata}, call));
  auto complete = [&]() -> Result<object::PutResult> {
    auto parts = MR_TRY(CopyParts(store, source, destination, upload, call));
    return object::CompleteMultipart(store, destination, upload, std::move(parts), {.if_none_match = if_none_match},
                                     call);
  };
  auto copied = complete();
  if (!copied) {
    (void)object::AbortMultipart(store, destination, upload);
    return explained(copied.error());
  }
  return copied;
}

}  // namespace millrace::vfs
