#include "millrace/cache/disk_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/random.h"

namespace millrace::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBlockBytes = 16 * kKiB;

BlockId Id(int n) { return Sha256(AsBytes(std::to_string(n))); }

std::string Content(int n) {
  std::string text(1 + static_cast<std::uint64_t>(n) * 997 % kBlockBytes, '\0');
  Random random(static_cast<std::uint64_t>(n));
  for (char& c : text) c = static_cast<char>(random.Next());
  return text;
}

/// Loads block n, and checks that a hit has the right bytes.
DiskTier::Outcome Load(DiskTier& tier, int n) {
  std::string into(Content(n).size(), '?');
  auto outcome = tier.Load(Id(n), AsWritableBytes(into));
  EXPECT_TRUE(outcome != DiskTier::Outcome::kHit || into == Content(n));
  return outcome;
}

class DiskTierTest : public testing::Test {
 protected:
  Result<std::unique_ptr<DiskTier>> TryOpen(std::uint64_t max_bytes = kMiB, std::uint64_t block_bytes = kBlockBytes) {
    return DiskTier::Open(
        {.directory = cache_, .max_bytes = max_bytes, .block_bytes = block_bytes, .clock = &clock_, .log = {}});
  }
  std::unique_ptr<DiskTier> Opened(std::uint64_t max_bytes = kMiB, std::uint64_t block_bytes = kBlockBytes) {
    auto opened = TryOpen(max_bytes, block_bytes);
    EXPECT_TRUE(opened) << opened.error().ToString();
    return *std::move(opened);
  }
  void Open(std::uint64_t max_bytes = kMiB, std::uint64_t block_bytes = kBlockBytes) {
    tier_.reset();
    tier_ = Opened(max_bytes, block_bytes);
  }
  DiskTier::Outcome Load(int n) {
    clock_.Advance(std::chrono::milliseconds(1));
    return cache::Load(*tier_, n);
  }
  void Store(int n) {
    clock_.Advance(std::chrono::milliseconds(1));
    tier_->Store(Id(n), AsBytes(Content(n)));
  }
  /// Returns the bytes of files without their holes. (st_blocks would include metadata of the file system.)
  std::uint64_t OnDisk(std::string_view prefix = "") {
    std::uint64_t sum = 0;
    for (const auto& file : fs::directory_iterator(cache_)) {
      const std::string name = file.path().filename();
      if (!name.starts_with(prefix) || name == ManagedFolder::kMarkerName) continue;
      UniqueFd fd = *OpenFile(file.path(), O_RDONLY);
      for (off_t data = 0, hole = 0; (data = ::lseek(fd.get(), hole, SEEK_DATA)) >= 0;) {
        hole = ::lseek(fd.get(), data, SEEK_HOLE);
        sum += static_cast<std::uint64_t>(hole - data + 4095) / 4096 * 4096;
      }
    }
    return sum;
  }
  /// Changes some bytes of a file, somewhere from `from` on.
  void Damage(const fs::path& path, std::uint64_t from, Random& random) {
    UniqueFd file = *OpenFile(path, O_RDWR);
    const std::uint64_t at = from + random.Below(fs::file_size(path) - from);
    std::string bytes(std::min<std::uint64_t>(1 + random.Below(300), fs::file_size(path) - at), '\0');
    if (random.Below(2) == 0) bytes.resize(1);
    ASSERT_TRUE(ReadExactly(file.get(), AsWritableBytes(bytes), at, "file"));
    for (char& c : bytes) c = static_cast<char>(random.Below(3) == 0 ? 0 : c ^ (1 << random.Below(8)));
    ASSERT_TRUE(WriteFully(file.get(), AsBytes(bytes), at, "file"));
  }

  FakeClock clock_;
  TempDir folder_ = *TempDir::Create();
  const fs::path cache_ = folder_.path() / "cache";
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierTest, NoDamageGivesWrongBytes) {
  Open();
  Random random(3);
  int corrupt = 0, lost = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 30; ++i) Store(i);
    if (round % 10 == 0) Open();
    for (int i = 0; i < 4; ++i) Damage(cache_ / "blocks-00", 0, random);
    for (int i = 0; i < 4; ++i) Damage(cache_ / "index", 4096, random);
    for (int i = 0; i < 30; ++i) {
      const auto outcome = Load(i);  // which checks the bytes
      corrupt += outcome == DiskTier::Outcome::kCorrupt;
      lost += outcome == DiskTier::Outcome::kMiss;
      if (outcome != DiskTier::Outcome::kCorrupt) continue;
      ASSERT_EQ(Load(i), DiskTier::Outcome::kMiss) << "it was removed";
    }
  }
  EXPECT_GT(corrupt, 10);
  EXPECT_GT(lost, 10);
}

