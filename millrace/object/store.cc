#include "millrace/object/store.h"

#include "millrace/base/result.h"

namespace millrace::object {
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

void Store::DeleteVersions(std::vector<VersionName>, Call, Done<std::vector<DeleteFailure>> done) {
  done(Fail(Code::kUnsupported, "{} keeps no versions", Describe()));
}

void Store::Restore(std::string, RestoreOptions, Call, Done<bool> done) {
  done(Fail(Code::kUnsupported, "{} archives nothing", Describe()));
}

}  // namespace millrace::object
