#include "millrace/data/token_parts.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "millrace/base/hash/crc.h"
#include "millrace/base/threads/parallel_for.h"
#include "millrace/data/formats/megatron.h"
#include "millrace/object/blocking.h"

namespace millrace::data {
namespace {

constexpr std::string_view kPartMagic = "MRTOKEN1";
constexpr std::size_t kPartHeadBytes = 24;         // magic, u64 documents, u32 crc32c of the lengths, u32 zero
constexpr std::uint64_t kFirstRead = 256 * kKiB;   ///< a guess: holds the lengths of most parts
constexpr std::uint64_t kUploadBytes = 16 * kMiB;  ///< a part of the upload that is read and written; a guess
constexpr std::uint64_t kMaxCopy = kGiB;           ///< one copy inside the store; a guess: S3 allows up to 5 GiB

Status ReadPiece(object::ReadStore& store, const object::ObjectInfo& info, object::ByteRange range,
                 MutableByteSpan into, const object::Call& call) {
  auto got = MR_TRY(object::Get(store, info.key, {.range = range, .if_match = info.etag}, into, call));
  if (!got || got->bytes != range.length) {
    return Fail(Code::kStale, "{}/{}: the finished part is gone or cut off; run again", store.Describe(), info.key);
  }
  return {};
}

/// A multipart upload. The destructor aborts it unless it was completed.
class Upload {
 public:
  static Result<Upload> Begin(object::Store& store, const std::string& key, const object::Call& call) {
    return Upload(store, key, MR_TRY(object::CreateMultipart(store, key, {}, call)));
  }
  Upload(Upload&& other) noexcept
      : store_(other.store_), key_(std::move(other.key_)), id_(std::exchange(other.id_, {})) {}
  ~Upload() {
    if (!id_.empty()) (void)object::AbortMultipart(store_, key_, id_);
  }
  Result<object::PartInfo> Copy(int number, const object::ObjectInfo& source, object::ByteRange range,
                                const object::Call& call) {
    return object::CopyPart(store_, key_, id_, number, source.key, range, {.source_if_match = source.etag}, call);
  }
  Result<object::PartInfo> Put(int number, ByteSpan bytes, const object::Call& call) {
    return object::UploadPart(store_, key_, id_, number, bytes, call);
  }
  Status Complete(std::vector<object::PartInfo> parts, const object::Call& call) {
    MR_TRY(object::CompleteMultipart(store_, key_, id_, std::move(parts), {}, call));
    id_.clear();
    return {};
  }

