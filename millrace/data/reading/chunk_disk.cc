#include "millrace/data/reading/chunk_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/hash/digest.h"
#include "millrace/data/records/content.h"

namespace millrace::data {
namespace {

constexpr std::uint64_t kBlockBytes = 1 * kMiB;  ///< the block size of a mount's cache, which may share the folder
constexpr std::size_t kMaxWaiting = 4096;        ///< chunks; a guess: kWaitingBytes limits them first

bool OnDiskAnyway(const DataObject& object) { return !object.content && object.url.starts_with('/'); }

std::string NameOf(const ContentRange& range) {
  const DataObject& object = *range.object;
  const std::string store = object.store->Identity();
  std::string name = "content\n";
  for (std::string_view part :
       {std::string_view(store), std::string_view(object.info.key), std::string_view(object.info.etag),
        object.content ? object.content->format() : std::string_view()}) {
    name += fmt::format("{}:{}\n", part.size(), part);
  }
  return name + fmt::format("{} {} {}", object.info.size, range.offset, range.bytes);
}

cache::BlockId IdOf(const std::string& name, std::uint64_t block) {
  return Sha256(AsBytes(fmt::format("{} {}", name, block)));
}

/// Calls `visit(number, block)` for each block of `bytes` until it returns false. Returns false in that case.
template <class Bytes, class Visit>
bool EachBlock(Bytes bytes, Visit visit) {
  for (std::uint64_t at = 0, number = 0; at < bytes.size(); at += kBlockBytes, ++number) {
    if (!visit(number, bytes.subspan(at, std::min<std::uint64_t>(kBlockBytes, bytes.size() - at)))) return false;
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<ChunkDisk>> ChunkDisk::Open(std::filesystem::path folder, std::uint64_t max_bytes, Logger log) {
  auto tier = MR_TRY(cache::DiskTier::Open(
      {.directory = std::move(folder), .max_bytes = max_bytes, .block_bytes = kBlockBytes, .log = std::move(log)}));
  return std::unique_ptr<ChunkDisk>(new ChunkDisk(std::move(tier)));
}

ChunkDisk::ChunkDisk(std::unique_ptr<cache::DiskTier> tier) : tier_(std::move(tier)), waiting_(kMaxWaiting) {
  writer_.Spawn("data-disk", [this](const std::stop_token&) {
    while (auto waiting = waiting_.Pop()) {
      Write(*waiting);
      waiting_bytes_ -= waiting->content.size();
    }
  });
}

ChunkDisk::~ChunkDisk() {
  waiting_.Close();
  writer_.Join();
}

std::optional<Buffer> ChunkDisk::Load(const ContentRange& range) const {
  if (OnDiskAnyway(*range.object) || range.bytes == 0) return std::nullopt;
  const std::string name = NameOf(range);
  // Mostly either all blocks are there or none. Without the first block, nothing is allocated.
  if (!tier_->Has(IdOf(name, 0))) return std::nullopt;
  Buffer content(range.bytes);
  bool whole = EachBlock(content.span(), [&](std::uint64_t number, MutableByteSpan block) {
    return tier_->Load(IdOf(name, number), block) == cache::DiskTier::Outcome::kHit;
  });
  if (!whole) return std::nullopt;
  return content;
}

void ChunkDisk::Save(const ContentRange& range, ByteSpan content, std::shared_ptr<const void> owner) {
  if (OnDiskAnyway(*range.object) || content.empty()) return;
  const std::uint64_t before = waiting_bytes_.fetch_add(content.size());
  Waiting waiting{.name = NameOf(range), .content = content, .owner = std::move(owner)};
  bool room = before == 0 || before + content.size() <= kWaitingBytes;
  if (!room || !waiting_.TryPush(waiting)) waiting_bytes_ -= content.size();
}

void ChunkDisk::Write(const Waiting& waiting) const {
  EachBlock(waiting.content, [&](std::uint64_t number, ByteSpan block) {
    tier_->Store(IdOf(waiting.name, number), block);
    return true;
  });
}

}  // namespace millrace::data
