#include "millrace/vfs/rename/rename_recovery.h"

#include <gtest/gtest.h>

#include <set>

#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/vfs/metadata/attributes.h"
#include "millrace/vfs/rename/rename_cleanup.h"

namespace millrace::vfs {
namespace {

class RenameRecoveryTest : public testing::Test {
 protected:
  std::string Put(const std::string& key, std::string_view content, UserMetadata metadata = {}) {
    auto put = object::Put(*store_, key, AsBytes(content),
                           {.if_match = {}, .content_type = {}, .metadata = std::move(metadata)});
    EXPECT_TRUE(put);
    return put ? put->etag : "";
  }
  /// A source and its copy, with the same bytes.
  void PutBoth(const std::string& name, std::string_view content) {
    const std::string etag = Put("a/" + name, content);
    const auto listed = *object::List(*store_, {.prefix = "a/" + name});
    const std::string copy = Put("b/" + name, content, CopyOf(etag));
    record_.sources.push_back({name, etag, listed.objects.front().modified, copy});
  }
  static UserMetadata CopyOf(const std::string& etag) { return {{kRenameKey, "id1"}, {kRenameSourceKey, etag}}; }
  /// Leaves the record, as a process that dies does.
  void Leave() { ASSERT_TRUE(RenameLease::Prepare(*store_, clock_, {}, record_)->Create({})); }
  std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    EXPECT_TRUE(object::ListAll(*store_, {}, [&](const object::ListPage& page) {
      for (const auto& info : page.objects) keys.push_back(info.key);
      return true;
    }));
    return keys;
  }
  RecoveredRenames Recover(std::optional<bool> owner_alive = false) {
    TreeOptions options;
    options.owner = "me";
    options.owner_alive = [&](std::string_view) { return owner_alive; };
    options.clock = &clock_;
    auto done = RecoverRenames(*store_, {}, options);
    EXPECT_TRUE(done) << done.error().ToString();
    return done.value_or(RecoveredRenames());
  }
  FakeClock clock_;
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore({.limits = {}, .clock = &clock_});
  RenameRecord record_{.id = "id1", .owner = "them", .from = "a/", .to = "b/", .sources = {}};
};

TEST_F(RenameRecoveryTest, WhatWasNotCommittedIsUndone) {
  Put("a/", "");
  PutBoth("copied", "x");
  PutBoth("edited", "x");
  PutBoth("rewritten", "x");
  PutBoth("removed", "only here");
  Put("b/", "", {{kRenameKey, "id1"}});
  Put("b/edited", "y");     // somebody wrote the copy meanwhile
  Put("a/rewritten", "z");  // or the source
  ASSERT_TRUE(object::Delete(*store_, "a/removed"));
  Put("a/later", "x");
  Put("b/other", "not of this rename");
  record_.sources.clear();
  Leave();
  EXPECT_EQ(Recover().rolled_back, 1);
  EXPECT_EQ(Keys(), (std::vector<std::string>{"a/", "a/copied", "a/edited", "a/later", "a/rewritten", "b/", "b/edited",
                                              "b/other", "b/removed", "b/rewritten"}));
  EXPECT_EQ(Recover().rolled_back, 0);
}

TEST_F(RenameRecoveryTest, MarkersGoWithWhatIsBelowThem) {
  PutBoth("s/", "");
  PutBoth("s/f", "x");
  PutBoth("t/f", "x");
  Put("b/", "", {{kRenameKey, "id1"}});
  Put("b/t/", "marked", {{kRenameKey, "id1"}});
  record_.sources.clear();
  Leave();
  EXPECT_EQ(Recover().rolled_back, 1);
  EXPECT_EQ(Keys(), (std::vector<std::string>{"a/s/", "a/s/f", "a/t/f"}));
}

TEST_F(RenameRecoveryTest, WhatWasCommittedIsFinished) {
  for (std::string name : {"", "copied", "rewritten"}) PutBoth(name, "x");
  record_.committed = true;
  Leave();
  clock_.Advance(std::chrono::seconds(1));
  Put("a/rewritten", "x");  // the same bytes, but written again
  Put("a/new", "x");
  EXPECT_EQ(Recover().finished, 1);
  EXPECT_EQ(Keys(), (std::vector<std::string>{"a/new", "a/rewritten", "b/", "b/copied", "b/rewritten"}));
}

TEST_F(RenameRecoveryTest, ASourceStaysUnlessItsCopyIsThere) {
  for (std::string name : {"copied", "attributes", "edited", "longer", "removed", "replaced"}) PutBoth(name, "x");
  for (auto& source : record_.sources) {
    if (source.name == "replaced") source.copy_etag = "";
  }
  record_.committed = true;
  Leave();
  Put("b/attributes", "x", {{"mode", "33188"}, {kRenameKey, "id1"}, {kRenameSourceKey, record_.sources[1].etag}});
  Put("b/edited", "y");
  Put("b/longer", "xx", CopyOf(record_.sources[3].etag));
  ASSERT_TRUE(object::Delete(*store_, "b/removed"));
  Put("b/replaced", "z");  // as long as the copy was
  EXPECT_EQ(Recover().finished, 1);
  EXPECT_EQ(Keys(), (std::vector<std::string>{"a/edited", "a/longer", "a/removed", "a/replaced", "b/attributes",
                                              "b/copied", "b/edited", "b/longer", "b/replaced"}));
}

TEST_F(RenameRecoveryTest, WhoEmptiedTheNewNameFindsAllUnderTheOldOne) {
  for (int i = 0; i < 2500; ++i) PutBoth(fmt::format("f{}", i), fmt::format("{}", i));
  record_.committed = true;
  Leave();
  for (int i = 0; i < 2500; i += 2) ASSERT_TRUE(object::Delete(*store_, fmt::format("b/f{}", i)));
  EXPECT_EQ(Recover().finished, 1);
  std::set<std::string> names;
  for (const std::string& key : Keys()) EXPECT_TRUE(names.insert(key.substr(2)).second) << key << " is there twice";
  EXPECT_EQ(names.size(), 2500u);
}

TEST_F(RenameRecoveryTest, AnEmptyDirectoryThatWasReplacedStays) {
  PutBoth("f", "x");
  Put("b/", "", {{kRenameKey, "id1"}});
  record_.sources.clear();
  record_.replaced_empty = true;
  Leave();
  EXPECT_EQ(Recover().rolled_back, 1);
  EXPECT_EQ(Keys(), (std::vector<std::string>{"a/f", "b/"}));
}

TEST_F(RenameRecoveryTest, WhoMayBeAtWorkIsLeftAlone) {
  PutBoth("f", "x");
  record_.sources.clear();
  auto lease = RenameLease::Prepare(*store_, clock_, {}, record_);
  ASSERT_TRUE(lease->Create({}));
  EXPECT_EQ(Recover(true).left, 1);
  EXPECT_EQ(Recover(std::nullopt).left, 1) << "on another host, and young";
  clock_.Advance(std::chrono::seconds(10));
  ASSERT_TRUE(lease->Renew({}));
  clock_.Advance(std::chrono::seconds(55));
  EXPECT_EQ(Recover(std::nullopt).left, 1) << "its owner has rewritten it";
  EXPECT_EQ(Keys().size(), 3u);
}

TEST_F(RenameRecoveryTest, AnOwnerThatWasTakenForDeadDeletesNothing) {
  PutBoth("f", "x");
  record_.sources.clear();
  auto lease = RenameLease::Prepare(*store_, clock_, {}, record_);
  ASSERT_TRUE(lease->Create({}));
  EXPECT_EQ(Recover(false).rolled_back, 1);
  EXPECT_EQ(lease->Renew({}).error().code(), Code::kBusy);
  PutBoth("f", "x");
  EXPECT_EQ(DeleteCopies(*store_, *lease, {}).error().code(), Code::kBusy) << "the owner is told, and stops";
  EXPECT_EQ(Keys(), (std::vector<std::string>{"a/f", "b/f"}));
}

TEST_F(RenameRecoveryTest, RecordsOfNoRenameAreRefusedAndLeft) {
  Put("a/f", "x");
  Put("outside/f", "x", CopyOf("e"));
  Put(".millrace/renames/odd", "no record");
  record_.from = "a/";
  Leave();
  const auto stored = *object::GetAll(*store_, ".millrace/renames/id1", kMaxRenameRecordBytes);
  ASSERT_TRUE(object::Delete(*store_, ".millrace/renames/id1"));
  Put(".millrace/renames/id2", stored->bytes);  // another one's record
  auto done = Recover();
  EXPECT_EQ(done.left, 2);
  EXPECT_EQ(done.refused.size(), 2u);
  EXPECT_EQ(Keys().size(), 4u);
}

TEST_F(RenameRecoveryTest, ARecordReachesNothingOutsideItsRoot) {
  // Whoever may write below p/ knows the id of an old rename, and has the bytes of its copies.
  const std::string etag = Put("p/a/f", "x");
  Put("b/f", "x", CopyOf(etag));
  for (const char* to : {"../b/", "b/", "/b/"}) {
    RenameRecord record = record_;
    record.from = "p/a/";
    record.to = "p/b/";
    std::string text = EncodeRename(record, {.key = "p/"});
    text.replace(text.find("\"b/\""), 4, fmt::format("\"{}\"", to));
    Put("p/.millrace/renames/id1", text);
    TreeOptions options;
    options.prefix = "p/";
    options.owner_alive = [](std::string_view) { return std::optional(false); };
    options.clock = &clock_;
    ASSERT_TRUE(RecoverAllRenames(*store_, options));
    EXPECT_TRUE(*object::Head(*store_, "b/f")) << to;
  }
}

}  // namespace
}  // namespace millrace::vfs
