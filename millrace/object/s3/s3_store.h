// object::Store over the S3 API. Internal to this module. Endpoint::OpenBucket makes the stores.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/object/s3/bucket_client.h"
#include "millrace/object/s3/multipart_uploads.h"
#include "millrace/object/s3/object_body.h"
#include "millrace/object/s3/session.h"
#include "millrace/object/support/early_pages.h"

namespace millrace::object::s3 {

class S3Store final : public Store, public EarlyPages {
 public:
  S3Store(std::shared_ptr<Endpoint::Session> session, std::string bucket)
      : bucket_(std::move(session), std::move(bucket)) {}

  std::string Describe() const override { return bucket_.Describe(); }
  std::string Identity() const override { return bucket_.dispatcher().settings().Identity() + "/" + bucket_.bucket(); }

  void Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) override;
  void HeadVersion(std::string key, std::string version, Call call, Done<std::optional<ObjectInfo>> done) override;
  void Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
           Done<std::optional<GetResult>> done) override;
  void GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
             Done<std::optional<GetResult>> done) override;
  void HeadPart(std::string key, std::string etag, int number, Call call,
                Done<std::optional<std::uint64_t>> done) override;
  void List(ListRequest request, Call call, Done<ListPage> done) override {
    ListEarly(std::move(request), std::move(call), nullptr, std::move(done));
  }
  void ListEarly(ListRequest request, Call call, std::move_only_function<void(std::string)> next,
                 Done<ListPage> done) override;
  void ListVersions(VersionsRequest request, Call call, Done<VersionsPage> done) override;
  void Put(std::string key, Payload body, PutOptions options, Call call, Done<PutResult> done) override;
  void PutFrom(std::string key, Source& body, PutOptions options, Call call, Done<PutResult> done) override;
  void UploadPartFrom(std::string key, std::string upload_id, int number, Source& body, Call call,
                      Done<PartInfo> done) override {
    uploads_.UploadPartFrom(std::move(key), std::move(upload_id), number, body, std::move(call), std::move(done));
  }
  void Delete(std::string key, Call call, Done<void> done) override;
  void DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) override;
  void DeleteVersions(std::vector<VersionName> versions, Call call, Done<std::vector<DeleteFailure>> done) override;
  void Restore(std::string key, RestoreOptions options, Call call, Done<bool> done) override;
  void Copy(std::string source, std::string destination, CopyOptions options, Call call, Done<PutResult> done) override;

  void CreateMultipart(std::string key, PutOptions options, Call call, Done<std::string> upload_id) override {
    uploads_.Create(std::move(key), std::move(options), std::move(call), std::move(upload_id));
  }
  void UploadPart(std::string key, std::string upload_id, int number, Payload body, Call call,
                  Done<PartInfo> done) override {
    uploads_.UploadPart(std::move(key), std::move(upload_id), number, body, std::move(call), std::move(done));
  }
  void CopyPart(std::string key, std::string upload_id, int number, std::string source, ByteRange range,
                CopyOptions options, Call call, Done<PartInfo> done) override {
    uploads_.CopyPart(std::move(key), std::move(upload_id), number, std::move(source), range, std::move(options),
                      std::move(call), std::move(done));
  }
  void CompleteMultipart(std::string key, std::string upload_id, std::vector<PartInfo> parts, PutOptions options,
                         Call call, Done<PutResult> done) override {
    uploads_.Complete(std::move(key), std::move(upload_id), std::move(parts), std::move(options), std::move(call),
                      std::move(done));
  }
  void AbortMultipart(std::string key, std::string upload_id, Call call, Done<void> done) override {
    uploads_.Abort(std::move(key), std::move(upload_id), std::move(call), std::move(done));
  }
  void ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<PartInfo>> done) override {
    uploads_.ListParts(std::move(key), std::move(upload_id), std::move(call), std::move(done));
  }
  void ListUploads(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) override {
    uploads_.List(std::move(prefix), std::move(call), std::move(done));
  }

  Result<std::string> Presign(std::string_view method, std::string_view key, Duration valid_for) override;

 private:
  void SendPut(Operation operation, PutOptions options, Call call, Done<PutResult> done);
  /// The object that a Head asks for. An empty version is the current one.
  struct HeadTarget {
    std::string key, version, if_match;
  };
  void HeadIfMatch(HeadTarget target, Call call, Done<std::optional<ObjectInfo>> done);
  /// Sends the HEAD. If it is refused without a `reason`, asks for one and sends it again.
  void SendHead(HeadTarget target, std::optional<Error> reason, Call call, Done<std::optional<ObjectInfo>> done);
  /// Ends a Head of the current version that met a `refusal`. The answer to HEAD has no body that could tell the
  /// reason: a wrong clock or region, a session that is over, or a right that is lacking. A listing has one: its
  /// refusal repairs what can be repaired, and the Head is sent again. A listing also tells that a key is absent, which
  /// S3 denies to tell those who may list only a prefix.
  void AskForReason(HeadTarget target, Error refusal, Call call, Done<std::optional<ObjectInfo>> done);
  /// Ends a Head whose answer has no size, as behind proxies that leave out the Content-Length of a HEAD. The
  /// Content-Range of a Get of one byte has the size.
  void AskForSize(ObjectInfo info, std::string version, Call call, Done<std::optional<ObjectInfo>> done);
  /// A Get under way. `buffer`: null if the caller has a sink; `room`: the size of the caller's memory.
  struct GetTarget {
    std::string key;
    GetOptions options;
    std::size_t room = 0;
    std::shared_ptr<BufferSink> buffer;
  };
  /// Runs a Get of at most `limit` bytes to `sink`.
  void RunGet(GetTarget target, std::uint64_t limit, Sink& sink, Call call, Done<std::optional<GetResult>> done);
  /// Ends a Get whose answer has an encoding that a proxy may have added: asks whether the object is stored with it.
  void CheckEncoding(GetTarget target, std::string encoding, GetResult result, Call call,
                     Done<std::optional<GetResult>> done);
  void AskForBucket(Call call, Done<std::optional<ObjectInfo>> done);
  /// Ends a Get of `key` that was `denied`. S3 denies reading an absent key, instead of saying that it is
  /// absent, to those who may list only a prefix. A listing then decides.
  template <class T>
  void EndDenied(std::string key, Error denied, Call call, Done<std::optional<T>> done);
  void GetNothing(std::string key, GetOptions options, std::size_t room, Call call,
                  Done<std::optional<GetResult>> done);

  MultipartUploads uploads_{bucket_, *this};
  BucketClient bucket_;  ///< last: its destruction waits for operations that use the other members
};

}  // namespace millrace::object::s3
