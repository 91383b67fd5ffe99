// Downloads. Bytes go from the connection's buffer straight to their position in the file.
#include <algorithm>
#include <atomic>
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

/// A download that is cut off loses at most this much of each request. A block costs a line of the journal.
constexpr std::uint64_t kBlock = kMiB;
constexpr std::uint64_t kMostBlocks = 2'000'000;  // bounds the journal, which is read at once, to 52 MB

/// Writes a range to its position in the file, and records each block that is there, with its CRC-32C. If the answer
/// names another ETag than was asked for, records them at the end. With HashInto(), collects pieces, hashes them and
/// writes each piece at once. Reports bytes as they arrive, those that a retry brings again only once.
class FileSink : public object::Sink {
 public:
  /// REQUIRES: `begin` is the beginning of a block.
  FileSink(PartialFile& file, const object::ObjectInfo& info, std::uint64_t begin, const std::string& path,
           const CopySettings& settings)
      : file_(file), etag_(info.etag), begin_(begin), path_(path), settings_(settings), reported_(begin) {}
  /// Computes MD5s of the object's own parts, too.
  void HashInto(PartMd5s& md5s) { md5_.emplace(md5s); }

  void Begin(const object::ObjectInfo& info) override { is_sure_ = info.etag.empty() || info.etag == etag_; }
  Status Take(std::uint64_t offset, ByteSpan bytes) override {
    if (offset == begin_) BeginAgain();
    Report(offset + bytes.size());
    while (!bytes.empty()) {
      const std::size_t some = std::min<std::uint64_t>(bytes.size(), block_end_ - offset);
      const ByteSpan now = bytes.first(some);
      crc_ = Crc32c(now, crc_);
      const bool ends = offset + some == block_end_;
      if (ends) EndBlock();
      MR_TRY(md5_ ? Collect(offset, now) : WriteFully(file_.fd(), now, offset, path_));
      if (!md5_ && ends) MR_TRY(MarkWritten(offset + some));
      offset += some;
      bytes = bytes.subspan(some);
    }
    return {};
  }
  /// Records what is left. REQUIRES: the answer was whole, and the one that was asked for.
  Status Finish() {
    is_sure_ = true;
    return MarkWritten(UINT64_MAX);
  }

 private:
  struct ArrivedBlock {
    std::uint64_t block, end;
    std::uint32_t crc32c;
  };
  void BeginAgain() {
    filled_ = 0;
    arrived_.clear();
    if (md5_) md5_->Reset();
    BeginBlock(file_.BlockAt(begin_));
  }
  void BeginBlock(std::uint64_t block) {
    const object::ByteRange range = file_.RangeOf(block);
    block_ = block;
    block_end_ = range.offset + range.length;
    crc_ = 0;
  }
  void EndBlock() {
    arrived_.push_back({block_, block_end_, crc_});
    BeginBlock(block_ + 1);
  }
  /// Records the blocks that end at or before `end`, up to which all bytes are in the file.
  Status MarkWritten(std::uint64_t end) {
    while (is_sure_ && !arrived_.empty() && arrived_.front().end <= end) {
      MR_TRY(file_.MarkDone(arrived_.front().block, arrived_.front().crc32c));
      arrived_.pop_front();
    }
    return {};
  }
  Status Collect(std::uint64_t offset, ByteSpan bytes) {
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
  void BeginPiece(std::uint64_t offset) {
    piece_ = md5_->NewPiece();
    piece_begin_ = offset;
    piece_bytes_ = md5_->PieceAt(offset);
  }
  Status EndPiece() {
    filled_ = 0;
    MR_TRY(WriteFully(file_.fd(), ByteSpan(piece_).first(piece_bytes_), piece_begin_, path_));
    md5_->Take(piece_begin_, std::move(piece_));
    return MarkWritten(piece_begin_ + piece_bytes_);
  }

  void Report(std::uint64_t end) {
    if (end <= reported_) return;
    if (settings_.on_bytes) settings_.on_bytes(end - reported_);
    reported_ = end;
  }

  PartialFile& file_;
  const std::string& etag_;
  const std::uint64_t begin_;
  const std::string& path_;
  const CopySettings& settings_;
  std::uint64_t reported_;  ///< the end of the bytes that were reported, in the object
  bool is_sure_ = true;     ///< whether the answer has the version that was asked for
  std::uint64_t block_ = 0, block_end_ = 0;
  std::uint32_t crc_ = 0;             ///< of the block so far
  std::deque<ArrivedBlock> arrived_;  ///< blocks that are not yet in the file as a whole
  std::optional<PartMd5s::Request> md5_;
  Buffer piece_;
  std::uint64_t piece_begin_ = 0;             ///< the piece's offset in the object
  std::size_t piece_bytes_ = 0, filled_ = 0;  ///< the piece's size, and the bytes of it that have arrived
};

/// The sink of a whole object. The answer's header tells which checksum the object has.
class WholeSink final : public FileSink {
 public:
  WholeSink(PartialFile& file, const object::ObjectInfo& info, const std::string& path, const CopySettings& settings,
            Md5Pool* pool)
      : FileSink(file, info, 0, path, settings), size_(info.size), pool_(pool) {}

