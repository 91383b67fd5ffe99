#include "millrace/object/s3/batch_deletion.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/rules.h"
#include "millrace/object/s3/protocol/checksums.h"
#include "millrace/object/s3/protocol/xml.h"
#include "millrace/xml/xml.h"

namespace millrace::object::s3 {
namespace {

constexpr std::size_t kSingleAtOnce = 16;  // instead of one request for many keys

/// Returns whether the server does not know DeleteObjects. Google's and others' answer 400, 404, 405 or 501.
bool IsUnknown(const Outcome& outcome) {
  const Code code = outcome.response.error().code();
  return outcome.answered && outcome.s3_code != "NoSuchBucket" &&
         (code == Code::kUnsupported || code == Code::kInvalidArgument || code == Code::kNotFound);
}

/// The names of one request.
struct DeleteBatch {
  std::vector<VersionName> keys;
  int tries = 0;
};

/// One call of DeleteInBatches. Lives until its last request has ended. Thread-safe.
class BatchDeletion : public std::enable_shared_from_this<BatchDeletion> {
 public:
  BatchDeletion(BucketClient& bucket, Call call, Done<std::vector<DeleteFailure>> done)
      : bucket_(bucket), call_(std::move(call)), done_(std::move(done)) {}

  /// Call once. REQUIRES: there are names.
  void Run(std::vector<VersionName> names) MR_EXCLUDES(mutex_) {
    constexpr std::size_t kMaxBatch = 1000;  // the limit of DeleteObjects
    constexpr std::size_t kMaxAtOnce = 4;    // each deletes up to 1,000 keys: more at once bring refusals for load
    // Keys that no XML document can name are deleted one by one.
    auto odd = std::partition(names.begin(), names.end(), [](const VersionName& name) { return xml::Fits(name.key); });
    std::size_t plain = static_cast<std::size_t>(odd - names.begin()), count;
    {
      MutexLock lock(mutex_);
      for (std::size_t at = 0; at < names.size();) {
        std::size_t size = at < plain ? std::min(kMaxBatch, plain - at) : 1;
        auto begin = std::move_iterator(names.begin() + static_cast<std::ptrdiff_t>(at));
        batches_.push_back({.keys = {begin, begin + static_cast<std::ptrdiff_t>(size)}});
        at += size;
      }
      count = count_ = batches_.size();
    }
    for (std::size_t i = 0; i < std::min(kMaxAtOnce, count); ++i) SendNext();
  }

 private:
  void SendNext() MR_EXCLUDES(mutex_) {
    DeleteBatch batch;
    {
      MutexLock lock(mutex_);
      if (batches_.empty()) return;
      batch = std::move(batches_.back());
      batches_.pop_back();
    }
    Send(std::move(batch));
  }
  void Send(DeleteBatch batch);
  void SendSingly(std::vector<VersionName> names) MR_EXCLUDES(mutex_);
  void Settle(int tries, std::vector<DeleteError> errors);
  void Note(std::vector<DeleteFailure> failed) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::ranges::move(failed, std::back_inserter(failures_));
  }
  void End(std::vector<DeleteFailure> failed, bool refused) MR_EXCLUDES(mutex_);

