#include "millrace/cache/disk_tier.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "millrace/base/random.h"

namespace millrace::cache {
namespace {

namespace fs = std::filesystem;

BlockId Id(int n) { return Sha256(AsBytes(std::to_string(n))); }

std::string Content(int n) {
  std::string text(1000 + n, '\0');
  Random random(static_cast<std::uint64_t>(n));
  for (char& c : text) c = static_cast<char>(random.Next());
  return text;
}

class DiskTierTest : public testing::Test {
 protected:
  void Open(std::uint64_t max_bytes = kMiB) {
    tier_.reset();
    auto opened = DiskTier::Open(folder_.path() / "cache", max_bytes, {});
    ASSERT_TRUE(opened) << opened.error().ToString();
    tier_ = *std::move(opened);
  }
  /// What the tier says of block n, checked: a hit has the right bytes.
  DiskTier::Outcome Load(int n) {
    std::string into(Content(n).size(), '?');
    auto outcome = tier_->Load(Id(n), AsWritableBytes(into));
    EXPECT_TRUE(outcome != DiskTier::Outcome::kHit || into == Content(n));
    return outcome;
  }
  void Store(int n) { tier_->Store(Id(n), AsBytes(Content(n))); }
  fs::path FileOf(int n) {
    std::string name = HexEncode(Id(n));
    return folder_.path() / "cache" / name.substr(0, 2) / name.substr(2);
  }
  std::uint64_t BytesOnDisk() {
    std::uint64_t sum = 0;
    for (const auto& file : fs::recursive_directory_iterator(folder_.path())) {
      if (file.is_regular_file()) sum += file.file_size();
    }
    return sum;
  }

  TempDir folder_ = *TempDir::Create();
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierTest, EveryDamageIsAMissAndRemovesTheFile) {
  Open();
  Random random(3);
  std::string of_another_block = "x";
  for (int i = 0; i < 100; ++i) {
    Store(i);
    ASSERT_EQ(Load(i), DiskTier::Outcome::kHit);
    const std::string whole = *ReadFile(FileOf(i));
    std::string bytes = whole;
    switch (random.Below(4)) {
      case 0:
        bytes[random.Below(bytes.size())] ^= static_cast<char>(1 << random.Below(8));
        break;
      case 1:
        bytes.resize(random.Below(bytes.size()));
        break;
      case 2:
        bytes.replace(random.Below(bytes.size() - 20), 20, std::string(20, '\0'));
        break;
      case 3:
        bytes = of_another_block;
        break;
    }
    of_another_block = whole;
    if (bytes == whole) continue;
    std::ofstream(FileOf(i), std::ios::binary | std::ios::trunc) << bytes;
    EXPECT_EQ(Load(i), DiskTier::Outcome::kCorrupt) << i;
    EXPECT_FALSE(fs::exists(FileOf(i)));
    EXPECT_EQ(Load(i), DiskTier::Outcome::kMiss);
    Store(i);
  }
}

TEST_F(DiskTierTest, StaysBelowItsLimitAndKeepsWhatWasUsedLast) {
  Open(20'000);
  for (int i = 0; i < 100; ++i) {
    Store(i);
    EXPECT_LE(BytesOnDisk(), 20'000u);
    EXPECT_EQ(Load(0), DiskTier::Outcome::kHit) << "used every time, so it stays";
  }
  EXPECT_EQ(Load(1), DiskTier::Outcome::kMiss);
  EXPECT_EQ(Load(99), DiskTier::Outcome::kHit);
  Open(5'000);
  EXPECT_LE(BytesOnDisk(), 5'000u);
}

TEST_F(DiskTierTest, ARestartFindsWholeBlocksAndClearsLeftovers) {
  Open();
  for (int i = 0; i < 10; ++i) Store(i);
  tier_.reset();
  std::ofstream(folder_.path() / "cache" / "tmp" / "7") << "half a block";  // what a killed process leaves
  std::ofstream(folder_.path() / "cache" / "notes.txt") << "not ours";
  Open();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Load(i), DiskTier::Outcome::kHit);
  EXPECT_FALSE(fs::exists(folder_.path() / "cache" / "tmp" / "7"));
  EXPECT_TRUE(fs::exists(folder_.path() / "cache" / "notes.txt"));
}

TEST_F(DiskTierTest, AFolderBelongsToOneAtATimeAndIsPrivate) {
  Open();
  auto second = DiskTier::Open(folder_.path() / "cache", kMiB, {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kBusy);
  struct stat info;
  ASSERT_EQ(stat((folder_.path() / "cache").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(DiskTierTest, AFailingDiskMakesMisses) {
  Open();
  fs::remove_all(folder_.path() / "cache" / "tmp");
  Store(1);
  EXPECT_EQ(Load(1), DiskTier::Outcome::kMiss);
  EXPECT_EQ(tier_->bytes(), 0u);
}

}  // namespace
}  // namespace millrace::cache
