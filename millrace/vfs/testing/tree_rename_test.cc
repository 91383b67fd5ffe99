// Renames: what moves, what is refused, and that nothing is ever lost, wherever one is cut off.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/vfs/metadata/attributes.h"
#include "millrace/vfs/staging/session_log.h"
#include "millrace/vfs/testing/driver.h"

namespace millrace::vfs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// Stands for a content that is too long to print.
std::string Short(const std::string& content) { return HexEncode(ByteSpan(Sha256(AsBytes(content))).first(6)); }

/// Every object of the bucket but markers.
std::map<std::string, std::string> Objects(Driver& d) {
  std::map<std::string, std::string> objects;
  EXPECT_TRUE(object::ListAll(*d.inner, {}, [&](const object::ListPage& page) {
    for (const auto& info : page.objects) {
      if (info.key.ends_with('/') || info.key == ".millrace/root") continue;
      objects[info.key] = info.size < 100 ? d.Object(info.key) : Short(d.Object(info.key));
    }
    return true;
  }));
  return objects;
}

class TreeRenameTest : public testing::Test {
 protected:
  Driver d;
};

TEST_F(TreeRenameTest, ADirectoryMovesWithAllThatIsBelow) {
  d.Put("a/f", "1");
  d.Put("a/sub/deep/g", Noise(150'000));
  d.Put("a/odd//key", "kept, though no file can have the name");
  d.Put("a/sub/", "");
  ASSERT_TRUE(object::Put(*d.inner, "a/meta", AsBytes("x"), {.content_type = "a/b", .metadata = {{"colour", "red"}}}));
  d.Put("ab", "a neighbour");
  ASSERT_TRUE(d.Mkdir("a/empty"));
  const WallTime before = d.Stat("a/f")->modified;
  d.clock.Advance(std::chrono::hours(1));
  ASSERT_TRUE(d.tree->SetAttributes(*d.Walk("a/sub/deep/g"), {.permissions = 0600}, nullptr));
  ASSERT_TRUE(d.tree->SetAttributes(*d.Walk("a"), {.permissions = 0700}, nullptr));
  ASSERT_TRUE(d.Rename("a", "b"));
  for (bool again : {false, true}) {
    EXPECT_EQ(d.Read("b/f"), "1");
    EXPECT_EQ(d.Stat("b/f")->modified, before);
    EXPECT_TRUE(d.Read("b/sub/deep/g") == Noise(150'000));
    EXPECT_EQ(d.Stat("b/sub/deep/g")->permissions, 0600u);
    EXPECT_EQ(d.Stat("b")->permissions, 0700u);
    EXPECT_THAT(*d.List("b"), UnorderedElementsAre("empty/", "f", "meta", "odd/", "sub/"));
    EXPECT_THAT(*d.List(), UnorderedElementsAre("ab", "b/"));
    EXPECT_EQ(CodeOf(d.Walk("a/f")), Code::kNotFound);
    if (!again) d.Remount();
  }
  EXPECT_THAT(Objects(d), testing::SizeIs(5)) << "and no record of the rename";
  EXPECT_EQ(d.Object("b/odd//key"), "kept, though no file can have the name");
  auto info = *object::Head(*d.inner, "b/meta");
  EXPECT_EQ(info->content_type, "a/b");
  EXPECT_EQ(info->metadata.at("colour"), "red");
  ASSERT_TRUE(d.Rename("b", "ab2")) << "and again";
  EXPECT_EQ(d.Stat("ab2/f")->modified, before);
}

TEST_F(TreeRenameTest, WhatADirectoryMayReplace) {
  d.Put("a/f", "1");
  d.Put("full/g", "2");
  d.Put("file", "3");
  ASSERT_TRUE(d.Mkdir("empty"));
  EXPECT_EQ(CodeOf(d.Rename("a", "full")), Code::kNotEmpty);
  EXPECT_EQ(CodeOf(d.Rename("a", "file")), Code::kNotDirectory);
  EXPECT_EQ(CodeOf(d.Rename("file", "a")), Code::kIsDirectory);
  EXPECT_EQ(CodeOf(d.Rename("a", "a/b")), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(d.Rename("none", "b")), Code::kNotFound);
  EXPECT_EQ(CodeOf(d.Rename("a", "empty", {.no_replace = true})), Code::kAlreadyExists);
  ASSERT_TRUE(d.Rename("a", "a"));
  EXPECT_THAT(Objects(d), testing::SizeIs(3)) << "refusals change nothing";
  ASSERT_TRUE(d.Rename("a", "empty"));
  EXPECT_EQ(d.Read("empty/f"), "1");
  EXPECT_THAT(*d.List(), UnorderedElementsAre("empty/", "full/", "file"));
  ASSERT_TRUE(d.Unlink("empty/f"));
  ASSERT_TRUE(d.Rename("empty", "still")) << "an empty one moves, too";
  d.Remount();
  EXPECT_THAT(*d.List(), UnorderedElementsAre("full/", "file", "still/"));
  std::string deep(200, 'd');
  for (int i = 0; i < 4; ++i) deep += "/" + std::string(200, 'd');
  d.Put("a/" + deep, "x");
  d.PassTtl();
  EXPECT_EQ(CodeOf(d.Rename("a", std::string(100, 'n'))), Code::kNameTooLong);
  EXPECT_EQ(d.Read("a/" + deep), "x");
}

TEST_F(TreeRenameTest, OpenFilesFollowTheirDirectory) {
  d.Put("a/read", Noise(20'000));
  auto reader = *d.Open("a/read");
  auto writer = *d.Create("a/written");
  ASSERT_TRUE(writer->Write(0, AsBytes("one ")));
  ASSERT_TRUE(d.Rename("a", "b"));
  EXPECT_TRUE(Driver::ReadAll(*reader) == Noise(20'000));
  ASSERT_TRUE(d.Rename("b", "c"));
  EXPECT_TRUE(Driver::ReadAll(*reader) == Noise(20'000)) << "twice";
  ASSERT_TRUE(writer->Write(4, AsBytes("two")));
  ASSERT_TRUE(writer->Close());
  EXPECT_EQ(d.Object("c/written"), "one two");
  EXPECT_EQ(Objects(d).size(), 2u);
  d.Put("c/read", "other bytes");
  d.PassTtl();
  ASSERT_TRUE(d.Stat("c/read"));
  EXPECT_EQ(CodeOf(Driver::ReadAll(*reader)), Code::kStale);
}

TEST_F(TreeRenameTest, WhatOthersPutIntoTheNewPlaceStays) {
  for (int i = 0; i < 3; ++i) d.Put(fmt::format("a/{}", i), "ours");
  ASSERT_TRUE(d.Stat("a"));
  // The store answers the check that nothing is there, then somebody is faster than the copy.
  d.store->Add({.operation = object::Operation::kCopy,
                .key_prefix = {},
                .skip = 0,
                .times = 1,
                .fault = {.code = Code::kUnavailable}});
  EXPECT_FALSE(d.Rename("a", "b"));
  d.store->Clear();
  EXPECT_EQ(Objects(d).size(), 3u) << "undone at once";
  EXPECT_EQ(CodeOf(d.Walk("b")), Code::kNotFound);
}

/// Cuts the store off after `calls` calls of a rename; what the next mount finds must be the old tree or the new one.
class CutOffTest : public testing::TestWithParam<bool> {};

TEST_P(CutOffTest, ARenameIsDoneOrUndone) {
  const bool after_effect = GetParam();
  for (int calls = 0;; ++calls) {
    Driver d({.owner = "first", .owner_alive = [](std::string_view) { return std::optional(false); }});
    d.Put("p/a/f", "1");
    d.Put("p/a/s/", "");
    d.Put("p/a/s/g", Noise(100'000));  // in parts
    d.Put("p/a/s/h", "3");
    ASSERT_TRUE(d.Mkdir("p/b"));
    d.clock.Advance(std::chrono::hours(1));
    ASSERT_TRUE(d.Stat("p/a"));
    d.store->Add({.operation = {},
                  .key_prefix = {},
                  .skip = calls,
                  .times = -1,
                  .probability = 1.0,
                  .fault = {.code = Code::kUnavailable, .after_effect = after_effect}});
    const bool said_done = d.Rename("p/a", "p/b").has_value();
    d.store->Clear();
    d.clock.Advance(std::chrono::minutes(2));
    d.Remount();
    const auto names = *d.List("p");
    const bool done = d.Walk("p/b/f").has_value();
    SCOPED_TRACE(fmt::format("cut off after {} calls, {}", calls, done ? "done" : "undone"));
    EXPECT_TRUE(done || !said_done);
    const std::string at = done ? "p/b/" : "p/a/";
    if (done) {
      EXPECT_THAT(names, ElementsAre("b/"));
    } else {
      EXPECT_THAT(names, UnorderedElementsAre("a/", "b/"));
      EXPECT_THAT(*d.List("p/b"), IsEmpty());
    }
    EXPECT_EQ(Objects(d), (std::map<std::string, std::string>{
                              {at + "f", "1"}, {at + "s/g", Short(Noise(100'000))}, {at + "s/h", "3"}}));
    if (said_done || testing::Test::HasFailure()) {
      EXPECT_GT(calls, 10);
      break;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Requests, CutOffTest, testing::Bool());

TEST_F(TreeRenameTest, WritersBelowWaitAndLoseNothing) {
  Driver d({}, Driver::Time::kRuns);
  for (int i = 0; i < 20; ++i) d.Put(fmt::format("a/{}", i), "x");
  const InodeId directory = *d.Walk("a");
  std::atomic<int> made = 0;
  std::atomic<bool> enough = false;
  {
    std::jthread writer([&] {
      for (int i = 0; !enough && i < 3000; ++i) {
        auto created = d.tree->Create(directory, fmt::format("new{}", i), true);
        ASSERT_TRUE(created) << created.error().ToString();
        ASSERT_TRUE(created->file->Write(0, AsBytes("y")));
        ASSERT_TRUE(created->file->Close());
        ++made;
      }
    });
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(d.Rename(i % 2 ? "b" : "a", i % 2 ? "a" : "b"));
    enough = true;
  }
  EXPECT_EQ(d.List("a")->size(), 20u + static_cast<std::size_t>(made));
  EXPECT_EQ(Objects(d).size(), 20u + static_cast<std::size_t>(made));
}

TEST(RestoredTreeTest, ARepeatedRenameTakesAnOpenFileAlong) {
  namespace fs = std::filesystem;
  const TempDir folder = *TempDir::Create();
  const auto log = *SessionLog::Create(folder.path() / "log", "of a test", {});
  TreeOptions options{.staging_directory = folder.path() / "staging"};
  options.session = log.get();
  Driver before(options);
  auto file = *before.Create("f");
  ASSERT_TRUE(file->Write(0, AsBytes("first")));
  ASSERT_TRUE(file->Flush());
  log->PutFile(1, {.inode = before.Stat("f")->inode, .request = 1, .writes = true});
  // Its process dies after it has renamed the object, and before it says so.
  fs::copy(folder.path() / "staging", folder.path() / "staging-2", fs::copy_options::recursive);
  fs::copy_file(folder.path() / "log", folder.path() / "log-2");
  before.Put("g", "first");
  before.Delete("f");

  auto resumed = SessionLog::Resume(folder.path() / "log-2", {});
  ASSERT_TRUE(resumed) << resumed.error().ToString();
  options.staging_directory = folder.path() / "staging-2";
  options.session = resumed->log.get();
  options.restored = &resumed->state;
  Driver after(options, Driver::Time::kStands, before.inner);
  auto again = after.tree->RestoreFile(resumed->state.files.at(1), resumed->state);
  after.tree->EndRestore(resumed->state);
  const Status renamed = after.Rename("f", "g", {.repeated = true});
  ASSERT_TRUE(renamed) << renamed.error().ToString();
  ASSERT_TRUE(again->Write(5, AsBytes(", second")));
  ASSERT_TRUE(again->Flush());
  EXPECT_EQ(after.Object("g"), "first, second");
  EXPECT_EQ(after.Object("f"), "<absent>");
}

}  // namespace
}  // namespace millrace::vfs