  void Begin(const object::ObjectInfo& info) override {
    FileSink::Begin(info);
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
  WholeSink sink(file, info, path, settings, settings.verify ? &pool : nullptr);
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
  MR_TRY(sink.Finish());
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

std::uint64_t BlockBytes(std::uint64_t size) { return std::max(kBlock, (size / kMostBlocks + kMiB - 1) / kMiB * kMiB); }

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

/// Downloads the blocks that are not done yet. The requests are the parts, or what they lack; several at a time.
Status FetchParts(object::ReadStore& store, const object::ObjectInfo& info, PartialFile& file, PartsPlan& plan,
                  const std::string& path, const CopySettings& settings, const object::Call& call) {
  // Deques keep addresses. Declared before the window, so destroyed after it.
  std::deque<FileSink> sinks;
  std::deque<std::atomic<std::size_t>> under_way;  // requests of each part that is not done
  Window window(settings.parallel_parts, call);
  const std::uint64_t parts = (info.size + plan.part_bytes - 1) / plan.part_bytes;
  // Hashes arrived parts until enough(window.progress()) holds.
  auto follow_until = [&](auto enough) -> Status {
    for (Window::Progress seen = window.progress(); plan.follow && !enough(seen); seen = window.progress()) {
      if (!MR_TRY(plan.follow->Advance())) window.AwaitLeave(seen);
    }
    return {};
  };
  bool goes_on = true;
  for (std::uint64_t i = 0; goes_on && i < parts; ++i) {
    const std::vector<object::ByteRange> missing = file.Missing(i);
    if (missing.empty()) {
      if (plan.follow) plan.follow->Arrived(i);
      continue;
    }
    std::atomic<std::size_t>& left = under_way.emplace_back(missing.size());
    const std::uint64_t part_bytes = std::min(plan.part_bytes, info.size - i * plan.part_bytes);
    for (const object::ByteRange& range : missing) {
      MR_TRY(follow_until([](const Window::Progress& seen) { return !seen.full; }));
      goes_on = window.Enter();
      if (!goes_on) break;
      FileSink& sink = sinks.emplace_back(file, info, range.offset, path, settings);
      if (plan.md5s && range.length == part_bytes) sink.HashInto(*plan.md5s);
      store.GetTo(info.key, {.range = range, .if_match = info.etag}, range.length, sink, window.call(),
                  [&info, &plan, &sink, &left, &window, i, length = range.length](auto got) {
                    Status status = CheckGetResult(got, info, length);
                    if (status) status = sink.Finish();
                    if (status && left.fetch_sub(1) == 1 && plan.follow) plan.follow->Arrived(i);
                    window.Leave(std::move(status));
                  });
    }
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
                                                     .part_bytes = sizes.request_bytes,
                                                     .block_bytes = BlockBytes(info.size)}));
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
