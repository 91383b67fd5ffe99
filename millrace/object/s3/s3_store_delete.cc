// S3Store::DeleteMany: sends batches of keys, a few at a time, and retries keys that failed for the moment.
#include <algorithm>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/rules.h"
#include "millrace/object/s3/protocol/checksums.h"
#include "millrace/object/s3/protocol/xml.h"
#include "millrace/object/s3/s3_store.h"
#include "millrace/xml/xml.h"

namespace millrace::object::s3 {

/// The keys of one request.
struct S3Store::DeleteBatch {
  std::vector<std::string> keys;
  int tries = 0;
};

/// A DeleteMany call under way.
struct S3Store::DeleteRun {
  Call call;
  Done<std::vector<DeleteFailure>> done;

  Mutex mutex;
  std::vector<DeleteBatch> batches MR_GUARDED_BY(mutex);  ///< taken from the end
  std::size_t count MR_GUARDED_BY(mutex) = 0, ended MR_GUARDED_BY(mutex) = 0, refused MR_GUARDED_BY(mutex) = 0;
  std::vector<DeleteFailure> failures MR_GUARDED_BY(mutex);

  void Note(std::vector<DeleteFailure> failed) MR_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    std::ranges::move(failed, std::back_inserter(failures));
  }
  /// Records the end of a batch. True for the last one.
  bool End(std::vector<DeleteFailure> failed, bool was_refused) MR_EXCLUDES(mutex) {
    Note(std::move(failed));
    MutexLock lock(mutex);
    refused += was_refused;
    return ++ended == count;
  }
};

void S3Store::DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) {
  constexpr std::size_t kMaxBatch = 1000;  // the limit of DeleteObjects
  constexpr std::size_t kMaxAtOnce = 4;    // each deletes up to 1,000 keys: more at once bring refusals for load
  for (const std::string& key : keys) {
    if (Status good = CheckKey(key); !good) return done(Fail(good.error()));
  }
  if (keys.empty()) return done(std::vector<DeleteFailure>());
  auto run = std::make_shared<DeleteRun>();
  run->call = std::move(call);
  run->done = std::move(done);
  // Keys that no XML document can name are deleted one by one.
  auto odd = std::partition(keys.begin(), keys.end(), xml::Fits);
  std::size_t plain = static_cast<std::size_t>(odd - keys.begin()), count;
  {
    MutexLock lock(run->mutex);
    for (std::size_t at = 0; at < keys.size();) {
      std::size_t size = at < plain ? std::min(kMaxBatch, plain - at) : 1;
      auto begin = std::move_iterator(keys.begin() + static_cast<std::ptrdiff_t>(at));
      run->batches.push_back({.keys = {begin, begin + static_cast<std::ptrdiff_t>(size)}});
      at += size;
    }
    count = run->count = run->batches.size();
  }
  for (std::size_t i = 0; i < std::min(kMaxAtOnce, count); ++i) StartDeletes(run);
}

void S3Store::StartDeletes(std::shared_ptr<DeleteRun> run) {
  DeleteBatch batch;
  {
    MutexLock lock(run->mutex);
    if (run->batches.empty()) return;
    batch = std::move(run->batches.back());
    run->batches.pop_back();
  }
  SendDeletes(std::move(run), std::move(batch));
}

void S3Store::SendDeletes(std::shared_ptr<DeleteRun> run, DeleteBatch batch) {
  ++batch.tries;
  bool single = !xml::Fits(batch.keys[0]);
  Operation operation =
      single ? NewOperation("DeleteObject", "DELETE", batch.keys[0]) : NewOperation("DeleteObjects", "POST");
  if (!single) {
    operation.query = {{"delete", ""}};
    operation.own_body = DeleteDocument(batch.keys);
    ByteSpan body = AsBytes(operation.own_body);
    operation.headers.Set("X-Amz-Checksum-Crc32c", EncodeCrc32c(body));
    operation.headers.Set("Content-MD5", Base64Encode(Md5(body)));  // older servers insist on it
    operation.headers.Set("Content-Type", "application/xml");
  }
  Call call = run->call;
  RunThen(std::move(operation), std::move(call),
          [this, run = std::move(run), batch = std::move(batch), single](Outcome outcome) mutable {
            std::optional<Error> refused;
            std::vector<DeleteError> errors;
            if (!outcome.response) refused = outcome.response.error();
            if (outcome.response && !single) {
              auto parsed = ParseDeleteErrors(outcome.response->body);
              if (parsed) {
                errors = *std::move(parsed);
              } else {
                refused = parsed.error();
              }
            }
            if (!refused) return SettleDeletes(std::move(run), batch.tries, std::move(errors));
            std::vector<DeleteFailure> failed;
            for (std::string& key : batch.keys) failed.push_back({.key = std::move(key), .error = *refused});
            EndDeletes(std::move(run), std::move(failed), true);
          });
}

/// Takes the response to a batch. Sends the keys again that the server could not delete for the moment.
void S3Store::SettleDeletes(std::shared_ptr<DeleteRun> run, int tries, std::vector<DeleteError> errors) {
  std::vector<DeleteFailure> failed, transient;
  for (DeleteError& error : errors) {
    if (error.code == "NoSuchKey") continue;
    Code code = CodeFromS3(error.code);
    auto& which = IsRetryable(code) ? transient : failed;
    which.push_back({.key = std::move(error.key), .error = Error(code, error.message + " (" + error.code + ")")});
  }
  if (transient.empty()) return EndDeletes(std::move(run), std::move(failed), false);
  auto wait = session_->dispatcher().NextTry(tries, transient.front().error, run->call, std::nullopt);
  if (!wait) {
    std::ranges::move(transient, std::back_inserter(failed));
    return EndDeletes(std::move(run), std::move(failed), false);
  }
  run->Note(std::move(failed));
  DeleteBatch batch{.tries = tries};
  for (DeleteFailure& failure : transient) batch.keys.push_back(std::move(failure.key));
  auto ticket = in_flight_.Begin(run->call.stop);
  std::stop_token stop = ticket->token();
  session_->dispatcher().After(
      *wait, std::move(stop),
      [this, run = std::move(run), batch = std::move(batch), ticket = std::move(ticket)]() mutable {
        SendDeletes(std::move(run), std::move(batch));
      });
}

void S3Store::EndDeletes(std::shared_ptr<DeleteRun> run, std::vector<DeleteFailure> failed, bool refused) {
  if (!run->End(std::move(failed), refused)) return StartDeletes(std::move(run));
  std::vector<DeleteFailure> failures;
  bool nothing_went;
  {
    MutexLock lock(run->mutex);
    failures = std::move(run->failures);
    nothing_went = run->refused == run->count;
  }
  if (nothing_went) return run->done(Fail(failures.front().error));
  run->done(std::move(failures));
}

}  // namespace millrace::object::s3
