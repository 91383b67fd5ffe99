#include "millrace/cache/disk_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "millrace/base/crc.h"

namespace millrace::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "MRCBLK01";
constexpr std::size_t kHeaderBytes = 64, kCrcAt = 8, kLengthAt = 12, kIdAt = 16, kHeaderCrcAt = 60;
using Header = std::array<std::byte, kHeaderBytes>;

Header MakeHeader(const BlockId& id, ByteSpan bytes) {
  Header header{};
  std::ranges::copy(AsBytes(kMagic), header.begin());
  StoreLittle(&header[kCrcAt], Crc32c(bytes));
  StoreLittle(&header[kLengthAt], static_cast<std::uint32_t>(bytes.size()));
  std::ranges::copy(id, &header[kIdAt]);
  StoreLittle(&header[kHeaderCrcAt], Crc32c(ByteSpan(header).first(kHeaderCrcAt)));
  return header;
}

/// One comparison covers magic, identity, length and both checksums: the header is a function of the block.
bool Verify(const Header& header, const BlockId& id, ByteSpan bytes) { return header == MakeHeader(id, bytes); }

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::Open(fs::path directory, std::uint64_t max_bytes, Logger log) {
  std::error_code error;
  fs::create_directories(directory / "tmp", error);
  if (error) return Fail(ErrnoError(error.value(), fmt::format("cannot use {} as cache folder", directory.string())));
  ::chmod(directory.c_str(), 0700);  // cached bytes are as private as the bucket
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(directory), max_bytes, std::move(log)));
  tier->lock_file_ = MR_TRY(OpenFile(tier->directory_ / "lock", O_RDWR | O_CREAT, 0600));
  if (::flock(tier->lock_file_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Fail(Code::kBusy, "the cache folder {} is in use by another process; give each its own",
                tier->directory_.string());
  }
  MR_TRY(tier->TakeStock());
  tier->EvictBeyondLimit();
  return tier;
}

Status DiskTier::TakeStock() {
  struct Found {
    fs::file_time_type written;
    BlockId id;
    std::uint64_t bytes;
  };
  std::vector<Found> found;
  std::error_code error;
  for (const auto& folder : fs::directory_iterator(directory_, error)) {
    const std::string prefix = folder.path().filename().string();
    for (const auto& file : fs::directory_iterator(folder, error)) {
      auto id = HexDecode(prefix + file.path().filename().string());
      std::error_code stat_error;
      if (prefix == "tmp" || !id || id->size() != sizeof(BlockId)) {
        if (prefix == "tmp") fs::remove(file.path(), stat_error);
        continue;  // what is not ours stays
      }
      Found entry{file.last_write_time(stat_error), {}, file.file_size(stat_error)};
      std::ranges::copy(*id, entry.id.begin());
      if (!stat_error) found.push_back(entry);
    }
  }
  std::ranges::sort(found, {}, &Found::written);
  MutexLock lock(mutex_);
  for (const Found& entry : found) Insert(entry.id, entry.bytes);
  return {};
}

fs::path DiskTier::PathOf(const BlockId& id) const {
  std::string name = HexEncode(id);
  return directory_ / name.substr(0, 2) / name.substr(2);
}

bool DiskTier::Has(const BlockId& id) const {
  MutexLock lock(mutex_);
  return index_.contains(id);
}

DiskTier::Outcome DiskTier::Load(const BlockId& id, MutableByteSpan into) {
  {
    MutexLock lock(mutex_);
    auto found = index_.find(id);
    if (found == index_.end()) return Outcome::kMiss;
    order_.splice(order_.end(), order_, found->second.position);
  }
  const fs::path path = PathOf(id);
  auto file = OpenFile(path, O_RDONLY);
  Header header;
  bool read = file && ReadExactly(file->get(), header, 0, "cache block") &&
              ReadExactly(file->get(), into, kHeaderBytes, "cache block");
  if (read && Verify(header, id, into)) {
    ::futimens(file->get(), nullptr);  // the order of eviction outlives the process by the files' times
    return Outcome::kHit;
  }
  Remove(id);
  if (!file && file.error().code() == Code::kNotFound) return Outcome::kMiss;
  log_.Warning("dropped a damaged cache block", {{"file", path.string()}});
  return Outcome::kCorrupt;
}

void DiskTier::Store(const BlockId& id, ByteSpan bytes) {
  if (kHeaderBytes + bytes.size() > max_bytes_ || Has(id)) return;
  auto written = Write(id, bytes);
  if (!written) {
    if (!failing_.exchange(true)) log_.Warning("cannot write to the disk cache", {{"reason", written.error()}});
    return;
  }
  failing_ = false;
  {
    MutexLock lock(mutex_);
    Insert(id, kHeaderBytes + bytes.size());
  }
  EvictBeyondLimit();
}

Status DiskTier::Write(const BlockId& id, ByteSpan bytes) {
  const fs::path temporary = directory_ / "tmp" / fmt::format("{}", next_temporary_++), path = PathOf(id);
  Header header = MakeHeader(id, bytes);
  auto attempt = [&]() -> Status {
    UniqueFd file = MR_TRY(OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0600));
    MR_TRY(WriteFully(file.get(), header, 0, "cache block"));
    MR_TRY(WriteFully(file.get(), bytes, kHeaderBytes, "cache block"));
    std::error_code error;
    fs::create_directory(path.parent_path(), error);
    // No fsync: after a crash of the machine a file may be torn, which its checksum tells.
    if (::rename(temporary.c_str(), path.c_str()) != 0) return Fail(ErrnoError(errno, path.string()));
    return {};
  };
  Status done = attempt();
  if (!done) ::unlink(temporary.c_str());
  return done;
}

void DiskTier::Insert(const BlockId& id, std::uint64_t bytes) {
  auto [entry, inserted] = index_.try_emplace(id);
  if (!inserted) return;
  entry->second = {bytes, order_.insert(order_.end(), id)};
  bytes_ += bytes;
}

void DiskTier::Remove(const BlockId& id) {
  {
    MutexLock lock(mutex_);
    auto found = index_.find(id);
    if (found == index_.end()) return;
    bytes_ -= found->second.bytes;
    order_.erase(found->second.position);
    index_.erase(found);
  }
  ::unlink(PathOf(id).c_str());
}

void DiskTier::EvictBeyondLimit() {
  while (true) {
    BlockId oldest;
    {
      MutexLock lock(mutex_);
      if (bytes_ <= max_bytes_) return;
      oldest = order_.front();
    }
    Remove(oldest);
  }
}

std::uint64_t DiskTier::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

}  // namespace millrace::cache
