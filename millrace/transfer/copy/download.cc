// Downloads. Bytes go from the connection's buffer straight to their position in the file.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/crc.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/copy/download_md5.h"
#include "millrace/transfer/copy/verify.h"
#include "millrace/transfer/local/partial_file.h"
#include "millrace/transfer/local/resume.h"
#include "millrace/transfer/stream/window.h"

namespace millrace::transfer {
namespace {

/// Writes one part to its position in the file and computes its CRC-32C. With HashInto(), it collects pieces, hashes
/// them and writes each piece at once. Reports bytes as they arrive, those that a retry brings again only once.
class FileSink : public object::Sink {
 public:
  FileSink(const PartialFile& file, std::uint64_t index, std::uint64_t begin, const std::string& path,
           const CopySettings& settings)
      : file_(file), index_(index), begin_(begin), path_(path), settings_(settings), reported_(begin) {}
  /// Computes MD5s of the object's own parts, too.
  void HashInto(PartMd5s& md5s) { md5_.emplace(md5s); }

  Status Take(std::uint64_t offset, ByteSpan bytes) override {
    if (offset == begin_) {
      crc_ = 0;
      filled_ = 0;
      if (md5_) md5_->Reset();
    }
    crc_ = Crc32c(bytes, crc_);
    Report(offset + bytes.size());
    if (!md5_) return WriteFully(file_.fd(), bytes, offset, path_);
    while (!bytes.empty()) {
      if (filled_ == 0) BeginPiece(offset);
      const std::size_t some = std::min(bytes.size(), piece_bytes_ - filled_);
      std::memcpy(piece_.data() + filled_, bytes.data(), some);
      filled_ += some;
      offset += some;
      bytes = bytes.subspan(some);
      if (filled_ == piece_bytes_) MR_TRY(EndPiece());
    }
    return {};
  }
  std::uint32_t crc32c() const { return crc_; }
  std::uint64_t index() const { return index_; }

 private:
  void BeginPiece(std::uint64_t offset) {
    piece_ = md5_->NewPiece();
    piece_begin_ = offset;
    piece_bytes_ = md5_->PieceAt(offset);
  }
  Status EndPiece() {
    filled_ = 0;
    MR_TRY(WriteFully(file_.fd(), ByteSpan(piece_).first(piece_bytes_), piece_begin_, path_));
    md5_->Take(piece_begin_, std::move(piece_));
    return {};
  }

  void Report(std::uint64_t end) {
    if (end <= reported_) return;
    if (settings_.on_bytes) settings_.on_bytes(end - reported_);
    reported_ = end;
  }

  const PartialFile& file_;
  const std::uint64_t index_, begin_;
  const std::string& path_;
  const CopySettings& settings_;
  std::uint64_t reported_;  ///< the end of the bytes that were reported, in the object
  std::uint32_t crc_ = 0;
  std::optional<PartMd5s::Request> md5_;
  Buffer piece_;
  std::uint64_t piece_begin_ = 0;             ///< the piece's offset in the object
  std::size_t piece_bytes_ = 0, filled_ = 0;  ///< the piece's size, and the bytes of it that have arrived
};

/// The sink of a whole object. The answer's header tells which checksum the object has.
class WholeSink final : public FileSink {
 public:
  WholeSink(const PartialFile& file, std::uint64_t size, const std::string& path, const CopySettings& settings,
            Md5Pool* pool)
      : FileSink(file, 0, 0, path, settings), size_(size), pool_(pool) {}

  void Begin(const object::ObjectInfo& info) override {
    const bool md5 = info.checksum.algorithm == object::Checksum::Algorithm::kMd5 && info.checksum.parts <= 1;
    if (!pool_ || !md5 || md5s_ || size_ == 0) return;
    md5s_.emplace(*pool_, size_, size_);
    HashInto(*md5s_);
  }
  bool Matches(const object::Checksum& expected) const { return md5s_ && md5s_->Matches(expected); }

