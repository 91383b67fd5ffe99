// A disk cache with a corrupted index returns a block's own bytes or a miss, and continues to work.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/digest.h"
#include "millrace/cache/disk_tier.h"

namespace {

using namespace millrace;

constexpr std::uint64_t kLimit = 200 * kKiB, kBlockBytes = 4 * kKiB;
constexpr std::uint64_t kEntriesAt = 8192, kEntryBytes = 64, kCheckAt = 40;
constexpr int kBlocks = 64;

cache::BlockId IdOf(int n) { return Sha256(AsBytes(std::to_string(n))); }

std::string ContentOf(int n) {
  return std::string(1 + static_cast<std::size_t>(n) * 631 % kBlockBytes, static_cast<char>(n));
}

void MustBeRightOrNone(cache::DiskTier& tier, int n) {
  std::string into(ContentOf(n).size(), '?');
  const auto outcome = tier.Load(IdOf(n), AsWritableBytes(into));
  if (outcome == cache::DiskTier::Outcome::kHit && into != ContentOf(n)) std::abort();
}

/// Reads the input from its front. Numbers beyond its end are zero.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const std::byte*>(data), size) {}
  bool empty() const { return rest_.empty(); }
  ByteSpan Take(std::size_t count) {
    const ByteSpan taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::uint64_t Number(std::size_t bytes) {
    std::uint64_t value = 0;
    for (const std::byte byte : Take(bytes)) value = value << 8 | std::to_integer<std::uint64_t>(byte);
    return value;
  }

 private:
  ByteSpan rest_;
};

/// A cache with some blocks, as each input finds it; in memory where there is such a file system.
class Cache {
 public:
  Cache() {
    if (auto in_memory = TempDir::Create("/dev/shm")) folder_ = *std::move(in_memory);
    auto tier = Open();
    for (int n = 0; n < kBlocks; n += 3) tier->Store(IdOf(n), AsBytes(ContentOf(n)));
    index_ = *ReadFile(path() / "index");
    blocks_ = *ReadFile(path() / "blocks-00");
  }
  std::filesystem::path path() const { return folder_.path() / "cache"; }
  std::unique_ptr<cache::DiskTier> Open() const {
    return *cache::DiskTier::Open({.directory = path(), .max_bytes = kLimit, .block_bytes = kBlockBytes, .log = {}});
  }
  void Restore() const {
    for (const auto& [name, content] : {std::pair("index", &index_), std::pair("blocks-00", &blocks_)}) {
      const UniqueFd file = *OpenFile(path() / name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
      if (!WriteFully(file.get(), AsBytes(*content), 0, name)) std::abort();
    }
  }

 private:
  TempDir folder_ = *TempDir::Create();
  std::string index_, blocks_;
};

/// Overwrites some bytes of the index. With `whole`, also corrects the checksum of the entry that was overwritten.
void Patch(int index, std::uint64_t size, std::uint64_t at, ByteSpan bytes, bool whole) {
  at %= size - bytes.size();
  if (!WriteFully(index, bytes, at, "index")) std::abort();
  if (!whole || at < kEntriesAt) return;
  const std::uint64_t entry = kEntriesAt + (at - kEntriesAt) / kEntryBytes * kEntryBytes;
  std::array<std::byte, kCheckAt + 4> head{};
  if (!ReadExactly(index, head, entry, "index")) std::abort();
  StoreLittle(&head[kCheckAt], Crc32c(ByteSpan(head).first(kCheckAt)));
  if (!WriteFully(index, head, entry, "index")) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Cache cache;
  cache.Restore();
  auto tier = cache.Open();
  const UniqueFd index = *OpenFile(cache.path() / "index", O_RDWR);
  const auto bytes = static_cast<std::uint64_t>(::lseek(index.get(), 0, SEEK_END));
  for (Input input(data, size); !input.empty();) {
    const std::uint64_t what = input.Number(1), n = input.Number(1) % kBlocks;
    switch (what % 4) {
      case 0:
        tier->Store(IdOf(static_cast<int>(n)), AsBytes(ContentOf(static_cast<int>(n))));
        break;
      case 1:
        MustBeRightOrNone(*tier, static_cast<int>(n));
        break;
      case 2:
        Patch(index.get(), bytes, input.Number(2), input.Take(n), (what & 4) != 0);
        break;
      default:
        if (what < 32) {
          tier.reset();
          tier = cache.Open();
        }
    }
  }
  for (int n = 0; n < kBlocks; ++n) MustBeRightOrNone(*tier, n);
  return 0;
}