TEST_F(DiskTierTest, StaysBelowItsLimitAndKeepsWhatIsUsed) {
  constexpr std::uint64_t kLimit = 600'000;
  Open(kLimit);
  for (int i = 0; i < 500; ++i) {
    Store(i);
    ASSERT_LE(OnDisk(), kLimit);
    ASSERT_EQ(Load(0), DiskTier::Outcome::kHit) << "used every time, so it stays; " << i;
  }
  EXPECT_EQ(Load(1), DiskTier::Outcome::kMiss);
  EXPECT_EQ(Load(499), DiskTier::Outcome::kHit);
  EXPECT_GT(tier_->bytes(), kLimit * 8 / 10);
  EXPECT_EQ(OnDisk("blocks"), tier_->bytes()) << "what was evicted gave its room back";
  Open(530'000);  // the same layout
  Store(1000);
  EXPECT_LE(OnDisk(), 530'000u);
}

TEST_F(DiskTierTest, ARestartFindsWhatWasThereAndReadsLittle) {
  constexpr std::uint64_t kLimit = 1024 * kGiB;  // 16 million slots
  Open(kLimit, kMiB);
  for (int i = 0; i < 20; ++i) Store(i);
  tier_.reset();
  ASSERT_TRUE(WriteFileAtomic(cache_ / "notes.txt", AsBytes("not ours")));
  auto bytes_read = [] {
    const std::string io = *ReadFile("/proc/self/io");
    return std::stoull(io.substr(io.find("rchar: ") + 7));
  };
  const auto before = bytes_read();
  Open(kLimit, kMiB);
  EXPECT_LT(bytes_read() - before, 64 * kKiB);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Load(i), DiskTier::Outcome::kHit);
  EXPECT_TRUE(fs::exists(cache_ / "notes.txt"));
  EXPECT_LT(OnDisk(), 2 * kMiB) << "an index takes the room of what is in it";
}

TEST_F(DiskTierTest, AFolderIsPrivateSharedAndOfOneLayout) {
  Open();
  struct stat info;
  ASSERT_EQ(stat(cache_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  auto second = Opened();
  Store(7);
  EXPECT_EQ(cache::Load(*second, 7), DiskTier::Outcome::kHit);
  auto third = TryOpen(100 * kMiB);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code(), Code::kBusy);
  second.reset();
  tier_.reset();
  Open(100 * kMiB);
  EXPECT_EQ(Load(7), DiskTier::Outcome::kMiss);
  EXPECT_EQ(OnDisk("blocks"), 0u) << "what was laid out otherwise has gone";
  EXPECT_EQ(TryOpen(8 * kKiB).error().code(), Code::kInvalidArgument);
}

TEST_F(DiskTierTest, FilesOfOthersSurvive) {
  const std::vector<std::string> theirs = {"index", "index.html", "blocks-00", "blocks-notes.txt"};
  for (const std::string& name : theirs) {
    fs::remove_all(cache_);
    fs::create_directory(cache_);
    ASSERT_TRUE(WriteFileAtomic(cache_ / name, AsBytes("theirs")));
    auto refused = TryOpen();
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_EQ(*ReadFile(cache_ / name), "theirs");
  }
  // In a folder of ours they are not in the way: another layout leaves them alone.
  fs::remove_all(cache_);
  Open();
  ASSERT_TRUE(WriteFileAtomic(cache_ / "index.html", AsBytes("theirs")));
  ASSERT_TRUE(WriteFileAtomic(cache_ / "blocks-notes.txt", AsBytes("theirs")));
  Open(100 * kMiB);
  EXPECT_EQ(*ReadFile(cache_ / "index.html"), "theirs");
  EXPECT_EQ(*ReadFile(cache_ / "blocks-notes.txt"), "theirs");
}

TEST_F(DiskTierTest, ACacheThatAnotherUserMayHaveFilledIsRefused) {
  Open();
  Store(7);
  tier_.reset();
  ASSERT_EQ(::chmod(cache_.c_str(), 0777), 0);
  EXPECT_EQ(TryOpen().error().code(), Code::kPermissionDenied);
  ASSERT_EQ(::chmod(cache_.c_str(), 0755), 0);
  Open();
  EXPECT_EQ(Load(7), DiskTier::Outcome::kHit);
  EXPECT_EQ(fs::status(cache_).permissions(), fs::perms(0755)) << "the user chose it";
  tier_.reset();
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  for (const auto& file : fs::directory_iterator(cache_)) ASSERT_EQ(::chown(file.path().c_str(), 54321, 54321), 0);
  EXPECT_EQ(TryOpen().error().code(), Code::kPermissionDenied) << "the folder is ours, its files are not";
  ASSERT_EQ(::chown(cache_.c_str(), 54321, 54321), 0);
  EXPECT_EQ(TryOpen().error().code(), Code::kPermissionDenied);
}

TEST_F(DiskTierTest, AFolderOfAnEarlierReleaseIsKept) {
  Open();
  Store(7);
  tier_.reset();
  fs::remove(cache_ / ManagedFolder::kMarkerName);
  Open();
  EXPECT_EQ(Load(7), DiskTier::Outcome::kHit);
}

TEST_F(DiskTierTest, AHeadThatIsDamagedIsCountedAgain) {
  constexpr std::uint64_t kLimit = 600'000;
  Open(kLimit);
  for (int i = 0; i < 30; ++i) Store(i);
  std::array<std::byte, 8> most;
  StoreLittle(most.data(), ~std::uint64_t{0} - 4096);
  UniqueFd index = *OpenFile(cache_ / "index", O_RDWR);
  ASSERT_TRUE(WriteFully(index.get(), most, 4096, "the head's bytes"));
  for (int i = 30; i < 500; ++i) {
    Store(i);
    ASSERT_LE(OnDisk(), kLimit) << i;
  }
  EXPECT_EQ(OnDisk("blocks"), tier_->bytes());
}

TEST_F(DiskTierTest, SeveralUsersAtOnceNeverSeeWrongBytes) {
  std::vector<std::unique_ptr<DiskTier>> tiers;
  for (int i = 0; i < 2; ++i) tiers.push_back(Opened(300 * kKiB));
  std::atomic<int> hits = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<std::uint64_t>(t));
      for (int i = 0; i < 1000; ++i) {
        DiskTier& tier = *tiers[static_cast<std::size_t>(t) % tiers.size()];
        const int n = static_cast<int>(random.Below(60));  // twice what fits
        clock_.Advance(std::chrono::microseconds(1));
        if (random.Below(2) == 0) tier.Store(Id(n), AsBytes(Content(n)));
        const auto outcome = cache::Load(tier, n);
        ASSERT_NE(outcome, DiskTier::Outcome::kCorrupt);
        hits += outcome == DiskTier::Outcome::kHit;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits, 1000);
  EXPECT_LE(OnDisk(), 300 * kKiB);
  EXPECT_EQ(OnDisk("blocks"), tiers[0]->bytes());
}

TEST_F(DiskTierTest, AKilledUserLeavesNothingWrongAndNothingLost) {
  Random random(5);
  int found = 0;
  for (int round = 0; round < 12; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto tier = TryOpen(300 * kKiB);
      for (int i = 0; tier; ++i) {
        clock_.Advance(std::chrono::microseconds(1));
        (*tier)->Store(Id(i % 60), AsBytes(Content(i % 60)));
        if (i % 8 == 0 && ::write(ready[1], "x", 1) != 1) break;
      }
      ::_exit(1);
    }
    ::close(ready[1]);
    char x;
    for (std::uint64_t i = 0; i < 2 + random.Below(20); ++i) ASSERT_EQ(::read(ready[0], &x, 1), 1);
    ::kill(child, SIGKILL);  // wherever it is
    ::close(ready[0]);
    ::waitpid(child, nullptr, 0);
    Open(300 * kKiB);
    for (int i = 0; i < 60; ++i) {
      const auto outcome = Load(i);
      ASSERT_NE(outcome, DiskTier::Outcome::kCorrupt);
      found += outcome == DiskTier::Outcome::kHit;
    }
    for (int i = 0; i < 60; ++i) Store(i);
    EXPECT_LE(OnDisk(), 300 * kKiB);
    EXPECT_EQ(OnDisk("blocks"), tier_->bytes());
    tier_.reset();
  }
  EXPECT_GT(found, 100);
}

TEST_F(DiskTierTest, AFailingDiskMakesMisses) {
  Open();
  Store(1);
  struct rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit none = {.rlim_cur = 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  Store(2);
  EXPECT_EQ(Load(1), DiskTier::Outcome::kHit);
  EXPECT_EQ(Load(2), DiskTier::Outcome::kMiss);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  Store(2);
  EXPECT_EQ(Load(2), DiskTier::Outcome::kHit);
}

}  // namespace
}  // namespace millrace::cache
