// Objects to files. Bytes go from the connection's buffer to the file with no part of them kept in memory.
#include <algorithm>
#include <chrono>
#include <deque>

#include "millrace/base/crc.h"
#include "millrace/base/files.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/copy.h"
#include "millrace/transfer/partial_file.h"
#include "millrace/transfer/resume.h"
#include "millrace/transfer/verify.h"
#include "millrace/transfer/window.h"

namespace millrace::transfer {
namespace {

/// Writes one part where it belongs and sums it up meanwhile.
class FileSink final : public object::Sink {
 public:
  FileSink(const PartialFile& file, std::uint64_t index, std::uint64_t begin, const std::string& path)
      : file_(file), index_(index), begin_(begin), path_(path) {}

  Status Take(std::uint64_t offset, ByteSpan bytes) override {
    if (offset == begin_) crc_ = 0;
    crc_ = Crc32c(bytes, crc_);
    return WriteFully(file_.fd(), bytes, offset, path_);
  }
  std::uint32_t crc32c() const { return crc_; }
  std::uint64_t index() const { return index_; }
  std::uint64_t begin() const { return begin_; }

 private:
  const PartialFile& file_;
  const std::uint64_t index_, begin_;
  const std::string& path_;
  std::uint32_t crc_ = 0;
};

/// What a Get of `expected` bytes of one version came to.
Status CheckGot(const Result<std::optional<object::GetResult>>& got, const object::ObjectInfo& info,
                std::uint64_t expected) {
  if (!got && got.error().code() == Code::kPreconditionFailed) {
    return Fail(Code::kStale, "{} was replaced while it was read", info.key);
  }
  if (!got) return Fail(got.error());
  if (!*got) return Fail(Code::kStale, "{} was deleted while it was read", info.key);
  if ((*got)->bytes != expected || (*got)->info.size != info.size) {
    return Fail(Code::kStale, "{} changed its size while it was read: {} of {} bytes", info.key, (*got)->bytes,
                expected);
  }
  return {};
}

timespec ToTimespec(WallTime time) {
  auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  return {since / 1'000'000'000, since % 1'000'000'000};
}

Status Verify(object::Store& store, const PartialFile& file, const object::ObjectInfo& info,
              const object::Checksum& expected, const object::Call& call) {
  if (expected.parts > 0) {
    MR_TRY(VerifyParts(file.fd(), store, info, expected, call));
    return {};
  }
  if (expected.kind != object::Checksum::Kind::kCrc32c) {
    return VerifyFile(file.fd(), info.size, expected, info.key, call);
  }
  if (Crc32cChecksum(file.crc32c()) == expected) return {};
  return std::unexpected(Mismatch(info.key, expected));
}

/// With one request: there is nothing to continue, and its answer tells the checksum.
Status DownloadWhole(object::Store& store, const object::ObjectInfo& info, const std::string& path,
                     const CopySettings& settings, const object::Call& call) {
  PartialFile file = MR_TRY(PartialFile::Open(path, {.size = info.size}));
  FileSink sink(file, 0, 0, path);
  Window window(1, call);
  object::Checksum checksum;
  if (window.Enter()) {
    store.GetTo(info.key, {.if_match = info.etag}, info.size, sink, window.call(), [&](auto got) {
      Status status = CheckGot(got, info, info.size);
      if (status) checksum = std::move((*got)->info.checksum);
      window.Leave(std::move(status));
    });
  }
  MR_TRY(window.Finish());
  MR_TRY(file.MarkDone(0, sink.crc32c()));
  if (settings.verify) MR_TRY(Verify(store, file, info, checksum, call));
  MR_TRY(file.Publish(ToTimespec(info.modified)));
  if (settings.on_bytes) settings.on_bytes(info.size);
  return {};
}

/// Multiples of part_bytes, so that a request seldom reaches into a part of the upload more than it must.
std::uint64_t PartBytesFor(std::uint64_t size, const CopySettings& settings) {
  constexpr std::uint64_t kMost = 64 * kMiB;
  if (!settings.larger_download_parts) return settings.part_bytes;
  const std::uint64_t most = std::max<std::uint64_t>(1, kMost / settings.part_bytes);
  const std::uint64_t parts = (size + settings.part_bytes - 1) / settings.part_bytes;
  return settings.part_bytes * std::clamp<std::uint64_t>(2 * parts / std::max(1, settings.parallel_parts), 1, most);
}

/// The parts that are not done yet, several at a time.
Status FetchParts(object::Store& store, const object::ObjectInfo& info, PartialFile& file, std::uint64_t part_bytes,
                  const std::string& path, const CopySettings& settings, const object::Call& call) {
  std::deque<FileSink> sinks;  // their addresses last; gone after the window
  Window window(settings.parallel_parts, call);
  std::uint64_t parts = (info.size + part_bytes - 1) / part_bytes;
  for (std::uint64_t i = 0; i < parts; ++i) {
    if (file.done(i)) continue;
    if (!window.Enter()) break;
    object::ByteRange range{i * part_bytes, std::min(part_bytes, info.size - i * part_bytes)};
    FileSink& sink = sinks.emplace_back(file, i, range.offset, path);
    store.GetTo(info.key, {.range = range, .if_match = info.etag}, range.length, sink, window.call(),
                [&, length = range.length](auto got) {
                  Status status = CheckGot(got, info, length);
                  if (status) status = file.MarkDone(sink.index(), sink.crc32c());
                  if (status && settings.on_bytes) settings.on_bytes(length);
                  window.Leave(std::move(status));
                });
  }
  return window.Finish();
}

}  // namespace

Status Download(object::Store& store, const object::ObjectInfo& info, const std::string& path,
                const CopySettings& settings, object::Call call) {
  if (info.size <= settings.part_bytes) return DownloadWhole(store, info, path, settings, call);
  object::Checksum checksum = info.checksum;
  if (settings.verify && checksum.kind == object::Checksum::Kind::kNone) {  // a listing does not have it
    auto head = MR_TRY(object::Head(store, info.key, call));
    if (!head || head->etag != info.etag) return Fail(Code::kStale, "{} was replaced or deleted meanwhile", info.key);
    checksum = head->checksum;
  }
  const std::uint64_t part_bytes = PartBytesFor(info.size, settings);
  PartialFile file = MR_TRY(PartialFile::Open(
      path,
      {.source = store.Describe() + "/" + info.key + "\n" + info.etag, .size = info.size, .part_bytes = part_bytes}));
  if (settings.on_resumed && file.bytes_done() > 0) settings.on_resumed(file.bytes_done());
  Status fetched = FetchParts(store, info, file, part_bytes, path, settings, call);
  if (!fetched && WorthKeeping(fetched.error().code())) file.Keep();
  MR_TRY(std::move(fetched));
  if (settings.verify) MR_TRY(Verify(store, file, info, checksum, call));
  return file.Publish(ToTimespec(info.modified));
}

}  // namespace millrace::transfer
