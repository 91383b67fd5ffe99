// Copies inside a store, done by the server.
#include "millrace/object/blocking.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/copy/multipart_job.h"

namespace millrace::transfer {
namespace {

/// The server copies the bytes itself. Parts of this size keep the number of requests small (400 for 100 GiB).
constexpr std::uint64_t kServerPart = 256 * kMiB;

Status CopyInParts(object::ReadStore& from, const object::ObjectInfo& info, object::Store& to, const std::string& key,
                   const object::CopyOptions& options, const CopySettings& settings, const object::Call& call) {
  auto head = MR_TRY(object::Head(from, info.key, call));
  if (!head || head->etag != info.etag) return Fail(Code::kStale, "{} was replaced or deleted meanwhile", info.key);
  object::PutOptions put = PutOptionsOfCopy(*head, options);
  if (head->attributes && head->attributes->tags > 0) put.tags_of = {options.source_bucket, info.key};
  MultipartJob job{
      .to = to,
      .key = key,
      .put = put,
      .source = from.Describe() + "/" + info.key + "\n" + info.etag,
      .size = info.size,
      .part_bytes = PartBytesFor(info.size, kServerPart, to.limits()),
      .send =
          [&](std::string upload_id, int number, object::ByteRange range, object::Call part_call, auto done) {
            to.CopyPart(key, std::move(upload_id), number, info.key, range, options, std::move(part_call),
                        std::move(done));
          },
      // The server copied the part from the version that the journal names.
      .trust = [](object::ByteRange, const object::PartInfo&) { return true; },
      .begin = nullptr,
      .check = nullptr};
  return RunMultipart(job, settings, call);
}

}  // namespace

object::PutOptions PutOptionsOfCopy(const object::ObjectInfo& source, const object::CopyOptions& options) {
  object::PutOptions put{.if_none_match = options.if_none_match,
                         .content_type = options.metadata ? options.content_type : source.content_type,
                         .metadata = options.metadata ? *options.metadata : source.metadata,
                         .attributes = options.attributes};
  if (!options.metadata && source.attributes) {
    put.attributes.cache_control = source.attributes->cache_control;
    put.attributes.content_encoding = source.attributes->content_encoding;
    put.attributes.content_disposition = source.attributes->content_disposition;
    put.attributes.content_language = source.attributes->content_language;
    put.attributes.expires = source.attributes->expires;
  }
  return put;
}

Status CopyObject(object::ReadStore& from, const object::ObjectInfo& info, object::Store& to, const std::string& key,
                  object::CopyOptions options, const CopySettings& settings, object::Call call) {
  options.source_if_match = info.etag;
  options.source_version = info.version;
  if (info.size > to.limits().max_put) return CopyInParts(from, info, to, key, options, settings, call);
  MR_TRY(object::Copy(to, info.key, key, std::move(options), call));
  if (settings.on_bytes) settings.on_bytes(info.size);
  return {};
}

}  // namespace millrace::transfer
