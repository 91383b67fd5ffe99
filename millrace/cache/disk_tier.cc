#include "millrace/cache/disk_tier.h"

#include <fcntl.h>

#include <algorithm>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/text_encoding.h"

namespace millrace::cache {
namespace {

constexpr ManagedFolder::Format kFolderKind = {
    .purpose = "cache",
    .version = 2,
    .role = {.what = "the cache folder",
             .cure = "choose another one (mount: --cache; job file: data.cache.path; "
                     "Python: disk_cache)"},
    .legacy_file = "lock",
    .name_form = &CacheNameForm};

constexpr std::uint64_t kPage = 4096;  ///< satisfies the alignment that O_DIRECT needs on common disks
/// The entries from which eviction takes the least recently used one: two buckets. A guess: a larger sample costs more
/// reads.
constexpr std::uint64_t kSample = 32;

}  // namespace

DiskTier::DiskTier(Options options, const DiskLayout& layout, std::unique_ptr<DiskIndex> index)
    : options_(std::move(options)),
      layout_(layout),
      shard_bytes_((options_.max_bytes - layout.index_bytes()) / layout.shards),
      index_(std::move(index)) {}

Result<std::unique_ptr<DiskTier>> DiskTier::Open(Options options) {
  const DiskLayout layout = DiskLayout::For(options.max_bytes, options.block_bytes);
  const std::uint64_t least = layout.index_bytes() + layout.shards * layout.slot_bytes;
  if (options.max_bytes < least) {
    return Fail(Code::kInvalidArgument, "a disk cache of {} bytes holds no block; allow at least {}", options.max_bytes,
                least);
  }
  const ManagedFolder folder = MR_TRY(ManagedFolder::Open(options.directory, kFolderKind));
  auto index = MR_TRY(DiskIndex::Open(folder, layout));
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(options), layout, std::move(index)));
  for (std::size_t shard = 0; shard < layout.shards; ++shard) {
    UniqueFd file = MR_TRY(folder.OpenFile(SlotFileName(shard), O_RDWR | O_CREAT));
    auto direct = folder.OpenFile(SlotFileName(shard), O_RDONLY | O_DIRECT);
    tier->shards_.push_back({std::move(file), direct ? *std::move(direct) : UniqueFd()});
  }
  return tier;
}

std::optional<DiskTier::LocatedEntry> DiskTier::Find(const BlockId& id) const {
  const DiskIndex::BucketAddress address = index_->BucketOf(id);
  const DiskIndex::Bucket bucket = index_->Read(address);
  for (std::size_t way = 0; way < bucket.size(); ++way) {
    if (bucket[way].length > 0 && bucket[way].id == id) return LocatedEntry{address, way, bucket[way]};
  }
  return std::nullopt;
}

bool DiskTier::Has(const BlockId& id) const { return Find(id).has_value(); }

std::uint64_t DiskTier::OffsetOf(DiskIndex::BucketAddress address, std::size_t way) const {
  return (address.bucket * DiskLayout::kWays + way) * layout_.slot_bytes;
}

std::int64_t DiskTier::Now() const {
  return std::chrono::nanoseconds(options_.clock->Wall().time_since_epoch()).count();
}

/// Reads whole pages with O_DIRECT straight into the caller's memory, if that is page-aligned. The caller keeps the
/// bytes, so the kernel's page cache need not keep them, too.
Status DiskTier::Read(const LocatedEntry& found, MutableByteSpan into) const {
  const auto& [file, direct] = shards_[found.address.shard];
  const std::uint64_t offset = OffsetOf(found.address, found.way);
  const bool at_page = reinterpret_cast<std::uintptr_t>(into.data()) % kPage == 0;
  const std::size_t whole = direct && at_page ? into.size() / kPage * kPage : 0;
  if (whole > 0) MR_TRY(ReadExactly(direct.get(), into.first(whole), offset, "cache block"));
  return ReadExactly(file.get(), into.subspan(whole), offset + whole, "cache block");
}

DiskTier::Outcome DiskTier::Load(const BlockId& id, MutableByteSpan into) {
  const auto found = Find(id);
  if (!found) return Outcome::kMiss;
  const auto& [address, way, entry] = *found;
  if (entry.length == into.size() && Read(*found, into) && Crc32c(into) == entry.crc) {
    index_->Touch(address, way, Now());
    return Outcome::kHit;
  }
  bool damaged = false;
  Change(address.shard, [&](DiskIndex::ShardHead& head) {
    // Another thread or process may have replaced the entry meanwhile: then the slot has other bytes.
    const auto again = Find(id);
    damaged = again && again->way == way && again->entry == entry;
    if (damaged) (void)Forget(head, *again);
  });
  if (!damaged) return Outcome::kMiss;
  options_.log.Warning("dropped a damaged cache block",
                       {{"folder", options_.directory.string()}, {"block", HexEncode(id)}});
  return Outcome::kCorrupt;
}

