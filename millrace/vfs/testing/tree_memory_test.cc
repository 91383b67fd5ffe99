// What a tree costs for every name that it knows.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "millrace/vfs/testing/driver.h"

namespace millrace::vfs {
namespace {

/// Bytes that are allocated now, with what the allocator adds to each piece.
std::int64_t Allocated() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

class TreeMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (Allocated() == 0) GTEST_SKIP() << "another allocator tells nothing";  // a sanitizer's
  }
  /// Has every name of a directory looked up, as `ls -l` does, and nothing forgotten.
  int LookUpAll(std::string_view directory) {
    auto reader = *d.tree->OpenDirectory(*d.Walk(directory));
    int names = 0;
    std::uint64_t cookie = 0;
    for (int before = -1; names != before;) {
      before = names;
      EXPECT_TRUE(reader->ReadPlus(cookie, [&](const DirectoryEntry& entry) {
        cookie = entry.next_cookie;
        ++names;
        return true;
      }));
    }
    return names;
  }
  Driver d;
};

TEST_F(TreeMemoryTest, AKnownNameTakes200BytesAtMost) {
  constexpr int kNames = 100'000;
  for (int i = 0; i < kNames; ++i) d.Put(fmt::format("data/sample-{:06}.bin", i), "x");
  ASSERT_TRUE(d.Walk("data"));
  const std::int64_t before = Allocated();
  ASSERT_EQ(LookUpAll("data"), kNames);
  const double each = static_cast<double>(Allocated() - before) / kNames;
  RecordProperty("bytes_a_name", fmt::format("{:.1f}", each));
  EXPECT_LE(each, 200);
  EXPECT_EQ(LookUpAll("data"), kNames);
  EXPECT_LE(static_cast<double>(Allocated() - before) / kNames, each + 1) << "a second pass adds nothing";
}

TEST_F(TreeMemoryTest, StoredAttributesDoNotChangeThatMuch) {
  constexpr int kNames = 20'000;
  d.Put("data/", "marks the directory");
  for (int i = 0; i < kNames; ++i) {
    object::PutOptions options{.content_type = {}, .metadata = {{"mode", "33188"}, {"mtime", "1700000000.5"}}};
    ASSERT_TRUE(object::Put(*d.store, fmt::format("data/sample-{:06}.bin", i), AsBytes("x"), std::move(options)));
  }
  ASSERT_TRUE(d.Walk("data"));
  const std::int64_t before = Allocated();
  ASSERT_EQ(LookUpAll("data"), kNames);
  const double each = static_cast<double>(Allocated() - before) / kNames;
  RecordProperty("bytes_a_name", fmt::format("{:.1f}", each));
  EXPECT_LE(each, 330);
}

}  // namespace
}  // namespace millrace::vfs