  BucketClient& bucket_;
  const Call call_;
  Done<std::vector<DeleteFailure>> done_;
  Mutex mutex_;
  std::vector<DeleteBatch> batches_ MR_GUARDED_BY(mutex_);  ///< taken from the end
  std::size_t count_ MR_GUARDED_BY(mutex_) = 0, ended_ MR_GUARDED_BY(mutex_) = 0, refused_ MR_GUARDED_BY(mutex_) = 0;
  std::vector<DeleteFailure> failures_ MR_GUARDED_BY(mutex_);
};

void BatchDeletion::Send(DeleteBatch batch) {
  ++batch.tries;
  if (batch.keys.size() > 1 && bucket_.deletes_singly()) return SendSingly(std::move(batch.keys));
  bool single = bucket_.deletes_singly() || !xml::Fits(batch.keys[0].key);
  Operation operation = single ? bucket_.NewOperation("DeleteObject", "DELETE", batch.keys[0].key)
                               : bucket_.NewOperation("DeleteObjects", "POST");
  if (single && !batch.keys[0].id.empty()) operation.query = {{"versionId", batch.keys[0].id}};
  if (!single) {
    operation.query = {{"delete", ""}};
    operation.own_body = DeleteDocument(batch.keys);
    ByteSpan body = AsBytes(operation.own_body);
    operation.headers.Set("X-Amz-Checksum-Crc32c", EncodeCrc32c(body));
    operation.headers.Set("Content-MD5", Base64Encode(Md5(body)));  // older servers insist on it
    operation.headers.Set("Content-Type", "application/xml");
  }
  bucket_.RunThen(std::move(operation), call_,
                  [self = shared_from_this(), batch = std::move(batch), single](Outcome outcome) mutable {
                    std::optional<Error> refused;
                    std::vector<DeleteError> errors;
                    // Google's store refuses to delete an absent key, S3 does not.
                    const bool absent = outcome.s3_code == "NoSuchKey" || outcome.s3_code == "NoSuchVersion";
                    if (!outcome.response && !(single && absent)) refused = outcome.response.error();
                    if (refused && !single && IsUnknown(outcome)) {
                      self->bucket_.DeleteSingly();
                      return self->SendSingly(std::move(batch.keys));
                    }
                    if (outcome.response && !single) {
                      auto parsed = ParseDeleteErrors(outcome.response->body);
                      if (parsed) {
                        errors = *std::move(parsed);
                      } else {
                        refused = parsed.error();
                      }
                    }
                    if (!refused) return self->Settle(batch.tries, std::move(errors));
                    std::vector<DeleteFailure> failed;
                    for (VersionName& name : batch.keys) {
                      failed.push_back({.key = std::move(name.key), .error = *refused, .version = std::move(name.id)});
                    }
                    self->End(std::move(failed), true);
                  });
}

/// Replaces a batch by batches of one key.
void BatchDeletion::SendSingly(std::vector<VersionName> names) {
  const std::size_t begun = std::min(kSingleAtOnce, names.size());
  {
    MutexLock lock(mutex_);
    count_ += names.size() - 1;
    for (VersionName& name : names) batches_.push_back({.keys = {std::move(name)}});
  }
  for (std::size_t i = 0; i < begun; ++i) SendNext();
}

/// Takes the response to a batch. Sends the keys again that the server could not delete for the moment.
void BatchDeletion::Settle(int tries, std::vector<DeleteError> errors) {
  std::vector<DeleteFailure> failed, transient;
  for (DeleteError& error : errors) {
    if (error.code == "NoSuchKey" || error.code == "NoSuchVersion") continue;
    Code code = CodeFromS3(error.code);
    auto& which = IsRetryable(code) ? transient : failed;
    which.push_back({.key = std::move(error.key),
                     .error = Error(code, error.message + " (" + error.code + ")"),
                     .version = std::move(error.version)});
  }
  if (transient.empty()) return End(std::move(failed), false);
  auto wait = bucket_.dispatcher().NextTry(tries, transient.front().error, call_, std::nullopt);
  if (!wait) {
    std::ranges::move(transient, std::back_inserter(failed));
    return End(std::move(failed), false);
  }
  Note(std::move(failed));
  DeleteBatch batch{.tries = tries};
  for (DeleteFailure& failure : transient) {
    batch.keys.push_back({std::move(failure.key), std::move(failure.version)});
  }
  bucket_.RunAfter(*wait, call_,
                   [self = shared_from_this(), batch = std::move(batch)]() mutable { self->Send(std::move(batch)); });
}

/// Records the end of a batch. Begins the next batch, or, after the last one, completes the call.
void BatchDeletion::End(std::vector<DeleteFailure> failed, bool refused) {
  Note(std::move(failed));
  std::vector<DeleteFailure> failures;
  bool nothing_went;
  {
    MutexLock lock(mutex_);
    refused_ += refused;
    if (++ended_ < count_) {
      lock.Unlock();
      return SendNext();
    }
    failures = std::move(failures_);
    nothing_went = refused_ == count_;
  }
  if (nothing_went) return done_(Fail(failures.front().error));
  done_(std::move(failures));
}

}  // namespace

void DeleteInBatches(BucketClient& bucket, std::vector<VersionName> names, Call call,
                     Done<std::vector<DeleteFailure>> done) {
  for (const VersionName& name : names) {
    if (Status good = CheckKey(name.key); !good) return done(Fail(good.error()));
  }
  if (names.empty()) return done(std::vector<DeleteFailure>());
  std::make_shared<BatchDeletion>(bucket, std::move(call), std::move(done))->Run(std::move(names));
}

}  // namespace millrace::object::s3