 private:
  const std::uint64_t size_;
  Md5Pool* const pool_;  ///< null: the download is not verified
  std::optional<PartMd5s> md5s_;
};

/// Checks the result of a Get of `expected` bytes of one version. Errors: kStale if the object has changed.
Status CheckGetResult(const Result<std::optional<object::GetResult>>& got, const object::ObjectInfo& info,
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

Status Verify(object::ReadStore& store, const PartialFile& file, const object::ObjectInfo& info,
              const object::Checksum& expected, const object::Call& call) {
  if (expected.parts > 0) {
    MR_TRY(VerifyParts(file.fd(), store, info, expected, call));
    return {};
  }
  if (expected.algorithm != object::Checksum::Algorithm::kCrc32c) {
    return VerifyFile(file.fd(), info.size, expected, info.key, call);
  }
  if (Crc32cChecksum(file.crc32c()) == expected) return {};
  return std::unexpected(Mismatch(info.key, expected));
}

/// Downloads with one request. Its answer tells the checksum. There is no journal.
Status DownloadWhole(object::ReadStore& store, const object::ObjectInfo& info, const std::string& path,
                     const CopySettings& settings, Md5Pool& pool, const object::Call& call) {
  PartialFile file = MR_TRY(PartialFile::Open(path, {.size = info.size}));
  WholeSink sink(file, info.size, path, settings, settings.verify ? &pool : nullptr);
  Window window(1, call);
  object::Checksum checksum;
  if (window.Enter()) {
    store.GetTo(info.key, {.if_match = info.etag}, info.size, sink, window.call(), [&](auto got) {
      Status status = CheckGetResult(got, info, info.size);
      if (status) checksum = std::move((*got)->info.checksum);
      window.Leave(std::move(status));
    });
  }
  MR_TRY(window.Finish());
  MR_TRY(file.MarkDone(0, sink.crc32c()));
  if (settings.verify && !sink.Matches(checksum)) MR_TRY(Verify(store, file, info, checksum, call));
  return file.Publish(ToTimespec(info.modified));
}

/// Returns the size of a download's parts, a multiple of part_bytes: uploads usually have parts of such sizes, and a
/// request then touches few of them.
std::uint64_t DownloadPartBytes(std::uint64_t size, const CopySettings& settings) {
  constexpr std::uint64_t kMax = 64 * kMiB;  // measured: docs/benchmarks/transfer.md, "What limits transfers"
  if (!settings.larger_download_parts) return settings.part_bytes;
  const std::uint64_t most = std::max<std::uint64_t>(1, kMax / settings.part_bytes);
  const std::uint64_t parts = (size + settings.part_bytes - 1) / settings.part_bytes;
  return settings.part_bytes * std::clamp<std::uint64_t>(2 * parts / std::max(1, settings.parallel_parts), 1, most);
}

/// The parts of a download, and the computation of its MD5s if the object is verified by MD5.
struct PartsPlan {
  std::uint64_t part_bytes = 0;
  std::optional<PartMd5s> md5s;        ///< MD5s of the object's own parts
  std::optional<FollowingMd5> follow;  ///< the MD5 of the whole object
};

/// Parts of an upload up to this size are downloaded with one request each. A request that fails begins again, so a
/// longer one would lose too much.
constexpr std::uint64_t kMaxHashedPart = 128 * kMiB;
/// From this number of downloads on, one connection per object keeps the network and the MD5 lanes busy (half the lanes
/// reach two thirds of the speed, benchmarks/md5).
constexpr int kManyDownloads = 8;

/// The size of requests, and the size of the object's own parts if their MD5s are computed (else 0).
struct RequestSizes {
  std::uint64_t request_bytes = 0, md5_part_bytes = 0;
};
Result<RequestSizes> ChooseRequests(object::ReadStore& store, const object::ObjectInfo& info,
                                    const object::Checksum& checksum, const CopySettings& settings, int downloads,
                                    const object::Call& call) {
  const std::uint64_t usual = DownloadPartBytes(info.size, settings);
  if (!settings.verify || checksum.algorithm != object::Checksum::Algorithm::kMd5) return RequestSizes{usual, 0};
  if (checksum.parts == 0) {
    // Beside other downloads one connection is enough, and one request needs no second read of the file.
    if (downloads >= kManyDownloads && info.size <= kMaxHashedPart) return RequestSizes{info.size, info.size};
    return RequestSizes{settings.part_bytes, 0};  // short, so that hashing keeps up with arriving
  }
  const std::uint64_t own = MR_TRY(EvenPartBytes(store, info, checksum.parts, call));
  if (own == 0 || own > kMaxHashedPart) return RequestSizes{usual, 0};
  return RequestSizes{own * std::max<std::uint64_t>(1, usual / own), own};
}

/// Downloads the parts that are not done yet, several at a time.
Status FetchParts(object::ReadStore& store, const object::ObjectInfo& info, PartialFile& file, PartsPlan& plan,
                  const std::string& path, const CopySettings& settings, const object::Call& call) {
  std::deque<FileSink> sinks;  // a deque keeps addresses; declared before the window, so destroyed after it
  Window window(settings.parallel_parts, call);
  const std::uint64_t parts = (info.size + plan.part_bytes - 1) / plan.part_bytes;
  // Hashes arrived parts until enough(window.progress()) holds.
  auto follow_until = [&](auto enough) -> Status {
    for (Window::Progress seen = window.progress(); plan.follow && !enough(seen); seen = window.progress()) {
      if (!MR_TRY(plan.follow->Advance())) window.AwaitLeave(seen);
    }
    return {};
  };
  for (std::uint64_t i = 0; i < parts; ++i) {
    if (file.done(i)) {
      if (plan.follow) plan.follow->Arrived(i);
      continue;
    }
    MR_TRY(follow_until([](const Window::Progress& seen) { return !seen.full; }));
    if (!window.Enter()) break;
    object::ByteRange range{i * plan.part_bytes, std::min(plan.part_bytes, info.size - i * plan.part_bytes)};
    FileSink& sink = sinks.emplace_back(file, i, range.offset, path, settings);
    if (plan.md5s) sink.HashInto(*plan.md5s);
    store.GetTo(info.key, {.range = range, .if_match = info.etag}, range.length, sink, window.call(),
                [&, length = range.length](auto got) {
                  Status status = CheckGetResult(got, info, length);
                  if (status) status = file.MarkDone(sink.index(), sink.crc32c());
                  if (status && plan.follow) plan.follow->Arrived(sink.index());
                  window.Leave(std::move(status));
                });
  }
  MR_TRY(follow_until([](const Window::Progress& seen) { return seen.in_flight == 0; }));
  MR_TRY(window.Finish());
  while (plan.follow && MR_TRY(plan.follow->Advance())) {
  }
  return {};
}

}  // namespace

Status Download(object::ReadStore& store, const object::ObjectInfo& info, const std::string& path,
                const CopySettings& settings, object::Call call) {
  Md5Pool own_pool;
  Md5Pool& pool = settings.md5 ? *settings.md5 : own_pool;
  const Md5Pool::Download counted(pool);
  if (info.size <= settings.part_bytes) return DownloadWhole(store, info, path, settings, pool, call);
  object::Checksum checksum = info.checksum;
  if (settings.verify && checksum.algorithm == object::Checksum::Algorithm::kNone) {  // a listing does not have it
    auto head = MR_TRY(object::Head(store, info.key, call));
    if (!head || head->etag != info.etag) return Fail(Code::kStale, "{} was replaced or deleted meanwhile", info.key);
    checksum = head->checksum;
  }
  const RequestSizes sizes = MR_TRY(ChooseRequests(store, info, checksum, settings, pool.downloads(), call));
  PartialFile file = MR_TRY(PartialFile::Open(path, {.source = store.Describe() + "/" + info.key + "\n" + info.etag,
                                                     .size = info.size,
                                                     .part_bytes = sizes.request_bytes}));
  if (settings.on_resumed && file.bytes_done() > 0) settings.on_resumed(file.bytes_done());
  PartsPlan plan{.part_bytes = sizes.request_bytes};
  if (sizes.md5_part_bytes > 0) plan.md5s.emplace(pool, info.size, sizes.md5_part_bytes);
  if (settings.verify && checksum.algorithm == object::Checksum::Algorithm::kMd5 && checksum.parts == 0 && !plan.md5s) {
    plan.follow.emplace(pool, file.fd(), info.size, sizes.request_bytes, path);
  }
  Status fetched = FetchParts(store, info, file, plan, path, settings, call);
  if (!fetched && WorthKeeping(fetched.error().code())) file.KeepFiles();
  MR_TRY(std::move(fetched));
  const bool proven = (plan.md5s && plan.md5s->Matches(checksum)) || (plan.follow && plan.follow->Matches(checksum));
  if (settings.verify && !proven) MR_TRY(Verify(store, file, info, checksum, call));
  return file.Publish(ToTimespec(info.modified));
}

}  // namespace millrace::transfer
