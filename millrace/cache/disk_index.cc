#include "millrace/cache/disk_index.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/random.h"

namespace millrace::cache {
namespace {

constexpr std::string_view kMagic = "MRCIDX02";
constexpr char kLock[] = "lock", kIndex[] = "index", kNewIndex[] = "index.new";
constexpr std::string_view kSlots = "blocks-";
/// Two processes rarely change one of 64 shards at the same time. The heads of 64 shards fill one page.
constexpr std::uint64_t kMaxShards = 64;
constexpr std::uint64_t kShardBytes = 1 * kGiB;  ///< a smaller cache has one shard; a guess
constexpr std::uint64_t kLeastSlot = 4 * kKiB;   ///< a page: file systems allocate no less
// Offsets and sizes of the format (docs/formats/cache.md): a page with the layout, a page of heads, the entries.
constexpr std::uint64_t kHeadsAt = 4096, kHeadBytes = 64, kEntriesAt = 8192, kEntryBytes = 64;
constexpr std::size_t kLayoutBytes = 40, kLayoutCrcAt = 36, kEpochAt = 16;
constexpr std::size_t kLengthAt = 32, kCrcAt = 36, kCheckAt = 40, kUsedAt = 48;
constexpr std::uint64_t kBucketBytes = DiskLayout::kWays * kEntryBytes;

using LayoutBytes = std::array<std::byte, kLayoutBytes>;
using HeadBytes = std::array<std::byte, 24>;
using EntryBytes = std::array<std::byte, kEntryBytes>;

LayoutBytes Encode(const DiskLayout& layout) {
  LayoutBytes bytes{};
  std::ranges::copy(AsBytes(kMagic), bytes.begin());
  StoreLittle(&bytes[8], layout.slot_bytes);
  StoreLittle(&bytes[16], layout.shards);
  StoreLittle(&bytes[24], layout.buckets);
  StoreLittle(&bytes[kLayoutCrcAt], Crc32c(ByteSpan(bytes).first(kLayoutCrcAt)));
  return bytes;
}

EntryBytes Encode(const DiskEntry& entry) {
  EntryBytes bytes{};
  if (entry.length == 0) return bytes;
  std::ranges::copy(entry.id, bytes.begin());
  StoreLittle(&bytes[kLengthAt], entry.length);
  StoreLittle(&bytes[kCrcAt], entry.crc);
  StoreLittle(&bytes[kCheckAt], Crc32c(ByteSpan(bytes).first(kCheckAt)));
  StoreLittle(&bytes[kUsedAt], entry.used);
  return bytes;
}

HeadBytes Encode(const DiskIndex::ShardHead& head, std::uint64_t epoch) {
  HeadBytes bytes;
  StoreLittle(&bytes[0], head.bytes);
  StoreLittle(&bytes[8], head.hand);
  StoreLittle(&bytes[kEpochAt], epoch);
  return bytes;
}

/// Returns an empty entry also for a block longer than a slot: such a block is never stored.
DiskEntry Decode(const std::byte* bytes, std::uint64_t slot_bytes) {
  DiskEntry entry;
  entry.length = LoadLittle<std::uint32_t>(bytes + kLengthAt);
  if (entry.length == 0 || entry.length > slot_bytes ||
      LoadLittle<std::uint32_t>(bytes + kCheckAt) != Crc32c({bytes, kCheckAt}))
    return {};
  std::memcpy(entry.id.data(), bytes, entry.id.size());
  entry.crc = LoadLittle<std::uint32_t>(bytes + kCrcAt);
  entry.used = LoadLittle<std::int64_t>(bytes + kUsedAt);
  return entry;
}

/// Returns a number that changes with each start of the machine. Writes before a power failure may be incomplete.
std::uint64_t EpochOfThisBoot() {
  auto id = ReadFile("/proc/sys/kernel/random/boot_id", 4 * kKiB);
  const std::uint64_t epoch = id ? Crc64Nvme(AsBytes(*id)) : SystemEntropy();
  return epoch == 0 ? 1 : epoch;
}

bool Holds(const UniqueFd& file, const DiskLayout& layout) {
  LayoutBytes found;
  return ReadExactly(file.get(), found, 0, "cache index") && found == Encode(layout);
}

/// Locks one byte per shard (an open file description lock). It excludes other processes, and other indexes in this
/// process.
bool SetLock(int fd, std::size_t shard, short type) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(shard);
  range.l_len = 1;
  return ::fcntl(fd, F_OFD_SETLK, &range) == 0;
}

/// Makes an empty index. The folder must be locked for this process alone.
Status LayOut(const ManagedFolder& folder, const DiskLayout& layout, std::uint64_t epoch) {
  for (const std::string& name : MR_TRY(folder.Names())) {
    if (name != kLock) MR_TRY(folder.Remove(name));
  }
  const LayoutBytes bytes = Encode(layout);
  const std::string what = (folder.path() / kNewIndex).string();
  const UniqueFd file = MR_TRY(folder.OpenFile(kNewIndex, O_RDWR | O_CREAT | O_EXCL));
  if (::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kLeastSlot) != 0) {
    return Fail(ErrnoError(errno, fmt::format("the file system of {} cannot give back parts of files (fallocate); "
                                              "choose a cache folder on ext4, xfs, btrfs or tmpfs",
                                              folder.path().string())));
  }
  if (::ftruncate(file.get(), static_cast<off_t>(layout.index_bytes())) != 0) {
    return Fail(ErrnoError(errno, fmt::format("cannot make {}", what)));
  }
  MR_TRY(WriteFully(file.get(), bytes, 0, what));
  for (std::size_t shard = 0; shard < layout.shards; ++shard) {
    MR_TRY(WriteFully(file.get(), Encode({}, epoch), kHeadsAt + shard * kHeadBytes, what));
  }
  return folder.Rename(kNewIndex, kIndex);
}

}  // namespace