void DiskTier::Store(const BlockId& id, ByteSpan bytes) {
  if (bytes.empty() || bytes.size() > layout_.slot_bytes) return;
  Status stored;
  Change(index_->BucketOf(id).shard, [&](DiskIndex::ShardHead& head) { stored = Put(head, id, bytes); });
  if (!stored && !failing_.exchange(true)) {
    options_.log.Warning("cannot write to the disk cache", {{"reason", stored.error()}});
  }
  if (stored) failing_ = false;
}

void DiskTier::Change(std::size_t shard, const std::function<void(DiskIndex::ShardHead&)>& change) {
  index_->Change(shard, [&](DiskIndex::ShardHead& head) {
    if (head.recounted) GiveBackEmptySlots(shard);
    change(head);
  });
}

/// Writes the block's bytes, then its entry. (Removal clears the entry first.) So a slot without an entry takes no disk
/// space, except while it is filled. Syncs nothing: after a power failure, checksums reveal damaged blocks.
Status DiskTier::Put(DiskIndex::ShardHead& head, const BlockId& id, ByteSpan bytes) {
  const DiskIndex::BucketAddress address = index_->BucketOf(id);
  const DiskIndex::Bucket bucket = index_->Read(address);
  std::size_t way = 0;
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    if (bucket[i].length > 0 && bucket[i].id == id) return {};  // already stored
    const bool emptier = (bucket[i].length == 0) > (bucket[way].length == 0);
    const bool older = bucket[way].length > 0 && bucket[i].used < bucket[way].used;
    if (emptier || older) way = i;
  }
  if (bucket[way].length > 0) MR_TRY(Forget(head, {address, way, bucket[way]}));
  const std::uint64_t on_disk = BytesOnDisk(bytes.size());
  MR_TRY(MakeRoom(head, address.shard, on_disk));
  const std::uint64_t offset = OffsetOf(address, way);
  Status written = WriteFully(shards_[address.shard].file.get(), bytes, offset, "cache block");
  if (written) {
    written = index_->Write(
        address, way,
        {.id = id, .length = static_cast<std::uint32_t>(bytes.size()), .crc = Crc32c(bytes), .used = Now()});
  }
  if (!written) {
    GiveBack(address.shard, offset, layout_.slot_bytes);
    return written;
  }
  head.bytes += on_disk;
  return {};
}

Status DiskTier::Forget(DiskIndex::ShardHead& head, const LocatedEntry& found) {
  MR_TRY(index_->Write(found.address, found.way, {}));
  GiveBack(found.address.shard, OffsetOf(found.address, found.way), layout_.slot_bytes);
  head.bytes -= std::min(head.bytes, BytesOnDisk(found.entry.length));
  return {};
}

Status DiskTier::MakeRoom(DiskIndex::ShardHead& head, std::size_t shard, std::uint64_t bytes) {
  while (head.bytes > 0 && head.bytes + bytes > shard_bytes_) {
    std::optional<LocatedEntry> oldest;
    std::uint64_t seen = 0;
    for (std::uint64_t passed = 0; passed < layout_.buckets && seen < kSample; passed += DiskIndex::kBucketsAtOnce) {
      const std::uint64_t count = std::min(DiskIndex::kBucketsAtOnce, layout_.buckets);
      const auto buckets = index_->Read({shard, head.hand}, count);
      for (std::uint64_t i = 0; i < count; ++i) {
        for (std::size_t way = 0; way < DiskLayout::kWays; ++way) {
          const DiskEntry& entry = buckets[i][way];
          if (entry.length == 0) continue;
          ++seen;
          const DiskIndex::BucketAddress address{shard, (head.hand + i) % layout_.buckets};
          if (!oldest || entry.used < oldest->entry.used) oldest = LocatedEntry{address, way, entry};
        }
      }
      head.hand = (head.hand + count) % layout_.buckets;
    }
    if (oldest) MR_TRY(Forget(head, *oldest));
    if (!oldest) head.bytes = 0;  // the entries that were counted are damaged now
  }
  return {};
}

void DiskTier::GiveBack(std::size_t shard, std::uint64_t offset, std::uint64_t length) {
  ::fallocate(shards_[shard].file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(length));
}

void DiskTier::GiveBackEmptySlots(std::size_t shard) {
  std::uint64_t empty_from = 0;
  for (std::uint64_t slot = 0; slot <= layout_.slots();) {
    const bool end = slot == layout_.slots();
    const auto bucket = end ? DiskIndex::Bucket{} : index_->Read({shard, slot / DiskLayout::kWays});
    for (std::size_t way = 0; way < DiskLayout::kWays; ++way, ++slot) {
      if (!end && bucket[way].length == 0) continue;
      if (slot > empty_from) GiveBack(shard, empty_from * layout_.slot_bytes, (slot - empty_from) * layout_.slot_bytes);
      empty_from = slot + 1;
      if (end) return;
    }
  }
}

}  // namespace millrace::cache
