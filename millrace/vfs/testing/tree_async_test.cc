// Closing without waiting (docs/semantics.md), one test a promise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "millrace/base/files/managed_folder.h"
#include "millrace/vfs/testing/driver.h"
#include "millrace/vfs/tree.h"

namespace millrace::vfs {
namespace {

using testing::ElementsAre;

class AsyncTreeTest : public testing::Test {
 protected:
  std::uint64_t writes() const {
    return d.store->calls(object::Operation::kPut) + d.store->calls(object::Operation::kCreateMultipart);
  }
  Driver d{{.close_async = true}};
};

TEST_F(AsyncTreeTest, AClosedFileIsSeenHereAtOnceAndPublishedLater) {
  ASSERT_TRUE(d.Mkdir("dir"));
  const auto before = writes();
  const std::string content = Noise(3'000);
  ASSERT_TRUE(d.Write("dir/f", content));
  EXPECT_EQ(writes(), before);
  EXPECT_TRUE(d.Read("dir/f") == content);
  EXPECT_EQ(d.Stat("dir/f")->size, content.size());
  EXPECT_THAT(*d.List("dir"), ElementsAre("f"));
  EXPECT_EQ(CodeOf(d.Create("dir/f", true)), Code::kAlreadyExists);
  EXPECT_EQ(CodeOf(d.Rmdir("dir")), Code::kNotEmpty);
  EXPECT_EQ(d.tree->pending().waiting, 1);
  d.clock.AwaitSleepers(1);
  d.clock.Advance(std::chrono::seconds(1));
  while (d.tree->pending().waiting > 0) std::this_thread::yield();
  EXPECT_TRUE(d.Object("dir/f") == content);
  EXPECT_TRUE(d.Read("dir/f") == content);
  EXPECT_TRUE(std::filesystem::is_empty(d.staging.path()) || d.tree->pending().files == 0);
}

TEST_F(AsyncTreeTest, ThePublicationDoesNotMoveTheTimeOfAClosedFile) {
  d.clock.Advance(std::chrono::milliseconds(900));
  ASSERT_TRUE(d.Write("f", "x"));
  const WallTime closed = d.Stat("f")->modified;
  d.clock.AwaitSleepers(1);
  d.clock.Advance(std::chrono::seconds(1));
  while (d.tree->pending().waiting > 0) std::this_thread::yield();
  EXPECT_EQ(d.Object("f"), "x");
  EXPECT_EQ(d.Stat("f")->modified, closed);
}

TEST_F(AsyncTreeTest, FsyncIsHonest) {
  auto file = *d.Create("f");
  ASSERT_TRUE(file->Write(0, AsBytes("one")));
  ASSERT_TRUE(file->Flush());
  EXPECT_EQ(d.Object("f"), "<absent>");
  ASSERT_TRUE(file->Sync());
  EXPECT_EQ(d.Object("f"), "one");
  ASSERT_TRUE(file->Write(3, AsBytes(" two")));
  d.store->Add({.operation = object::Operation::kPut, .times = -1, .fault = {.code = Code::kUnavailable}});
  EXPECT_TRUE(file->Flush());
  EXPECT_EQ(CodeOf(file->Sync()), Code::kUnavailable);
  d.store->Clear();
  ASSERT_TRUE(file->Close());
  ASSERT_TRUE(d.tree->FlushAll());
  EXPECT_EQ(d.Object("f"), "one two");
}

TEST_F(AsyncTreeTest, ATemporaryFileThatGetsItsNameCostsOnePut) {
  d.Put("f", "old");
  const auto before = writes();
  ASSERT_TRUE(d.Write("tmp", "new"));
  ASSERT_TRUE(d.Rename("tmp", "f"));
  EXPECT_EQ(CodeOf(d.Stat("tmp")), Code::kNotFound);
  EXPECT_EQ(d.Read("f"), "new");
  ASSERT_TRUE(d.Write("gone", "x"));
  ASSERT_TRUE(d.Unlink("gone"));
  ASSERT_TRUE(d.tree->FlushAll());
  EXPECT_EQ(d.Object("f"), "new");
  EXPECT_EQ(d.Object("gone"), "<absent>");
  EXPECT_EQ(writes(), before + 1);
  EXPECT_EQ(d.store->calls(object::Operation::kCopy), 0u);
  EXPECT_EQ(d.store->calls(object::Operation::kDelete), 0u);
}

TEST_F(AsyncTreeTest, WhatWasClosedOutlivesTheProcessAndWhatWasNotDoesNot) {
  ASSERT_TRUE(d.Mkdir("dir"));
  d.Put("edited", Noise(30'000, 1));
  ASSERT_TRUE(d.Write("dir/new", "first"));
  ASSERT_TRUE(d.Append("edited", "tail"));
  ASSERT_TRUE(d.Write("renamed-from", "r"));
  ASSERT_TRUE(d.Write("renamed-to", "replaced"));
  ASSERT_TRUE(d.Rename("renamed-from", "renamed-to"));
  auto again = *d.Open("dir/new", {.write = true, .truncate = true});
  ASSERT_TRUE(again->Write(0, AsBytes("secon")));
  auto more = *d.Open("edited", {.write = true});
  ASSERT_TRUE(more->Write(0, AsBytes("half a change")));
  auto in_parts = *d.Create("in parts");
  ASSERT_TRUE(in_parts->Write(0, AsBytes(Noise(20'000))));
  d.tree.reset();
  again.reset(), more.reset(), in_parts.reset();
  EXPECT_EQ(d.Object("renamed-to"), "<absent>") << "nothing has been published";
  d.Remount();
  EXPECT_EQ(d.Object("dir/new"), "first");
  EXPECT_TRUE(d.Object("edited") == Noise(30'000, 1) + "tail");
  EXPECT_EQ(d.Object("renamed-to"), "r");
  EXPECT_EQ(d.Object("renamed-from"), "<absent>");
  EXPECT_EQ(d.Object("in parts"), "<absent>");
  EXPECT_TRUE(object::ListUploads(*d.inner, "")->empty());
  d.tree.reset();
  for (const auto& entry : std::filesystem::directory_iterator(d.staging.path())) {
    if (entry.path().filename() == ManagedFolder::kMarkerName) continue;
    EXPECT_EQ(entry.file_size(), 0u) << entry.path();
  }
}

TEST_F(AsyncTreeTest, WhatIsStagedIsSeenRightAfterTheNextMount) {
  ASSERT_TRUE(d.Mkdir("dir"));
  ASSERT_TRUE(d.Write("dir/f", "staged"));
  d.store->Add({.operation = object::Operation::kPut, .times = -1, .fault = {.code = Code::kUnavailable}});
  d.Remount();
  EXPECT_EQ(d.Read("dir/f"), "staged");
  EXPECT_THAT(*d.List("dir"), ElementsAre("f"));
  const PendingWrites pending = d.tree->pending();
  EXPECT_EQ(pending.failing, 1);
  EXPECT_TRUE(pending.reason.contains("dir/f")) << pending.reason;
  d.store->Clear();
  ASSERT_TRUE(d.Unlink("dir/f"));
  ASSERT_TRUE(d.tree->FlushAll());
  EXPECT_EQ(d.Object("dir/f"), "<absent>");
  EXPECT_EQ(d.tree->pending().waiting, 0);
}

TEST_F(AsyncTreeTest, WhatOthersMadeMeanwhileStays) {
  ASSERT_TRUE((*d.Create("made", true))->Close());
  d.Put("edited", "old");
  ASSERT_TRUE(d.Append("edited", " and ours"));
  d.Put("made", "theirs");
  d.Put("edited", "theirs, too");
  ASSERT_TRUE(d.tree->FlushAll());
  EXPECT_EQ(d.Object("made"), "theirs");
  EXPECT_EQ(d.Object("made.millrace-recovered-1"), "");
  EXPECT_EQ(d.Object("edited"), "theirs, too");
  EXPECT_EQ(d.Object("edited.millrace-recovered-1"), "old and ours");
  d.PassTtl();
  EXPECT_EQ(d.Read("edited"), "theirs, too");
}

TEST_F(AsyncTreeTest, AStoreThatIsGoneForAWhileDelaysOnly) {
  ASSERT_TRUE(d.Write("f", "1"));
  d.store->Add({.operation = {}, .times = -1, .fault = {.code = Code::kUnavailable}});
  d.clock.AwaitSleepers(1);
  d.clock.Advance(std::chrono::seconds(1));
  while (d.tree->pending().failing == 0) std::this_thread::yield();
  EXPECT_EQ(d.Read("f"), "1") << "without the store";
  ASSERT_TRUE(d.Append("f", "2"));
  d.store->Clear();
  d.clock.AwaitSleepers(1);
  d.clock.Advance(std::chrono::minutes(1));
  while (d.tree->pending().waiting > 0) std::this_thread::yield();
  EXPECT_EQ(d.Object("f"), "12");
}

}  // namespace
}  // namespace millrace::vfs