std::string SlotFileName(std::size_t shard) { return fmt::format("{}{:02}", kSlots, shard); }

NameForm CacheNameForm(std::string_view name) {
  if (name == kLock || name == kIndex || name == kNewIndex) return NameForm::kFile;
  if (!name.starts_with(kSlots)) return NameForm::kForeign;
  name.remove_prefix(kSlots.size());
  const bool number = name.size() == 2 && name.find_first_not_of("0123456789") == std::string_view::npos;
  return number ? NameForm::kFile : NameForm::kForeign;
}

DiskLayout DiskLayout::For(std::uint64_t max_bytes, std::uint64_t block_bytes) {
  const std::uint64_t limit =
      std::bit_ceil(std::max(max_bytes, 1 * kMiB));  // so that processes whose limits differ a little share the layout
  DiskLayout layout;
  layout.slot_bytes = BytesOnDisk(block_bytes);
  layout.shards = std::clamp<std::uint64_t>(limit / kShardBytes, 1, kMaxShards);
  const std::uint64_t slots = limit / layout.shards / std::max(kLeastSlot, layout.slot_bytes / 16);
  layout.buckets = std::max<std::uint64_t>(1, std::bit_ceil(slots / kWays));
  return layout;
}

std::uint64_t DiskLayout::index_bytes() const { return kEntriesAt + shards * slots() * kEntryBytes; }

Result<std::unique_ptr<DiskIndex>> DiskIndex::Open(const ManagedFolder& folder, const DiskLayout& layout) {
  std::unique_ptr<DiskIndex> index(new DiskIndex(layout, EpochOfThisBoot()));
  index->folder_lock_ = MR_TRY(folder.OpenFile(kLock, O_RDWR | O_CREAT));
  const int lock = index->folder_lock_.get();
  if (::flock(lock, LOCK_EX | LOCK_NB) == 0) {
    auto present = folder.OpenFile(kIndex, O_RDWR);
    if (!present || !Holds(*present, layout)) MR_TRY(LayOut(folder, layout, index->epoch_));
  }
  if (::flock(lock, LOCK_SH) != 0) return Fail(ErrnoError(errno, "locking " + (folder.path() / kLock).string()));
  index->file_ = MR_TRY(folder.OpenFile(kIndex, O_RDWR));  // made by this process or another one
  if (!Holds(index->file_, layout)) {
    return Fail(Code::kBusy,
                "the cache folder {} is in use with another size; give all mounts that share it the same "
                "--max-cache-size and --read-part-size, or a folder of their own",
                folder.path().string());
  }
  return index;
}

DiskIndex::BucketAddress DiskIndex::BucketOf(const BlockId& id) const {
  const auto hash = LoadLittle<std::uint64_t>(id.data());
  return {hash % layout_.shards, hash / layout_.shards % layout_.buckets};
}