 private:
  Upload(object::Store& store, std::string key, std::string id)
      : store_(store), key_(std::move(key)), id_(std::move(id)) {}
  object::Store& store_;
  std::string key_, id_;
};

/// Aborts the uploads of a killed run, because their parts take space.
Status AbortLeftovers(object::Store& store, const std::string& key, const object::Call& call) {
  auto uploads = object::ListUploads(store, key, call);
  if (!uploads && uploads.error().code() == Code::kUnsupported) return {};
  if (!uploads) return Fail(uploads.error());
  for (const object::UploadInfo& upload : *uploads) {
    if (upload.key == key) MR_TRY(object::AbortMultipart(store, key, upload.upload_id, call));
  }
  return {};
}

Result<Buffer> ReadRanges(object::ReadStore& store, std::span<const StoredTokenPart> parts, const UploadStep& step,
                          const object::Call& call) {
  Buffer bytes(step.bytes);
  MutableByteSpan into = bytes.span();
  for (const UploadStep::PartRange& range : step.ranges) {
    MR_TRY(ReadPiece(store, parts[range.part].info, range.range, into.first(range.range.length), call));
    into = into.subspan(range.range.length);
  }
  return bytes;
}

Status WriteTokens(object::Store& store, const std::string& key, std::span<const StoredTokenPart> parts, int threads,
                   object::Call call) {
  const std::vector<UploadStep> steps = PlanUpload(parts, store.limits());
  if (steps.size() <= 1 && (steps.empty() || !steps[0].copied)) {
    Buffer all = steps.empty() ? Buffer() : MR_TRY(ReadRanges(store, parts, steps[0], call));
    MR_TRY(object::Put(store, key, all, {}, call));
    return {};
  }
  MR_TRY(AbortLeftovers(store, key, call));
  Upload upload = MR_TRY(Upload::Begin(store, key, call));
  std::vector<object::PartInfo> done(steps.size());
  MR_TRY(ParallelFor("assemble", steps.size(), threads, call.stop, [&] {
    return [&](std::uint64_t i, std::stop_token stop) -> Status {
      object::Call one{.stop = std::move(stop), .deadline = call.deadline};
      const UploadStep& step = steps[i];
      int number = static_cast<int>(i) + 1;
      if (step.copied) {
        done[i] = MR_TRY(upload.Copy(number, parts[step.ranges[0].part].info, step.ranges[0].range, one));
      } else {
        done[i] = MR_TRY(upload.Put(number, MR_TRY(ReadRanges(store, parts, step, one)), one));
      }
      return {};
    };
  }));
  return upload.Complete(std::move(done), call);
}

Status WriteTable(object::Store& store, const std::string& key, const TokenTableWriter& table, object::Call call) {
  std::optional<Upload> upload;
  std::vector<object::PartInfo> done;
  std::string open;
  auto flush = [&]() -> Status {
    if (!upload) upload.emplace(MR_TRY(Upload::Begin(store, key, call)));
    done.push_back(MR_TRY(upload->Put(static_cast<int>(done.size()) + 1, AsBytes(open), call)));
    open.clear();
    return {};
  };
  MR_TRY(table.Write([&](ByteSpan bytes) -> Status {
    open += AsText(bytes);
    return open.size() < kUploadBytes ? Status() : flush();
  }));
  if (!upload) {
    MR_TRY(object::Put(store, key, AsBytes(open), {}, call));
    return {};
  }
  if (!open.empty()) MR_TRY(flush());
  return upload->Complete(std::move(done), call);
}

}  // namespace

void TokenPart::AddDocument(std::span<const tokenizer::TokenId> ids, int token_bytes) {
  lengths.push_back(static_cast<std::uint32_t>(ids.size()));
  AppendTokens(ids, token_bytes, tokens);
}

std::string TokenPart::Serialize() const {
  std::string_view table = AsText(std::as_bytes(std::span(lengths)));
  std::array<std::byte, kPartHeadBytes> head{};
  std::memcpy(head.data(), kPartMagic.data(), kPartMagic.size());
  StoreLittle(head.data() + 8, std::uint64_t{lengths.size()});
  StoreLittle(head.data() + 16, Crc32c(AsBytes(table)));
  std::string bytes(AsText(head));
  bytes.reserve(bytes.size() + table.size() + tokens.size());
  bytes += table;
  bytes += tokens;
  return bytes;
}

Result<StoredTokenPart> ReadStoredTokenPart(object::ReadStore& store, object::ObjectInfo info, object::Call call) {
  auto corrupt = [&](std::string_view why) {
    return Fail(Code::kCorrupt, "{}/{}: {}; delete it and run again", store.Describe(), info.key, why);
  };
  Buffer front(std::min(info.size, kFirstRead));
  if (front.size() < kPartHeadBytes) return corrupt("not a part of a tokenization");
  MR_TRY(ReadPiece(store, info, {0, front.size()}, front.span(), call));
  auto documents = LoadLittle<std::uint64_t>(front.data() + 8);
  if (!AsText(front).starts_with(kPartMagic) || documents > (info.size - kPartHeadBytes) / sizeof(std::uint32_t)) {
    return corrupt("not a part of a tokenization");
  }
  StoredTokenPart part{.lengths = std::vector<std::uint32_t>(documents)};
  MutableByteSpan table = std::as_writable_bytes(std::span(part.lengths));
  std::size_t have = std::min(table.size(), front.size() - kPartHeadBytes);
  std::copy_n(front.data() + kPartHeadBytes, have, table.data());
  if (have < table.size()) {
    MR_TRY(ReadPiece(store, info, {kPartHeadBytes + have, table.size() - have}, table.subspan(have), call));
  }
  if (Crc32c(table) != LoadLittle<std::uint32_t>(front.data() + 16)) return corrupt("its checksum does not hold");
  part.tokens_at = kPartHeadBytes + table.size();
  part.info = std::move(info);
  return part;
}

std::vector<UploadStep> PlanUpload(std::span<const StoredTokenPart> parts, const object::Limits& limits) {
  std::vector<UploadStep> steps;
  UploadStep open;
  const std::uint64_t most = std::min(kMaxCopy, limits.max_part);
  auto add = [](UploadStep& step, std::size_t part, object::ByteRange& rest, std::uint64_t bytes) {
    step.ranges.push_back({part, {rest.offset, bytes}});
    step.bytes += bytes;
    rest = {rest.offset + bytes, rest.length - bytes};
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    object::ByteRange rest{parts[i].tokens_at, parts[i].info.size - parts[i].tokens_at};
    while (rest.length > 0) {
      if (open.bytes == 0 && rest.length >= limits.min_part) {
        add(steps.emplace_back(UploadStep{.copied = true}), i, rest, std::min(rest.length, most));
        continue;
      }
      add(open, i, rest, std::min(rest.length, limits.min_part - open.bytes));
      if (open.bytes == limits.min_part) steps.push_back(std::exchange(open, {}));
    }
  }
  if (open.bytes > 0) steps.push_back(std::move(open));
  return steps;
}

Status AssembleTokenFile(object::Store& store, const std::string& key, std::span<const StoredTokenPart> parts,
                         int token_bytes, int threads, object::Call call) {
  TokenTableWriter table(token_bytes);
  for (const StoredTokenPart& part : parts) {
    std::uint64_t before = table.tokens();
    for (std::uint32_t length : part.lengths) table.AddDocument(length);
    if ((table.tokens() - before) * token_bytes != part.info.size - part.tokens_at) {
      return Fail(Code::kCorrupt, "{}/{}: its tokens are not as many as its documents have; delete it and run again",
                  store.Describe(), part.info.key);
    }
  }
  MR_TRY(object::Delete(store, key + ".idx", call));
  MR_TRY(WriteTokens(store, key + ".bin", parts, threads, call));
  return WriteTable(store, key + ".idx", table, call);
}

}  // namespace millrace::data
