#include "millrace/vfs/rename_journal.h"

#include <gtest/gtest.h>

#include "millrace/object/blocking.h"
#include "millrace/object/memory/memory_store.h"

namespace millrace::vfs {
namespace {

RenameRecord Example() {
  return {.id = "1f",
          .owner = "boot:1:2",
          .from = "a/\xC3\xA9 \"x\"/",
          .to = "b/",
          .replaced_empty = true,
          .committed = true,
          .sources = {{"", "e0", WallTime(std::chrono::seconds(5))}, {"s/f\n", "e1", WallTime()}}};
}

TEST(RenameJournalTest, RecordsComeBackAsTheyWere) {
  const RenameRecord record = Example();
  auto decoded = DecodeRename(EncodeRename(record), "test");
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(*decoded, record);
}

TEST(RenameJournalTest, DamagedOrForeignRecordsAreRefused) {
  const std::string good = EncodeRename(Example());
  for (std::size_t cut = 0; cut < good.size(); ++cut) EXPECT_FALSE(DecodeRename(good.substr(0, cut), "test")) << cut;
  RenameRecord record = Example();
  record.to = record.from + "below/";
  EXPECT_FALSE(DecodeRename(EncodeRename(record), "test")) << "into itself";
  record.to = "";
  EXPECT_FALSE(DecodeRename(EncodeRename(record), "test"));
  std::string later = good;
  later.replace(later.find("rename-1"), 8, "rename-2");
  EXPECT_EQ(DecodeRename(later, "test").error().code(), Code::kUnsupported);
}

class RenameRecoveryTest : public testing::Test {
 protected:
  void Put(const std::string& key, std::string_view content, const std::string& id = "") {
    object::PutOptions options;
    if (!id.empty()) options.metadata[kRenameKey] = id;
    ASSERT_TRUE(object::Put(*store_, key, AsBytes(content), std::move(options)));
  }
  std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    EXPECT_TRUE(object::ListAll(*store_, {}, [&](const object::ListPage& page) {
      for (const auto& info : page.objects) keys.push_back(info.key);
      return true;
    }));
    return keys;
  }
  RenameRecord::Source SourceOf(const std::string& key, const std::string& name) {
    auto page = *object::List(*store_, {.prefix = key});
    return {name, page.objects.front().etag, page.objects.front().modified};
  }
  RecoveredRenames Recover(std::optional<bool> owner_alive = false) {
    auto done = RecoverRenames(*store_, "", "me", [&](std::string_view) { return owner_alive; }, clock_);
    EXPECT_TRUE(done) << done.error().ToString();
    return done.value_or(RecoveredRenames());
  }
  FakeClock clock_;
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore({.limits = {}, .clock = &clock_});
  RenameRecord record_{.id = "id1", .owner = "them", .from = "a/", .to = "b/", .sources = {}};
};

TEST_F(RenameRecoveryTest, WhatWasNotCommittedIsUndone) {
  Put("a/", "");
  Put("a/copied", "x");
  Put("a/edited", "x");
  Put("a/later", "x");
  Put("b/", "", "id1");
  Put("b/copied", "x", "id1");
  Put("b/edited", "y");  // somebody wrote it meanwhile
  Put("b/lost", "only here", "id1");
  Put("b/other", "not of this rename");
  ASSERT_TRUE(RenameJournal::Begin(*store_, "", record_, {}));
  auto done = Recover();
  EXPECT_EQ(done.rolled_back, 1);
  EXPECT_EQ(Keys(),
            (std::vector<std::string>{"a/", "a/copied", "a/edited", "a/later", "b/edited", "b/lost", "b/other"}));
  EXPECT_EQ(Recover().rolled_back, 0);
}

TEST_F(RenameRecoveryTest, WhatWasCommittedIsFinished) {
  for (std::string name : {"", "copied", "rewritten"}) {
    Put("a/" + name, "x");
    Put("b/" + name, "x", "id1");
    record_.sources.push_back(SourceOf("a/" + name, name));
  }
  record_.committed = true;
  ASSERT_TRUE(RenameJournal::Begin(*store_, "", record_, {}));
  clock_.Advance(std::chrono::seconds(1));
  Put("a/rewritten", "x");  // the same bytes, but written again
  Put("a/new", "x");
  auto done = Recover();
  EXPECT_EQ(done.finished, 1);
  EXPECT_EQ(Keys(), (std::vector<std::string>{"a/new", "a/rewritten", "b/", "b/copied", "b/rewritten"}));
}

TEST_F(RenameRecoveryTest, AnEmptyDirectoryThatWasReplacedStays) {
  Put("a/f", "x");
  Put("b/", "", "id1");
  Put("b/f", "x", "id1");
  record_.replaced_empty = true;
  ASSERT_TRUE(RenameJournal::Begin(*store_, "", record_, {}));
  EXPECT_EQ(Recover().rolled_back, 1);
  EXPECT_EQ(Keys(), (std::vector<std::string>{"a/f", "b/"}));
}

TEST_F(RenameRecoveryTest, WhoMayBeAtWorkIsLeftAlone) {
  Put("a/f", "x");
  Put("b/f", "x", "id1");
  auto journal = RenameJournal::Begin(*store_, "", record_, {});
  ASSERT_TRUE(journal);
  EXPECT_EQ(Recover(true).left, 1);
  EXPECT_EQ(Recover(std::nullopt).left, 1) << "on another host, and young";
  clock_.Advance(std::chrono::seconds(50));
  ASSERT_TRUE(journal->Write(record_, {}));
  clock_.Advance(std::chrono::seconds(50));
  EXPECT_EQ(Recover(std::nullopt).left, 1) << "its owner has touched it";
  EXPECT_EQ(Keys().size(), 3u);
  clock_.Advance(std::chrono::seconds(20));
  EXPECT_EQ(Recover(std::nullopt).rolled_back, 1);
  EXPECT_EQ(journal->Write(record_, {}).error().code(), Code::kPreconditionFailed) << "the owner is told, and stops";
  Put(".millrace/renames/odd", "no record");
  EXPECT_EQ(Recover().left, 1);
}

}  // namespace
}  // namespace millrace::vfs
