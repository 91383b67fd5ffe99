// object::Store over the S3 API. Internal to this module. Endpoint::OpenBucket makes the stores.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "millrace/object/s3/protocol/trailing_body.h"
#include "millrace/object/s3/protocol/xml.h"
#include "millrace/object/s3/requests/dispatcher.h"
#include "millrace/object/s3/requests/in_flight.h"
#include "millrace/object/s3/session.h"
#include "millrace/object/support/early_pages.h"

namespace millrace::object::s3 {

class S3Store final : public Store, public EarlyPages {
 public:
  S3Store(std::shared_ptr<Endpoint::Session> session, std::string bucket)
      : session_(std::move(session)), bucket_(std::move(bucket)) {}

  std::string Describe() const override { return "s3://" + bucket_; }
  std::string Identity() const override { return session_->dispatcher().settings().Identity() + "/" + bucket_; }

  void Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) override;
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
                      Done<PartInfo> done) override;
  void Delete(std::string key, Call call, Done<void> done) override;
  void DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) override;
  void Copy(std::string source, std::string destination, CopyOptions options, Call call, Done<PutResult> done) override;

  void CreateMultipart(std::string key, PutOptions options, Call call, Done<std::string> upload_id) override;
  void UploadPart(std::string key, std::string upload_id, int number, Payload body, Call call,
                  Done<PartInfo> done) override;
  void CopyPart(std::string key, std::string upload_id, int number, std::string source, ByteRange range,
                CopyOptions options, Call call, Done<PartInfo> done) override;
  void CompleteMultipart(std::string key, std::string upload_id, std::vector<PartInfo> parts, PutOptions options,
                         Call call, Done<PutResult> done) override;
  void AbortMultipart(std::string key, std::string upload_id, Call call, Done<void> done) override;
  void ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<PartInfo>> done) override;
  void ListUploads(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) override;

  Result<std::string> Presign(std::string_view method, std::string_view key, Duration valid_for) override;

 private:
  struct DeleteBatch;
  struct DeleteRun;

  Operation NewOperation(OperationName name, std::string_view method, std::string key = {}) const;
  /// NewOperation for reading or writing an object's bytes or metadata: adds the customer's key, if there is one.
  Operation NewKeyedOperation(OperationName name, std::string_view method, std::string key) const;
  /// Sets the source of CopyObject and UploadPartCopy.
  void SetCopySource(const std::string& key, const CopyOptions& options, http::Headers& headers) const;
  /// Runs the operation as part of this store, whose destruction cancels it and waits for it. `then` makes the argument
  /// of `done` from the outcome, on the thread of the completion.
  template <class T, class Then>
  void Run(Operation operation, Call call, Done<T> done, Then then);
  /// As Run, but `next` may start further requests. It runs the caller's completion itself.
  template <class Next>
  void RunThen(Operation operation, Call call, Next next);

  /// The body of an operation. Kept until the operation ends.
  struct SentBody {
    std::shared_ptr<http::BodySource> source;
    bool trailing = false;
    /// Returns whether the endpoint may have refused the body because of its trailing checksum, or answered without the
    /// checksum. In the second case, the coding may be among the stored bytes.
    bool Refused(const Error& error) const {
      const Code code = error.code();
      return trailing &&
             (code == Code::kInvalidArgument || code == Code::kPermissionDenied || code == Code::kUnsupported);
    }
  };
  Result<SentBody> AttachBody(Source& body, bool may_trail, Operation& operation);
  void SendPut(Operation operation, PutOptions options, Call call, Done<PutResult> done);
  void SendPart(Operation operation, std::string upload_id, int number, std::uint64_t size, Call call,
                Done<PartInfo> done);
  void HeadIfMatch(std::string key, std::string if_match, Call call, Done<std::optional<ObjectInfo>> done);
  /// Ends a Head whose answer has no size, as behind proxies that leave out the Content-Length of a HEAD. The
  /// Content-Range of a Get of one byte has the size.
  void AskForSize(ObjectInfo info, Call call, Done<std::optional<ObjectInfo>> done);
  void AskForBucket(Call call, Done<std::optional<ObjectInfo>> done);
  /// Ends an operation on `key` that was `denied`. S3 denies reading an absent key, instead of saying that it is
  /// absent, to those who may list only a prefix. A listing then decides.
  template <class T>
  void EndDenied(std::string key, Error denied, Call call, Done<std::optional<T>> done);
  /// Warns, once, that a listing had names outside of its prefix.
  void WarnOfOthers(const std::string& prefix);
  void GetNothing(std::string key, GetOptions options, std::size_t room, Call call,
                  Done<std::optional<GetResult>> done);
  void StartDeletes(std::shared_ptr<DeleteRun> run);
  void SendDeletes(std::shared_ptr<DeleteRun> run, DeleteBatch batch);
  void SettleDeletes(std::shared_ptr<DeleteRun> run, int tries, std::vector<DeleteError> errors);
  void EndDeletes(std::shared_ptr<DeleteRun> run, std::vector<DeleteFailure> failed, bool refused);
  void ListPartsFrom(std::string key, std::string upload_id, std::string marker, std::vector<PartInfo> before,
                     Call call, Done<std::vector<PartInfo>> done);
  void ListUploadsFrom(std::string prefix, std::string key_marker, std::string id_marker,
                       std::vector<UploadInfo> before, Call call, Done<std::vector<UploadInfo>> done);

  const std::shared_ptr<Endpoint::Session> session_;
  const std::string bucket_;
  std::atomic<bool> bucket_seen_ = false;    ///< a response has shown that the bucket exists
  std::atomic<bool> others_seen_ = false;    ///< a listing had names outside of its prefix
  std::atomic<bool> plain_uploads_ = false;  ///< start multipart uploads without a checksum algorithm
  InFlight in_flight_;                       ///< last: its destruction waits for calls that use the other members
};

