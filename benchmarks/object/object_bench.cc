// Reads objects through the S3 store as fast as it goes; compare.sh runs it beside curl and s5cmd.
//
//   object_bench ENDPOINT BUCKET setup|large|small|urls
//
// setup makes the bucket, "large" (256 MiB) and small/0…1999 (10 KiB each). large reads the first in 8 ranges at once,
// small reads the others 64 at a time; both print the seconds from the first request, which opens its connections, to
// the last byte in memory that was there before. urls prints presigned URLs: a curl configuration of the small ones,
// and the large one's on standard error.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/sync.h"
#include "millrace/object/blocking.h"
#include "millrace/object/s3/endpoint.h"

namespace millrace::object {
namespace {

constexpr std::uint64_t kLarge = 256 * kMiB, kPart = 32 * kMiB, kSmall = 10 * kKiB;
constexpr int kSmallCount = 2000, kSmallAtOnce = 64;

std::string SmallKey(int i) { return fmt::format("small/{}", i); }

/// Runs `count` asynchronous calls, `at_once` of them at a time; the first error ends it.
class Flood {
 public:
  using Start = std::function<void(int, std::move_only_function<void(Status)>)>;
  Flood(int count, int at_once, Start start) : count_(count), at_once_(at_once), start_(std::move(start)) {}

  Status Run() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (int next = 0; next < count_; ++next) {
      while (active_ == at_once_) changed_.Wait(mutex_);
      if (!status_) break;
      ++active_;
      lock.Unlock();
      start_(next, [this](Status status) { End(std::move(status)); });
      lock.Lock();
    }
    while (active_ > 0) changed_.Wait(mutex_);
    return status_;
  }

 private:
  void End(Status status) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    --active_;
    if (!status && status_) status_ = std::move(status);
    changed_.NotifyOne();
  }

  const int count_, at_once_;
  const Start start_;
  Mutex mutex_;
  CondVar changed_;
  int active_ MR_GUARDED_BY(mutex_) = 0;
  Status status_ MR_GUARDED_BY(mutex_);
};

Status Setup(s3::Endpoint& endpoint, const std::string& bucket, Store& store) {
  MR_TRY(endpoint.service().MakeBucket(bucket, {}));
  std::string body(kPart, 'x');
  std::string id = MR_TRY(CreateMultipart(store, "large"));
  std::vector<PartInfo> parts;
  for (std::uint64_t i = 0; i < kLarge / kPart; ++i) {
    parts.push_back(MR_TRY(UploadPart(store, "large", id, static_cast<int>(i) + 1, AsBytes(body))));
  }
  MR_TRY(CompleteMultipart(store, "large", id, parts));
  ByteSpan small = AsBytes(body).first(kSmall);
  return Flood(kSmallCount, kSmallAtOnce,
               [&](int i, std::move_only_function<void(Status)> done) {
                 store.Put(SmallKey(i), small, {}, {}, [done = std::move(done)](Result<PutResult> put) mutable {
                   done(put ? Status() : Fail(put.error()));
                 });
               })
      .Run();
}

void ReadInto(Store& store, const std::string& key, std::optional<ByteRange> range, MutableByteSpan into,
              std::move_only_function<void(Status)> done) {
  store.Get(key, {.range = range}, into, {},
            [size = into.size(), done = std::move(done)](Result<std::optional<GetResult>> got) mutable {
              if (!got) return done(Fail(got.error()));
              if (!*got || (*got)->bytes != size) return done(Fail(Code::kCorrupt, "an object is missing or short"));
              done({});
            });
}

/// Memory whose pages exist: what the kernel takes to make them is no part of reading.
Buffer TouchedBuffer(std::size_t size) {
  Buffer buffer(size);
  std::memset(buffer.data(), 0, size);
  return buffer;
}

Status PrintSeconds(Flood& flood) {
  TimePoint start = SystemClock().Now();
  MR_TRY(flood.Run());
  std::chrono::duration<double> seconds = SystemClock().Now() - start;
  fmt::print("{:.3f}\n", seconds.count());
  return {};
}

Status Run(int argc, char** argv) {
  if (argc != 4) return Fail(Code::kInvalidArgument, "usage: object_bench ENDPOINT BUCKET setup|large|small|urls");
  std::string bucket = argv[2], what = argv[3];
  auto endpoint = MR_TRY(s3::Endpoint::Open({.endpoint_url = argv[1]}));
  auto store = endpoint->OpenBucket(bucket);
  if (what == "setup") return Setup(*endpoint, bucket, *store);
  if (what == "large") {
    Buffer buffer = TouchedBuffer(kLarge);
    Flood flood(kLarge / kPart, 8, [&](int i, std::move_only_function<void(Status)> done) {
      std::uint64_t offset = kPart * static_cast<std::uint64_t>(i);
      ReadInto(*store, "large", ByteRange{offset, kPart}, buffer.span().subspan(offset, kPart), std::move(done));
    });
    return PrintSeconds(flood);
  }
  if (what == "small") {
    Buffer buffer = TouchedBuffer(kSmall * kSmallCount);
    Flood flood(kSmallCount, kSmallAtOnce, [&](int i, std::move_only_function<void(Status)> done) {
      ReadInto(*store, SmallKey(i), std::nullopt, buffer.span().subspan(kSmall * static_cast<std::size_t>(i), kSmall),
               std::move(done));
    });
    return PrintSeconds(flood);
  }
  for (int i = 0; i < kSmallCount; ++i) {
    fmt::print("url = \"{}\"\noutput = /dev/null\n", MR_TRY(store->Presign("GET", SmallKey(i), std::chrono::hours(1))));
  }
  fmt::print(stderr, "{}\n", MR_TRY(store->Presign("GET", "large", std::chrono::hours(1))));
  return {};
}

}  // namespace
}  // namespace millrace::object

int main(int argc, char** argv) {
  millrace::Status status = millrace::object::Run(argc, argv);
  if (!status) fmt::print(stderr, "object_bench: {}\n", status.error().ToString());
  return status ? 0 : 1;
}
