#include "millrace/vfs/copy.h"

#include <algorithm>

#include "millrace/object/blocking.h"
#include "millrace/object/rules.h"
#include "millrace/transfer/window.h"

namespace millrace::vfs {
namespace {

constexpr int kParallelParts = 16;

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
      std::clamp(std::max(limits.max_put / 16, source.size / max_parts + 1), limits.min_part, limits.max_part);
  std::vector<object::PartInfo> parts((source.size + part_bytes - 1) / part_bytes);
  transfer::Window window(kParallelParts, call);
  for (std::size_t i = 0; i < parts.size() && window.Enter(); ++i) {
    const object::ByteRange range{i * part_bytes, std::min(part_bytes, source.size - i * part_bytes)};
    object::CopyOptions options;
    options.source_if_match = source.etag;
    store.CopyPart(destination, upload, static_cast<int>(i) + 1, source.key, range, std::move(options), window.call(),
                   [&, i](auto copied) {
                     if (!copied) return window.Leave(Fail(copied.error()));
                     parts[i] = *std::move(copied);
                     window.Leave({});
                   });
  }
  MR_TRY(window.Finish());
  return parts;
}

}  // namespace

Result<object::PutResult> CopyVersion(object::Store& store, const object::ObjectInfo& source,
                                      const std::string& destination, VersionCopy how, const object::Call& call) {
  const bool if_none_match = how.if_none_match;
  auto explained = [&](const Error& error) { return Fail(Explain(error, source, destination, if_none_match)); };
  if (source.size <= store.limits().max_put) {
    object::CopyOptions options;
    options.source_if_match = source.etag;
    options.if_none_match = if_none_match;
    if (how.metadata) options.content_type = source.content_type;
    options.attributes = object::KeptAttributes(source);
    options.metadata = std::move(how.metadata);
    auto copied = object::Copy(store, source.key, destination, std::move(options), call);
    if (!copied) return explained(copied.error());
    return copied;
  }
  std::string upload =
      MR_TRY(object::CreateMultipart(store, destination,
                                     {.content_type = source.content_type,
                                      .metadata = how.metadata ? *std::move(how.metadata) : source.metadata,
                                      .attributes = object::KeptAttributes(source)},
                                     call));
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