std::uint64_t DiskIndex::OffsetOf(BucketAddress address, std::size_t way) const {
  return kEntriesAt + (address.shard * layout_.slots() + address.bucket * DiskLayout::kWays + way) * kEntryBytes;
}

DiskIndex::Bucket DiskIndex::Read(BucketAddress address) const {
  std::array<std::byte, kBucketBytes> bytes{};
  Bucket bucket;
  if (!ReadExactly(file_.get(), bytes, OffsetOf(address), "cache index")) return bucket;
  for (std::size_t way = 0; way < bucket.size(); ++way)
    bucket[way] = Decode(&bytes[way * kEntryBytes], layout_.slot_bytes);
  return bucket;
}

std::vector<DiskIndex::Bucket> DiskIndex::Read(BucketAddress first, std::uint64_t count) const {
  std::vector<Bucket> buckets(count);
  Buffer bytes(count * kBucketBytes);
  const std::uint64_t before_end = std::min(count, layout_.buckets - first.bucket);
  const MutableByteSpan front = bytes.span().first(before_end * kBucketBytes);
  const MutableByteSpan back = bytes.span().subspan(front.size());
  if (!ReadExactly(file_.get(), front, OffsetOf(first), "cache index")) return buckets;
  if (!ReadExactly(file_.get(), back, OffsetOf({first.shard, 0}), "cache index")) return buckets;
  for (std::uint64_t i = 0; i < count * DiskLayout::kWays; ++i) {
    buckets[i / DiskLayout::kWays][i % DiskLayout::kWays] = Decode(bytes.data() + i * kEntryBytes, layout_.slot_bytes);
  }
  return buckets;
}

Status DiskIndex::Write(BucketAddress address, std::size_t way, const DiskEntry& entry) {
  return WriteFully(file_.get(), Encode(entry), OffsetOf(address, way), "cache index");
}

void DiskIndex::Touch(BucketAddress address, std::size_t way, std::int64_t used) {
  std::array<std::byte, sizeof used> bytes;
  StoreLittle(bytes.data(), used);
  (void)WriteFully(file_.get(), bytes, OffsetOf(address, way) + kUsedAt,
                   "cache index");  // an error only makes eviction less exact
}

bool DiskIndex::Change(std::size_t shard, const std::function<void(ShardHead&)>& change) {
  MutexLock lock(mutexes_[shard]);
  if (!SetLock(file_.get(), shard, F_WRLCK)) return false;
  HeadBytes bytes{};
  (void)ReadExactly(file_.get(), bytes, kHeadsAt + shard * kHeadBytes, "cache index");
  ShardHead head{.bytes = LoadLittle<std::uint64_t>(&bytes[0]), .hand = LoadLittle<std::uint64_t>(&bytes[8])};
  const bool possible = head.bytes <= layout_.slots() * layout_.slot_bytes;
  if (!possible || LoadLittle<std::uint64_t>(&bytes[kEpochAt]) != epoch_) {
    head.bytes = Recount(shard);
    head.recounted = true;
  }
  head.hand %= layout_.buckets;
  WriteHead(shard, head, 0);
  change(head);
  WriteHead(shard, head, epoch_);
  SetLock(file_.get(), shard, F_UNLCK);
  return true;
}

void DiskIndex::WriteHead(std::size_t shard, const ShardHead& head, std::uint64_t epoch) {
  // If this fails, the next change recounts the shard.
  (void)WriteFully(file_.get(), Encode(head, epoch), kHeadsAt + shard * kHeadBytes, "cache index");
}

std::uint64_t DiskIndex::Recount(std::size_t shard) const {
  std::uint64_t sum = 0;
  for (std::uint64_t bucket = 0; bucket < layout_.buckets; bucket += kBucketsAtOnce) {
    for (const Bucket& some : Read({shard, bucket}, std::min(kBucketsAtOnce, layout_.buckets - bucket))) {
      for (const DiskEntry& entry : some) sum += BytesOnDisk(entry.length);
    }
  }
  return sum;
}

std::uint64_t DiskIndex::bytes() const {
  std::uint64_t sum = 0;
  for (std::size_t shard = 0; shard < layout_.shards; ++shard) {
    std::array<std::byte, 8> bytes{};
    (void)ReadExactly(file_.get(), bytes, kHeadsAt + shard * kHeadBytes, "cache index");
    sum += LoadLittle<std::uint64_t>(bytes.data());
  }
  return sum;
}

}  // namespace millrace::cache
