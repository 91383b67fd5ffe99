// Walking a tree asks the store ahead of the walker, once for each directory.
#include "millrace/vfs/listing/walk_ahead.h"

#include <gtest/gtest.h>

#include "millrace/vfs/testing/driver.h"

namespace millrace::vfs {
namespace {

class WalkAheadTest : public testing::Test {
 protected:
  std::uint64_t Lists() const { return d.store->calls(object::Operation::kList); }
  std::uint64_t Heads() const { return d.store->calls(object::Operation::kHead); }
  void Fill(int directories) {
    for (int i = 0; i < directories; ++i) d.Put(fmt::format("t/d{:02}/f", i), "");
  }
  /// Names below the directory `name` of `parent`, looked up and read as a walker does.
  std::vector<std::string> Read(InodeId parent, const std::string& name) {
    auto found = d.tree->Lookup(parent, name);
    EXPECT_TRUE(found && *found) << name;
    if (!found || !*found) return {};
    auto directory = *d.tree->OpenDirectory((*found)->attributes.inode);
    std::vector<std::string> names;
    EXPECT_TRUE(Driver::ReadToEnd(*directory, [&](const DirectoryEntry& e) { names.emplace_back(e.name); }));
    return names;
  }

  Driver d{{.stored_attributes = StoredAttributesPolicy::kNever}};
};

TEST_F(WalkAheadTest, ListingsAreBegunBeforeTheyAreRead) {
  Fill(10);
  EXPECT_EQ(Read(kRootInode, "t").size(), 10u);
  const InodeId top = *d.Walk("t");
  Read(top, "d00");
  const auto before = Lists();
  Read(top, "d01");
  EXPECT_EQ(Lists(), before + 4) << "its own, and three more";
  Read(top, "d02");
  EXPECT_EQ(Lists(), before + 5);
}

TEST_F(WalkAheadTest, AWalkCostsOneListingADirectoryHoweverLongItTakes) {
  Fill(40);
  Read(kRootInode, "t");
  const InodeId top = *d.Walk("t");
  const auto lists = Lists(), heads = Heads();
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(Read(top, fmt::format("d{:02}", i)), std::vector<std::string>{"f"});
    d.clock.Advance(std::chrono::milliseconds(200));
  }
  EXPECT_LE(Lists() - lists, 40u + 4);
  EXPECT_LE(Heads() - heads, 4u) << "a listing begun ahead shows that its directory exists";
}

TEST_F(WalkAheadTest, ChangesMadeHereAreShown) {
  Fill(6);
  Read(kRootInode, "t");
  const InodeId top = *d.Walk("t");
  for (const char* name : {"d00", "d01"}) Read(top, name);  // now the listing of d02 is under way
  ASSERT_TRUE(d.Write("t/d02/new", "x"));
  EXPECT_EQ(Read(top, "d02"), (std::vector<std::string>{"f", "new"}));
  ASSERT_TRUE(d.Unlink("t/d03/f"));
  EXPECT_TRUE(Read(top, "d03").empty());
}

TEST_F(WalkAheadTest, WhatIsOldIsAskedAgain) {
  Fill(6);
  Read(kRootInode, "t");
  const InodeId top = *d.Walk("t");
  for (const char* name : {"d00", "d01"}) Read(top, name);
  d.Put("t/d02/new", "");
  d.PassTtl();
  EXPECT_EQ(Read(top, "d02"), (std::vector<std::string>{"f", "new"}));
}

TEST_F(WalkAheadTest, NothingIsBegunForThoseWhoJump) {
  Fill(10);
  Read(kRootInode, "t");
  const InodeId top = *d.Walk("t");
  const auto before = Lists();
  for (const char* name : {"d05", "d01", "d07", "d03", "d09"}) Read(top, name);
  EXPECT_EQ(Lists(), before + 5);
}

}  // namespace
}  // namespace millrace::vfs
