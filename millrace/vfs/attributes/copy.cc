#include "millrace/vfs/attributes/copy.h"

#include <algorithm>

#include "millrace/object/blocking.h"
#include "millrace/object/rules.h"
#include "millrace/transfer/stream/window.h"

namespace millrace::vfs {
namespace {

constexpr int kParallelParts = 16;  ///< a guess: the store copies the bytes, so a request takes long

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

Result<object::PutResult> CopyInParts(object::Store& store, UploadLedger* ledger, const object::ObjectInfo& source,
                                      const std::string& destination, object::PutOptions options, bool if_none_match,
                                      const object::Call& call) {
  std::optional<UploadLedger::UploadRecord> entry;
  if (ledger != nullptr) entry.emplace(MR_TRY(ledger->Begin(destination)));
  const std::string upload = MR_TRY(object::CreateMultipart(store, destination, std::move(options), call));
  auto complete = [&]() -> Result<object::PutResult> {
    if (entry) MR_TRY(entry->SetId(upload));
    auto parts = MR_TRY(CopyParts(store, source, destination, upload, call));
    return object::CompleteMultipart(store, destination, upload, std::move(parts), {.if_none_match = if_none_match},
                                     call);
  };
  auto copied = complete();
  bool over = copied.has_value();
  if (!copied) {
    Status aborted = object::AbortMultipart(store, destination, upload);
    over = aborted || aborted.error().code() == Code::kNotFound;
  }
  if (entry && over) entry->MarkEnded();
  return copied;
}

/// Returns the version at the destination if it is the copy. If the answer to a copy is lost and the request is sent
/// again, the store refuses the second request because of the first.
std::optional<object::PutResult> FindCopy(object::ReadStore& store, const object::ObjectInfo& source,
                                          const std::string& destination, const UserMetadata& metadata,
                                          const VersionCopy& how, const object::Call& call) {
  auto info = object::Head(store, destination, call);
  if (!info || !*info || (*info)->size != source.size || (*info)->metadata != metadata) return std::nullopt;
  // Another client's copy with the same ETag serves as well, unless the destination must not have existed.
  if (!how.unique && (how.if_none_match || (*info)->etag != source.etag)) return std::nullopt;
  return object::PutResult{(*info)->etag};
}

}  // namespace

Result<object::PutResult> CopyVersion(object::Store& store, UploadLedger* ledger, const object::ObjectInfo& source,
                                      const std::string& destination, VersionCopy how, const object::Call& call) {
  const UserMetadata metadata = how.metadata.value_or(source.metadata);
  auto copied = [&]() -> Result<object::PutResult> {
    if (source.size > store.limits().max_put) {
      object::PutOptions put{
          .content_type = source.content_type, .metadata = metadata, .attributes = object::KeptAttributes(source)};
      if (put.attributes.tags > 0) put.tags_of = {"", source.key};
      return CopyInParts(store, ledger, source, destination, std::move(put), how.if_none_match, call);
    }
    object::CopyOptions options;
    options.source_if_match = source.etag;
    options.if_none_match = how.if_none_match;
    if (how.metadata) options.content_type = source.content_type;
    options.attributes = object::KeptAttributes(source);
    options.metadata = how.metadata;
    return object::Copy(store, source.key, destination, std::move(options), call);
  }();
  if (copied) return copied;
  if (destination != source.key) {
    if (auto found = FindCopy(store, source, destination, metadata, how, call)) return *std::move(found);
  }
  return Fail(Explain(copied.error(), source, destination, how.if_none_match));
}

}  // namespace millrace::vfs
