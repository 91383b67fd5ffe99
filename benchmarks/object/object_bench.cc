// Measures reads and writes of objects through the S3 store. compare.sh compares it with curl and s5cmd.
//
//   object_bench checksums
//   object_bench ENDPOINT BUCKET setup | down-large | down-small | up-large | up-small | urls FOLDER
//
// setup makes the bucket, "large" (256 MiB) and small/0…999 (570,000 bytes each). down-large reads the first in 8
// ranges at once, down-small the others 16 at a time; up-large puts 8 objects of 32 MiB at once, up-small 500 objects
// of 570,000 bytes 16 at a time. Each prints the seconds from the first request, which opens its connections, to the
// last byte in memory that was there before, and the CPU seconds of this process per GB. urls writes curl
// configurations of the same four, with presigned URLs, into FOLDER.
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"
#include "millrace/object/s3/endpoint.h"

namespace millrace::object {
namespace {

constexpr std::uint64_t kLarge = 256 * kMiB, kPart = 32 * kMiB, kSmall = 570'000;
constexpr int kParts = kLarge / kPart, kSmallCount = 1000, kSmallUp = 500, kSmallAtOnce = 16;

std::string SmallKey(int i) { return fmt::format("small/{}", i); }

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

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

/// A part or an object of bytes that do not compress.
Buffer NoiseBuffer(std::size_t size) {
  Buffer buffer(size);
  std::uint64_t state = 1;
  for (std::size_t i = 0; i + 8 <= size; i += 8) {
    state = state * 6364136223846793005 + 1442695040888963407;
    std::memcpy(buffer.data() + i, &state, 8);
  }
  return buffer;
}

Flood PutAll(Store& store, std::string prefix, int count, int at_once, ByteSpan body) {
  return Flood(count, at_once, [&store, prefix, body](int i, std::move_only_function<void(Status)> done) {
    store.Put(fmt::format("{}{}", prefix, i), body, {}, {},
              [done = std::move(done)](Result<PutResult> put) mutable { done(put ? Status() : Fail(put.error())); });
  });
}

Status Setup(s3::Endpoint& endpoint, const std::string& bucket, Store& store) {
  MR_TRY(endpoint.service().MakeBucket(bucket, {}));
  Buffer body = NoiseBuffer(kPart);
  std::string id = MR_TRY(CreateMultipart(store, "large"));
  std::vector<PartInfo> parts;
  for (int i = 0; i < kParts; ++i) {
    parts.push_back(MR_TRY(UploadPart(store, "large", id, i + 1, body.span())));
  }
  MR_TRY(CompleteMultipart(store, "large", id, parts));
  return PutAll(store, "small/", kSmallCount, kSmallAtOnce, body.span().first(kSmall)).Run();
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

/// Memory whose pages are allocated already, so that page faults do not count as reading.
Buffer TouchedBuffer(std::size_t size) {
  Buffer buffer(size);
  std::memset(buffer.data(), 0, size);
  return buffer;
}

Status Measure(std::uint64_t bytes, Flood flood) {
  double cpu = CpuSeconds();
  TimePoint start = SystemClock().Now();
  MR_TRY(flood.Run());
  std::chrono::duration<double> seconds = SystemClock().Now() - start;
  fmt::print("{:.3f} {:.3f}\n", seconds.count(), (CpuSeconds() - cpu) / (static_cast<double>(bytes) / 1e9));
  return {};
}

Status WriteUrls(Store& store, const std::filesystem::path& folder) {
  auto get = [&](const std::string& key) { return store.Presign("GET", key, std::chrono::hours(1)); };
  auto put = [&](const std::string& key) { return store.Presign("PUT", key, std::chrono::hours(1)); };
  std::string down_large, down_small, up_large, up_small;
  for (int i = 0; i < kParts; ++i) {
    if (i > 0) down_large += "next\n", up_large += "next\n";
    std::uint64_t begin = kPart * static_cast<std::uint64_t>(i);
    down_large += fmt::format("url = \"{}\"\nrange = {}-{}\noutput = /dev/null\n", MR_TRY(get("large")), begin,
                              begin + kPart - 1);
    up_large += fmt::format("url = \"{}\"\nupload-file = {}/part\noutput = /dev/null\n",
                            MR_TRY(put(fmt::format("curl-up/large{}", i))), folder.string());
  }
  for (int i = 0; i < kSmallCount; ++i) {
    down_small += fmt::format("url = \"{}\"\noutput = /dev/null\n", MR_TRY(get(SmallKey(i))));
    if (i >= kSmallUp) continue;
    up_small += fmt::format("url = \"{}\"\nupload-file = {}/small\noutput = /dev/null\n",
                            MR_TRY(put(fmt::format("curl-up/{}", i))), folder.string());
  }
  Buffer body = NoiseBuffer(kPart);
  MR_TRY(WriteFileAtomic(folder / "part", body.span()));
  MR_TRY(WriteFileAtomic(folder / "small", body.span().first(kSmall)));
  MR_TRY(WriteFileAtomic(folder / "down-large.curl", AsBytes(down_large)));
  MR_TRY(WriteFileAtomic(folder / "down-small.curl", AsBytes(down_small)));
  MR_TRY(WriteFileAtomic(folder / "up-large.curl", AsBytes(up_large)));
  return WriteFileAtomic(folder / "up-small.curl", AsBytes(up_small));
}

void MeasureChecksums() {
  Buffer buffer = NoiseBuffer(kMiB);
  auto measure = [&](const char* name, auto function) {
    constexpr int kRounds = 2000;
    std::uint64_t mixed = 0;
    TimePoint start = SystemClock().Now();
    for (int i = 0; i < kRounds; ++i) mixed += function(buffer.span(), mixed);
    std::chrono::duration<double> seconds = SystemClock().Now() - start;
    fmt::print("{} {:.1f} GB/s ({:016x})\n", name, kRounds * static_cast<double>(kMiB) / 1e9 / seconds.count(), mixed);
  };
  measure("crc32c", [](ByteSpan bytes, std::uint64_t seed) { return Crc32c(bytes, static_cast<std::uint32_t>(seed)); });
  measure("crc64nvme", [](ByteSpan bytes, std::uint64_t seed) { return Crc64Nvme(bytes, seed); });
}

Status Run(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "checksums") {
    MeasureChecksums();
    return {};
  }
  if (argc < 4) {
    return Fail(Code::kInvalidArgument,
                "usage: object_bench ENDPOINT BUCKET setup|down-large|down-small|up-large|up-small|urls FOLDER");
  }
  std::string bucket = argv[2], what = argv[3];
  auto endpoint = MR_TRY(s3::Endpoint::Open({.endpoint_url = argv[1]}));
  auto store = endpoint->OpenBucket(bucket);
  if (what == "setup") return Setup(*endpoint, bucket, *store);
  if (what == "urls" && argc == 5) return WriteUrls(*store, argv[4]);
  if (what == "down-large") {
    Buffer buffer = TouchedBuffer(kLarge);
    return Measure(kLarge, Flood(kParts, kParts, [&](int i, std::move_only_function<void(Status)> done) {
                     std::uint64_t offset = kPart * static_cast<std::uint64_t>(i);
                     ReadInto(*store, "large", ByteRange{offset, kPart}, buffer.span().subspan(offset, kPart),
                              std::move(done));
                   }));
  }
  if (what == "down-small") {
    Buffer buffer = TouchedBuffer(kSmall * kSmallAtOnce);
    return Measure(kSmall * kSmallCount,
                   Flood(kSmallCount, kSmallAtOnce, [&](int i, std::move_only_function<void(Status)> done) {
                     // Two reads may share a buffer: both write the same bytes.
                     auto place = static_cast<std::size_t>(i % kSmallAtOnce) * kSmall;
                     ReadInto(*store, SmallKey(i), std::nullopt, buffer.span().subspan(place, kSmall), std::move(done));
                   }));
  }
  Buffer body = NoiseBuffer(kPart);
  if (what == "up-large") return Measure(kLarge, PutAll(*store, "up/large", kParts, kParts, body.span()));
  if (what == "up-small") {
    return Measure(kSmall * kSmallUp, PutAll(*store, "up/", kSmallUp, kSmallAtOnce, body.span().first(kSmall)));
  }
  return Fail(Code::kInvalidArgument, "what is {:?}?", what);
}

}  // namespace
}  // namespace millrace::object

int main(int argc, char** argv) {
  millrace::Status status = millrace::object::Run(argc, argv);
  if (!status) fmt::print(stderr, "object_bench: {}\n", status.error().ToString());
  return status ? 0 : 1;
}
