// Runs S3's operations on one bucket. Internal to this module.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/object/s3/requests/dispatcher.h"
#include "millrace/object/s3/requests/in_flight.h"
#include "millrace/object/s3/session.h"
#include "millrace/object/store.h"

namespace millrace::object::s3 {

/// Makes operations on a bucket and runs them. Destruction cancels those that are under way, and waits for them; so
/// whatever their completions use must be destroyed after it. Thread-safe.
class BucketClient {
 public:
  BucketClient(std::shared_ptr<Endpoint::Session> session, std::string bucket)
      : session_(std::move(session)), bucket_(std::move(bucket)) {}

  const std::string& bucket() const { return bucket_; }
  std::string Describe() const { return "s3://" + bucket_; }
  Dispatcher& dispatcher() const { return session_->dispatcher(); }
  /// Returns whether a response has shown that the bucket exists.
  bool seen() const { return seen_.load(std::memory_order_relaxed); }

  Operation NewOperation(OperationName name, std::string_view method, std::string key = {}) const;
  /// NewOperation for reading or writing an object's bytes or metadata: adds the customer's key, if there is one.
  Operation NewKeyedOperation(OperationName name, std::string_view method, std::string key) const;
  /// Sets the source of CopyObject and UploadPartCopy.
  void SetCopySource(const std::string& key, const CopyOptions& options, http::Headers& headers) const;
  /// Runs the operation. `then` makes the argument of `done` from the outcome, on the thread of the completion.
  template <class T, class Then>
  void RunOperation(Operation operation, Call call, Done<T> done, Then then);
  /// As RunOperation, but `next` may start further requests. It runs the caller's completion itself.
  template <class Next>
  void RunThen(Operation operation, Call call, Next next);
  /// Calls `then` after `wait`, or at once if `call` is stopped meanwhile.
  template <class Then>
  void RunAfter(Duration wait, const Call& call, Then then);

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
  /// Makes `body` the operation's body. The checksum follows the body if `may_trail` and the endpoint allow it; else a
  /// header has it.
  Result<SentBody> AttachBody(Source& body, bool may_trail, Operation& operation);
  /// Returns whether the endpoint has refused to delete several objects with one request.
  bool deletes_singly() const { return deletes_singly_.load(std::memory_order_relaxed); }
  void DeleteSingly() { deletes_singly_.store(true, std::memory_order_relaxed); }
  /// Warns, once, that a listing had names outside of its prefix.
  void WarnOfOthers(const std::string& prefix);

 private:
  const std::shared_ptr<Endpoint::Session> session_;
  const std::string bucket_;
  std::atomic<bool> seen_ = false;         ///< a response has shown that the bucket exists
  std::atomic<bool> others_seen_ = false;  ///< a listing had names outside of its prefix
  std::atomic<bool> deletes_singly_ = false;
  InFlight in_flight_;  ///< last: its destruction waits for calls that use the other members
};

/// The beginning of the names of headers with user metadata.
inline constexpr std::string_view kMetaPrefix = "x-amz-meta-";

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

/// Completes a write whose response has this ETag. Asks the store if it is empty: some servers leave it out.
/// Errors: kCorrupt if the object is not there.
void EndWrite(Store& store, std::string key, std::string etag, Call call, Done<PutResult> done);

template <class Next>
void BucketClient::RunThen(Operation operation, Call call, Next next) {
  auto ticket = in_flight_.Begin(call.stop);
  call.stop = ticket->token();
  dispatcher().Run(std::move(operation), std::move(call),
                   [this, ticket = std::move(ticket), next = std::move(next)](Outcome outcome) mutable {
                     if (outcome.response || outcome.s3_code == "NoSuchKey")
                       seen_.store(true, std::memory_order_relaxed);
                     next(std::move(outcome));
                     ticket.reset();  // after this, the store may be destroyed
                   });
}

template <class T, class Then>
void BucketClient::RunOperation(Operation operation, Call call, Done<T> done, Then then) {
  RunThen(
      std::move(operation), std::move(call),
      [done = std::move(done), then = std::move(then)](Outcome outcome) mutable { done(then(std::move(outcome))); });
}

template <class Then>
void BucketClient::RunAfter(Duration wait, const Call& call, Then then) {
  auto ticket = in_flight_.Begin(call.stop);
  std::stop_token stop = ticket->token();
  dispatcher().After(wait, std::move(stop), [ticket = std::move(ticket), then = std::move(then)]() mutable { then(); });
}

}  // namespace millrace::object::s3
