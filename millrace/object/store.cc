#include "millrace/object/store.h"

namespace millrace::object {

void Store::GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
                  Done<std::optional<GetResult>> done) {
  std::uint64_t offset = options.range ? options.range->offset : 0;
  auto buffer = std::make_shared<Buffer>(limit);
  MutableByteSpan into = buffer->span();
  Get(std::move(key), std::move(options), into, std::move(call),
      [buffer, offset, &sink, done = std::move(done)](Result<std::optional<GetResult>> got) mutable {
        if (got && *got && (*got)->bytes > 0) {
          Status taken = sink.Take(offset, buffer->span().first((*got)->bytes));
          if (!taken) got = Fail(taken.error());
        }
        done(std::move(got));
      });
}

void Store::HeadPart(std::string, std::string, int, Call, Done<std::optional<std::uint64_t>> done) {
  done(std::nullopt);
}

void Store::ListVersions(VersionsRequest, Call, Done<VersionsPage> done) {
  done(Fail(Code::kUnsupported, "{} keeps no versions", Describe()));
}

namespace {

Result<std::shared_ptr<Buffer>> ReadAll(Source& body) {
  auto buffer = std::make_shared<Buffer>(body.size());
  MR_TRY(body.Read(0, buffer->span()));
  return buffer;
}

}  // namespace

void Store::PutFrom(std::string key, Source& body, PutOptions options, Call call, Done<PutResult> done) {
  auto buffer = ReadAll(body);
  if (!buffer) return done(Fail(buffer.error()));
  ByteSpan bytes = (*buffer)->span();
  Put(std::move(key), bytes, std::move(options), std::move(call),
      [buffer, done = std::move(done)](Result<PutResult> put) mutable { done(std::move(put)); });
}

void Store::UploadPartFrom(std::string key, std::string upload_id, int number, Source& body, Call call,
                           Done<PartInfo> done) {
  auto buffer = ReadAll(body);
  if (!buffer) return done(Fail(buffer.error()));
  ByteSpan bytes = (*buffer)->span();
  UploadPart(std::move(key), std::move(upload_id), number, bytes, std::move(call),
             [buffer, done = std::move(done)](Result<PartInfo> part) mutable { done(std::move(part)); });
}

}  // namespace millrace::object