/// Adapts a Source to a request body. Destroyed with the operation's completion.
class SourceBody final : public http::BodySource {
 public:
  explicit SourceBody(Source& source) : source_(source) {}
  std::uint64_t size() const override { return source_.size(); }
  Status Read(std::uint64_t offset, MutableByteSpan into) override { return source_.Read(offset, into); }

 private:
  Source& source_;
};

/// `"etag"`, in quotes, as If-Match needs it.
std::string QuoteETag(std::string_view etag);
void SetConditions(std::string_view if_match, bool if_none_match, http::Headers& headers);
void SetMetadata(const std::string& content_type, const std::map<std::string, std::string>& metadata,
                 http::Headers& headers);
/// Empty attributes are those of `otherwise`.
void SetAttributes(const Attributes& attributes, const Attributes& otherwise, http::Headers& headers);
/// The error of a write. After a try with an unknown outcome, a failed condition becomes kUnavailable, because that try
/// may have taken effect itself.
Error WriteError(const Outcome& outcome, bool conditional);

template <class Next>
void S3Store::RunThen(Operation operation, Call call, Next next) {
  auto ticket = in_flight_.Begin(call.stop);
  call.stop = ticket->token();
  session_->dispatcher().Run(std::move(operation), std::move(call),
                             [this, ticket = std::move(ticket), next = std::move(next)](Outcome outcome) mutable {
                               if (outcome.response || outcome.s3_code == "NoSuchKey")
                                 bucket_seen_.store(true, std::memory_order_relaxed);
                               next(std::move(outcome));
                               ticket.reset();  // after this, the store may be destroyed
                             });
}

template <class T, class Then>
void S3Store::Run(Operation operation, Call call, Done<T> done, Then then) {
  RunThen(
      std::move(operation), std::move(call),
      [done = std::move(done), then = std::move(then)](Outcome outcome) mutable { done(then(std::move(outcome))); });
}

}  // namespace millrace::object::s3
