// What docs/semantics.md promises, one test a promise.
#include "millrace/vfs/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "millrace/vfs/testing/driver.h"

namespace millrace::vfs {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

class TreeTest : public testing::Test {
 protected:
  Driver d;
};

// --- Names ---

TEST_F(TreeTest, PrefixesAndMarkersAreDirectories) {
  d.Put("implicit/deep/file", "x");
  ASSERT_TRUE(d.Mkdir("made"));
  EXPECT_EQ(d.Object("made/"), "");
  EXPECT_THAT(*d.List(), UnorderedElementsAre("implicit/", "made/"));
  EXPECT_THAT(*d.List("implicit"), ElementsAre("deep/"));
  EXPECT_EQ(d.Stat("implicit/deep")->kind, NodeKind::kDirectory);
}

TEST_F(TreeTest, ADirectoryShadowsAFileOfTheSameName) {
  d.Put("a", "file");
  d.Put("a-b", "between them in the order of keys");
  d.Put("a/x", "below");
  EXPECT_THAT(*d.List(), UnorderedElementsAre("a/", "a-b"));
  EXPECT_EQ(d.Stat("a")->kind, NodeKind::kDirectory);
  EXPECT_EQ(d.Read("a/x"), "below");
}

TEST_F(TreeTest, ShadowingHoldsAcrossPagesOfTheListing) {
  d.Put("a", "file");
  for (int i = 0; i < 1500; ++i) d.Put(fmt::format("a-{:04}", i), "");
  d.Put("a/x", "below");
  auto names = *d.List();
  EXPECT_EQ(names.size(), 1501u);
  EXPECT_EQ(std::ranges::count(names, "a/"), 1);
  EXPECT_EQ(std::ranges::count(names, "a"), 0);
}

TEST_F(TreeTest, KeysWithoutAPlaceAreHiddenAndHarmless) {
  for (std::string key : {"a//b", "./c", "../d", "e/../f", "plain", "/root"}) d.Put(key, key);
  d.Put(std::string(256, 'n'), "too long");
  EXPECT_THAT(*d.List(), UnorderedElementsAre("a/", "e/", "plain"));
  EXPECT_THAT(*d.List("a"), ElementsAre());
  EXPECT_THAT(*d.List("e"), ElementsAre());
  EXPECT_EQ(CodeOf(d.Walk("a\xFF")), Code::kNotFound);
  EXPECT_EQ(CodeOf(d.Create("bad\xFF")), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(d.Create(std::string(256, 'x'))), Code::kNameTooLong);
  EXPECT_EQ(CodeOf(d.Walk(std::string(256, 'n'))), Code::kNameTooLong);
  std::string deep;
  for (int i = 0; i < 5; ++i) {
    deep += std::string(200, 'd');
    ASSERT_TRUE(d.Mkdir(deep)) << i;
    deep += "/";
  }
  EXPECT_EQ(CodeOf(d.Create(deep + "0123456789012345678")), Code::kNameTooLong) << "of the key";
}

TEST_F(TreeTest, TheMountsOwnNamesAndMarkersContentsAreHidden) {
  d.Put(".millrace/renames/x", "not a record: left alone");
  d.Put("a/.millrace/y", "of a mount of a/");
  d.Put("a/", "somebody's");
  d.Put("a/\\ \n\t\x01", "all other bytes may be in names");
  EXPECT_THAT(*d.List(), ElementsAre("a/"));
  EXPECT_THAT(*d.List("a"), ElementsAre("\\ \n\t\x01"));
  EXPECT_EQ(CodeOf(d.Walk(".millrace")), Code::kNotFound);
  EXPECT_EQ(CodeOf(d.Create("a/.millrace")), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(d.Mkdir(".millrace")), Code::kInvalidArgument);
  ASSERT_TRUE(d.Unlink("a/\\ \n\t\x01"));
  EXPECT_EQ(CodeOf(d.Rmdir("a")), Code::kNotEmpty) << "what is not shown is not lost";
  d.Remount();
  EXPECT_EQ(d.Object(".millrace/renames/x"), "not a record: left alone");
  EXPECT_EQ(d.Object("a/"), "somebody's");
}

TEST_F(TreeTest, APrefixIsARoot) {
  d.Put("data/train/x", "1");
  d.Put("other", "2");
  EXPECT_FALSE(Tree::Open(*d.store, *d.cache, d.budget, {.prefix = "data"}));
  auto tree = *Tree::Open(*d.store, *d.cache, d.budget, {.prefix = "data/", .read_only = true, .clock = &d.clock});
  EXPECT_TRUE((*tree->Lookup(kRootInode, "train")).has_value());
  EXPECT_FALSE((*tree->Lookup(kRootInode, "other")).has_value());
}

// --- Directories ---

TEST_F(TreeTest, ALargeDirectoryListsOnceEachAndItsCookiesStayValid) {
  constexpr int kFiles = 10'500;
  for (int i = 0; i < kFiles; ++i) d.Put(fmt::format("dir/f{:05}", i), "");
  auto directory = *d.tree->OpenDirectory(*d.Walk("dir"));
  std::map<std::string, std::uint64_t> cookies;
  std::uint64_t cookie = 0;
  for (bool more = true; more;) {  // as a kernel does: a bounded buffer at a time
    int room = 37;
    more = false;
    ASSERT_TRUE(directory->Read(cookie, [&](const DirectoryEntry& entry) {
      if (room-- == 0) return false;
      EXPECT_TRUE(cookies.emplace(entry.name, entry.next_cookie).second) << entry.name << " came twice";
      cookie = entry.next_cookie;
      return more = true;
    }));
  }
  EXPECT_EQ(cookies.size(), static_cast<std::size_t>(kFiles));
  Random random(1);
  for (int i = 0; i < 20; ++i) {  // seekdir, anywhere, with names removed meanwhile elsewhere
    int n = static_cast<int>(random.Below(kFiles - 1));
    std::string next;
    ASSERT_TRUE(directory->Read(cookies.at(fmt::format("f{:05}", n)), [&](const DirectoryEntry& entry) {
      next = entry.name;
      return false;
    }));
    EXPECT_EQ(next, fmt::format("f{:05}", n + 1));
  }
}

TEST_F(TreeTest, NamesRemovedDuringAPassSkipNoOthers) {
  for (int i = 0; i < 3000; ++i) d.Put(fmt::format("f{:04}", i), "");
  auto directory = *d.tree->OpenDirectory(kRootInode);
  std::set<std::string> seen;
  int count = 0;
  std::uint64_t cookie = 0;
  for (bool more = true; more;) {
    more = false;
    int room = 10;
    ASSERT_TRUE(directory->Read(cookie, [&](const DirectoryEntry& entry) {
      if (room-- == 0) return false;
      seen.insert(std::string(entry.name));
      cookie = entry.next_cookie;
      return more = true;
    }));
    d.Delete(fmt::format("f{:04}", count++));  // what `rm -r` does
  }
  for (int i = 1000; i < 3000; ++i) EXPECT_TRUE(seen.contains(fmt::format("f{:04}", i)));
}

TEST_F(TreeTest, RmdirRefusesWhatIsNotEmptyOrNoDirectory) {
  ASSERT_TRUE(d.Mkdir("d"));
  ASSERT_TRUE(d.Write("d/f", "x"));
  EXPECT_EQ(CodeOf(d.Rmdir("d")), Code::kNotEmpty);
  EXPECT_EQ(CodeOf(d.Rmdir("d/f")), Code::kNotDirectory);
  EXPECT_EQ(CodeOf(d.Rmdir("none")), Code::kNotFound);
  ASSERT_TRUE(d.Unlink("d/f"));
  auto pending = *d.Create("d/new");
  EXPECT_EQ(CodeOf(d.Rmdir("d")), Code::kNotEmpty) << "a file not published yet is in it";
  ASSERT_TRUE(d.Unlink("d/new"));
  EXPECT_TRUE(d.Rmdir("d"));
  EXPECT_EQ(d.Object("d/"), "<absent>");
}

TEST_F(TreeTest, ADirectoryStaysWhenItsLastFileGoes) {
  d.Put("implicit/f", "x");
  InodeId directory = *d.Walk("implicit");
  ASSERT_TRUE(d.Unlink("implicit/f"));
  d.PassTtl();
  EXPECT_EQ(*d.Walk("implicit"), directory);
  EXPECT_THAT(*d.List(), ElementsAre("implicit/"));
  EXPECT_TRUE(d.Rmdir("implicit"));
  EXPECT_EQ(CodeOf(d.Walk("implicit")), Code::kNotFound);
}

// --- Metadata ---

TEST_F(TreeTest, AnswersAreUsedForTheirTimeToLive) {
  d.Put("f", "one");
  EXPECT_EQ(d.Stat("f")->size, 3u);
  EXPECT_EQ(CodeOf(d.Walk("late")), Code::kNotFound);
  d.Put("f", "three");
  d.Put("late", "x");
  EXPECT_EQ(d.Stat("f")->size, 3u);
  EXPECT_EQ(CodeOf(d.Walk("late")), Code::kNotFound);
  d.PassTtl();
  EXPECT_EQ(d.Stat("f")->size, 5u);
  EXPECT_TRUE(d.Walk("late"));
}

TEST_F(TreeTest, OwnChangesShowAtOnce) {
  EXPECT_EQ(CodeOf(d.Walk("f")), Code::kNotFound);
  ASSERT_TRUE(d.Write("f", "one"));
  EXPECT_EQ(d.Stat("f")->size, 3u);
  ASSERT_TRUE(d.Unlink("f"));
  EXPECT_EQ(CodeOf(d.Walk("f")), Code::kNotFound);
}

TEST_F(TreeTest, AFewQuestionsAboutADirectoryAreAnsweredByItsListing) {
  for (int i = 0; i < 900; ++i) d.Put(fmt::format("d/f{:03}", i), "x");
  for (int i = 0; i < 900; ++i) ASSERT_TRUE(d.Walk(fmt::format("d/f{:03}", i)));
  EXPECT_LE(d.store->calls(object::Operation::kHead), 5u);
  EXPECT_LE(d.store->calls(object::Operation::kList), 8u);
  EXPECT_EQ(CodeOf(d.Walk("d/none")), Code::kNotFound) << "and absence by its completeness";
  EXPECT_LE(d.store->calls(object::Operation::kHead), 5u);
}

TEST_F(TreeTest, ADirectoryTooLongToListWholeIsListedWhereItIsRead) {
  for (int i = 0; i < 6000; ++i) d.Put(fmt::format("d/f{:04}", i), "x");
  for (int i = 1000; i < 5900; ++i) ASSERT_TRUE(d.Walk(fmt::format("d/f{:04}", i)));
  EXPECT_LE(d.store->calls(object::Operation::kHead) + d.store->calls(object::Operation::kList), 40u);
}

TEST_F(TreeTest, InodesLiveWhileTheyAreHeld) {
  d.Put("f", "x");
  InodeId id = *d.Walk("f");
  EXPECT_EQ(*d.Walk("f"), id);
  d.tree->Forget(id, 1);
  EXPECT_TRUE(d.tree->GetAttributes(id));
  d.tree->Forget(id, 1);
  EXPECT_EQ(CodeOf(d.tree->GetAttributes(id)), Code::kStale);
  EXPECT_NE(*d.Walk("f"), id);
}

// --- Reading ---

TEST_F(TreeTest, ASmallFileCostsOneGet) {
  d.Put("f", "content");
  d.Walk("f");
  auto before = d.store->calls(object::Operation::kHead);
  EXPECT_EQ(d.Read("f"), "content");
  EXPECT_EQ(d.store->calls(object::Operation::kGet), 1u);
  EXPECT_EQ(d.store->calls(object::Operation::kHead), before);
}

TEST_F(TreeTest, AnOpenSeesTheLatestVersionAtOnce) {
  for (std::size_t size : {10u, 100'000u, 2'000'000u}) {
    d.Put("f", Noise(size, 1));
    EXPECT_EQ(d.Read("f"), Noise(size, 1));
    d.Put("f", Noise(size + 1, 2));  // no time passes
    EXPECT_EQ(d.Read("f"), Noise(size + 1, 2));
    d.Delete("f");
    EXPECT_EQ(CodeOf(d.Read("f")), Code::kStale) << "which makes the kernel look the name up again";
    d.PassTtl();
  }
}

TEST_F(TreeTest, AnOpenFileNeverMixesVersions) {
  const std::string old = Noise(300'000, 1);
  d.Put("f", old);
  auto file = *d.Open("f");
  std::string piece(1000, '?');
  ASSERT_TRUE(file->Read(0, AsWritableBytes(piece)));
  d.Put("f", Noise(300'000, 2));
  for (std::uint64_t at = 0; at < old.size(); at += 50'000) {
    auto read = file->Read(at, AsWritableBytes(piece));
    if (read) {
      EXPECT_EQ(piece, old.substr(at, 1000));
    } else {
      EXPECT_EQ(read.error().code(), Code::kStale);
    }
  }
  auto again = *d.Open("f");
  EXPECT_TRUE(again->found_change());
  EXPECT_FALSE(again->may_keep_pages());
  EXPECT_EQ(CodeOf(file->Read(0, AsWritableBytes(piece))), Code::kStale) << "once the new version is known here";
  EXPECT_EQ(Driver::ReadAll(*again), Noise(300'000, 2));
}

TEST_F(TreeTest, PagesAreKeptWhileTheVersionStays) {
  d.Put("f", "x");
  EXPECT_FALSE((*d.Open("f"))->may_keep_pages());
  EXPECT_TRUE((*d.Open("f"))->may_keep_pages());
  d.Put("f", "y");
  EXPECT_FALSE((*d.Open("f"))->may_keep_pages());
  EXPECT_TRUE((*d.Open("f"))->may_keep_pages());
}

TEST_F(TreeTest, ReadersThatJumpFetchOnlyWhatTheyRead) {
  d.Put("f", Noise(1'500'000));
  auto file = *d.Open("f");
  std::string piece(100, '?');
  for (int i = 70; i > 20; --i) {
    ASSERT_TRUE(file->Read(i * 20'000, AsWritableBytes(piece)));
    EXPECT_EQ(piece, Noise(1'500'000).substr(i * 20'000, 100));
  }
  EXPECT_EQ(d.cache->stats().bytes_fetched, 5000u);
}

TEST_F(TreeTest, AnUnlinkedFileCanBeReadAsFarAsTheStoreLets) {
  d.Put("f", "still here");
  auto file = *d.Open("f");
  ASSERT_TRUE(d.Unlink("f"));
  EXPECT_EQ(Driver::ReadAll(*file), "still here") << "the open fetched it";
  EXPECT_FALSE(d.tree->GetAttributes(file->inode())->attributes.linked);
  d.Put("g", Noise(1'500'000));
  auto large = *d.Open("g");
  ASSERT_TRUE(d.Unlink("g"));
  EXPECT_EQ(d.Object("g"), "<absent>");
  EXPECT_EQ(Driver::ReadAll(*large), Noise(1'500'000)) << "the staging area keeps it";
}

// --- Writing ---

TEST_F(TreeTest, AFileAppearsAsAWholeWhenItIsFlushed) {
  const std::string content = Noise(50'000);
  auto file = *d.Create("f");
  for (std::size_t at = 0; at < content.size(); at += 5000) {
    ASSERT_TRUE(file->Write(at, AsBytes(content.substr(at, 5000))));
    EXPECT_EQ(d.Object("f"), "<absent>");
    EXPECT_EQ(d.Stat("f")->size, at + 5000) << "here it grows";
  }
  EXPECT_THAT(*d.List(), ElementsAre("f"));
  EXPECT_EQ(d.Read("f"), content) << "and can be read";
  ASSERT_TRUE(file->Flush());
  EXPECT_EQ(d.Object("f"), content);
  EXPECT_TRUE(file->Close());
}

TEST_F(TreeTest, FsyncPublishesAndWritingGoesOn) {
  const std::string content = Noise(60'000);
  auto file = *d.Create("f");
  for (std::size_t at = 0; at < content.size(); at += 6000) {
    ASSERT_TRUE(file->Write(at, AsBytes(content.substr(at, 6000))));
    ASSERT_TRUE(file->Sync());
    EXPECT_EQ(d.Object("f"), content.substr(0, at + 6000));
  }
  EXPECT_TRUE(file->Close());
  EXPECT_EQ(d.Read("f"), content);
}

TEST_F(TreeTest, WritesGoAnywhere) {
  auto file = *d.Create("f");
  ASSERT_TRUE(file->Write(0, AsBytes("abc")));
  ASSERT_TRUE(file->Write(1, AsBytes("x")));
  ASSERT_TRUE(file->Write(5, AsBytes("y")));
  EXPECT_EQ(Driver::ReadAll(*file), std::string("axc\0\0y", 6)) << "before it is published";
  ASSERT_TRUE(file->Zero(0, 2));
  ASSERT_TRUE(file->Truncate(7));
  ASSERT_TRUE(file->Close());
  EXPECT_EQ(d.Object("f"), std::string("\0\0c\0\0y\0", 7));
}

TEST_F(TreeTest, AFewChangedBytesOfALargeObjectCostAFewParts) {
  std::string content = Noise(3'000'000);
  d.Put("f", content);
  auto file = *d.Open("f", {.write = true});
  ASSERT_TRUE(file->Write(1'500'000, AsBytes("changed")));
  content.replace(1'500'000, 7, "changed");
  ASSERT_TRUE(file->Close());
  EXPECT_EQ(d.Object("f"), content);
  EXPECT_EQ(d.store->calls(object::Operation::kUploadPart), 1u);
  EXPECT_EQ(d.store->calls(object::Operation::kCopyPart), 2u) << "what is before it, and what is behind it";
  EXPECT_LE(d.cache->stats().bytes_fetched, 4 * kKiB) << "the rest of the part";
}

TEST_F(TreeTest, EmptyFilesArePublishedAtTheLastClose) {
  auto file = *d.Create("f");
  ASSERT_TRUE(file->Flush());
  EXPECT_EQ(d.Object("f"), "<absent>");
  ASSERT_TRUE(file->Close());
  EXPECT_EQ(d.Object("f"), "");
  d.Put("g", "old");
  ASSERT_TRUE((*d.Open("g", {.write = true, .truncate = true}))->Close());
  EXPECT_EQ(d.Object("g"), "");
}

TEST_F(TreeTest, AppendsKeepWhatWasThere) {
  d.Put("f", Noise(30'000));
  ASSERT_TRUE(d.Append("f", "more"));
  EXPECT_EQ(d.Object("f"), Noise(30'000) + "more");
  auto file = *d.Open("f", {.write = true});
  ASSERT_TRUE(file->Write(30'004, AsBytes("!")));
  d.Put("f", "somebody else's");
  EXPECT_EQ(CodeOf(file->Flush()), Code::kStale);
  EXPECT_EQ(d.Object("f"), "somebody else's");
}

TEST_F(TreeTest, WhatCannotBePublishedHereIsKeptWithoutItsUpload) {
  auto file = *d.Create("f", /*exclusive=*/true);
  ASSERT_TRUE(file->Write(0, AsBytes(Noise(20'000))));
  d.Put("f", "somebody else's");
  EXPECT_EQ(CodeOf(file->Flush()), Code::kAlreadyExists);
  EXPECT_GT(d.store->calls(object::Operation::kUploadPart), 0u);
  EXPECT_TRUE(object::ListUploads(*d.inner, "")->empty()) << "whoever takes it over sends it anew";
  EXPECT_EQ(CodeOf(file->Close()), Code::kAlreadyExists);
  file.reset();
  EXPECT_TRUE(object::ListUploads(*d.inner, "")->empty());
  d.Remount();
  EXPECT_EQ(d.Object("f"), "somebody else's");
  EXPECT_TRUE(d.Object("f.millrace-recovered-1") == Noise(20'000));
}

TEST_F(TreeTest, SizesCanBeSetToNothingToTheSameAndShorter) {
  d.Put("f", "0123456789");
  InodeId id = *d.Walk("f");
  EXPECT_EQ(d.tree->SetAttributes(id, {.size = 10}, nullptr)->attributes.size, 10u);
  EXPECT_EQ(d.tree->SetAttributes(id, {.size = 4}, nullptr)->attributes.size, 4u);
  EXPECT_EQ(d.Object("f"), "0123");
  EXPECT_EQ(d.tree->SetAttributes(id, {.size = 6}, nullptr)->attributes.size, 6u);
  EXPECT_EQ(d.Object("f"), std::string("0123\0\0", 6));
  EXPECT_EQ(d.tree->SetAttributes(id, {.size = 0}, nullptr)->attributes.size, 0u);
  EXPECT_EQ(d.Object("f"), "");
}

TEST(TreeRaceTest, WhatComesWhileAnotherPublishesIsPublishedToo) {
  Driver d({}, Driver::Time::kTicks);
  for (int i = 0; i < 300; ++i) {
    d.Put("f", std::string(100, 'x'));
    auto file = *d.Open("f", {.write = true});
    ASSERT_TRUE(file->Truncate(90));
    const InodeId id = file->inode();
    std::jthread closing([&] { EXPECT_TRUE(file->Close()); });
    auto set = d.tree->SetAttributes(id, {.size = 50}, nullptr);
    EXPECT_TRUE(set) << set.error().ToString();
    closing.join();
    ASSERT_EQ(d.Object("f"), std::string(50, 'x')) << "the one that was closing had to publish for both";
  }
}

TEST_F(TreeTest, FilesOfOneNameShareWhatIsWritten) {
  d.Put("f", "x");
  auto one = *d.Open("f", {.write = true}), two = *d.Open("f", {.write = true}), reader = *d.Open("f");
  ASSERT_TRUE(one->Write(1, AsBytes("y")));
  ASSERT_TRUE(two->Write(2, AsBytes("z")));
  EXPECT_EQ(Driver::ReadAll(*reader), "xyz");
  EXPECT_EQ(d.Stat("f")->size, 3u);
  ASSERT_TRUE(one->Flush());
  EXPECT_EQ(d.Object("f"), "xyz");
  ASSERT_TRUE(one->Close());
  ASSERT_TRUE(two->Write(3, AsBytes("!")));
  ASSERT_TRUE(two->Close());
  EXPECT_EQ(d.Object("f"), "xyz!");
  EXPECT_EQ(Driver::ReadAll(*reader), "xyz!") << "the reader's file was changed here, not replaced elsewhere";
  d.Put("f", "replaced");
  EXPECT_EQ(d.Read("f"), "replaced");
  std::string piece(10, '?');
  EXPECT_EQ(CodeOf(reader->Read(0, AsWritableBytes(piece))), Code::kStale);
}

TEST_F(TreeTest, ExclusiveCreationLosesToSomebodyElse) {
  auto file = *d.Create("f", true);
  d.Put("f", "theirs");
  ASSERT_TRUE(file->Write(0, AsBytes("mine")));
  EXPECT_EQ(CodeOf(file->Flush()), Code::kAlreadyExists);
  EXPECT_EQ(d.Object("f"), "theirs");
}

TEST_F(TreeTest, AnUnlinkedWriterPublishesNothing) {
  auto file = *d.Create("f");
  ASSERT_TRUE(file->Write(0, AsBytes("secret")));
  ASSERT_TRUE(d.Unlink("f"));
  EXPECT_TRUE(file->Write(6, AsBytes("more")));
  EXPECT_EQ(Driver::ReadAll(*file), "secretmore");
  EXPECT_TRUE(file->Close());
  EXPECT_EQ(d.Object("f"), "<absent>");
}

TEST_F(TreeTest, AFileGivenUpWithoutCloseLeavesNothing) {
  auto file = *d.Create("f");
  ASSERT_TRUE(file->Write(0, AsBytes(Noise(20'000))));
  file.reset();
  EXPECT_EQ(d.Object("f"), "<absent>");
  EXPECT_EQ(CodeOf(d.Walk("f")), Code::kNotFound);
  EXPECT_TRUE(object::ListUploads(*d.inner, "")->empty());
}

TEST_F(TreeTest, AFailedUploadReachesFlushAndTheOldVersionStays) {
  d.Put("f", "old");
  for (auto operation :
       {object::Operation::kPut, object::Operation::kUploadPart, object::Operation::kCompleteMultipart}) {
    d.store->Add({.operation = operation, .times = -1, .fault = {.code = Code::kUnavailable}});
    auto file = *d.Open("f", {.write = true, .truncate = true});
    const std::string content = Noise(operation == object::Operation::kPut ? 100 : 50'000);
    Status written;
    for (std::size_t at = 0; at < content.size() && written; at += 5000) {
      written = file->Write(at, AsBytes(content.substr(at, 5000)));
    }
    Status flushed = file->Flush();
    EXPECT_EQ(CodeOf(flushed), Code::kUnavailable) << object::OperationName(operation);
    EXPECT_EQ(ToErrno(CodeOf(flushed)), EIO);
    EXPECT_FALSE(file->Close());
    d.store->Clear();
    EXPECT_EQ(d.Object("f"), "old");
    EXPECT_TRUE(d.Read("f") == content) << "here it is seen, as it is staged";
    EXPECT_EQ(d.tree->pending().waiting, 1);
    ASSERT_TRUE(d.tree->FlushAll());
    EXPECT_TRUE(d.Object("f") == content);
    d.Put("f", "old");
    d.PassTtl();
  }
  EXPECT_TRUE(object::ListUploads(*d.inner, "")->empty());
  EXPECT_EQ(d.budget.used(), d.cache->capacity());
}

TEST_F(TreeTest, WhatCouldNotBePublishedIsKeptForTheNextMount) {
  const std::string old = Noise(30'000, 1);
  d.Put("edited", old);
  d.Put("replaced", old);
  for (std::string key : {"new", "edited", "replaced"}) {
    auto file = key == "new" ? *d.Create(key) : *d.Open(key, {.write = true});
    ASSERT_TRUE(file->Write(100, AsBytes("written")));
    d.store->Add({.times = -1, .fault = {.code = Code::kUnavailable}});
    EXPECT_FALSE(file->Flush());
    EXPECT_FALSE(file->Close());
    d.store->Clear();
  }
  d.Put("replaced", "theirs");
  d.Remount();
  std::string edited = old;
  edited.replace(100, 7, "written");
  EXPECT_EQ(d.Object("new"), std::string(100, '\0') + "written");
  EXPECT_EQ(d.Object("edited"), edited);
  EXPECT_EQ(d.Object("replaced"), "theirs") << "and what cannot be told from it stays staged";
  EXPECT_TRUE(object::ListUploads(*d.inner, "")->empty());
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(d.staging.path())) {
    files += entry.path().extension() == ".record";
  }
  EXPECT_EQ(files, 1u);
}

TEST_F(TreeTest, ShutdownPublishesWhatIsOpen) {
  auto file = *d.Create("f");
  ASSERT_TRUE(file->Write(0, AsBytes("so far")));
  EXPECT_EQ(d.tree->pending().files, 1);
  ASSERT_TRUE(d.tree->FlushAll());
  EXPECT_EQ(d.Object("f"), "so far");
  EXPECT_EQ(d.tree->pending().files, 0);
}

// --- Renaming ---

TEST_F(TreeTest, RenameReplacesAndOpenFilesFollow) {
  d.Put("a", Noise(1'200'000, 1));
  d.Put("b", "replaced");
  auto source = *d.Open("a");
  auto target = *d.Open("b");
  ASSERT_TRUE(d.Rename("a", "b"));
  EXPECT_EQ(d.Object("a"), "<absent>");
  EXPECT_EQ(d.Object("b"), Noise(1'200'000, 1)) << "beyond what one Copy moves: in parts";
  EXPECT_EQ(Driver::ReadAll(*source), Noise(1'200'000, 1));
  EXPECT_EQ(Driver::ReadAll(*target), "replaced");
  EXPECT_EQ(CodeOf(d.Walk("a")), Code::kNotFound);
}

TEST_F(TreeTest, RenameWithoutReplacing) {
  d.Put("a", "1");
  d.Put("b", "2");
  EXPECT_EQ(CodeOf(d.Rename("a", "b", {.no_replace = true})), Code::kAlreadyExists);
  EXPECT_EQ(CodeOf(d.Walk("c")), Code::kNotFound);
  d.Put("c", "made meanwhile by somebody else");
  EXPECT_EQ(CodeOf(d.Rename("a", "c", {.no_replace = true})), Code::kAlreadyExists);
  EXPECT_EQ(d.Object("a"), "1");
  EXPECT_TRUE(d.Rename("a", "d", {.no_replace = true}));
}

TEST_F(TreeTest, AFileBeingWrittenCanBeRenamed) {
  auto file = *d.Create("tmp");
  ASSERT_TRUE(file->Write(0, AsBytes("one ")));
  ASSERT_TRUE(d.Rename("tmp", "final"));
  EXPECT_EQ(d.Object("final"), "one ");
  ASSERT_TRUE(file->Write(4, AsBytes("two")));
  ASSERT_TRUE(file->Close());
  EXPECT_EQ(d.Object("final"), "one two");
  EXPECT_EQ(d.Object("tmp"), "<absent>");
}

TEST_F(TreeTest, AFailedRenameLeavesTheSource) {
  d.Put("a", "1");
  d.store->Add({.operation = object::Operation::kCopy, .fault = {.code = Code::kUnavailable}});
  EXPECT_EQ(CodeOf(d.Rename("a", "b")), Code::kUnavailable);
  EXPECT_EQ(d.Read("a"), "1");
  EXPECT_EQ(d.Object("b"), "<absent>");
}

// --- Refusals ---

TEST_F(TreeTest, AReadOnlyTreeChangesNothing) {
  d.Put("f", "x");
  d.Put("d/g", "x");
  d.Remount(/*read_only=*/true);
  EXPECT_EQ(CodeOf(d.Create("new")), Code::kReadOnly);
  EXPECT_EQ(CodeOf(d.Open("f", {.write = true})), Code::kReadOnly);
  EXPECT_EQ(CodeOf(d.Unlink("f")), Code::kReadOnly);
  EXPECT_EQ(CodeOf(d.Mkdir("e")), Code::kReadOnly);
  EXPECT_EQ(CodeOf(d.Rmdir("d")), Code::kReadOnly);
  EXPECT_EQ(CodeOf(d.Rename("f", "h")), Code::kReadOnly);
  EXPECT_EQ(CodeOf(d.tree->SetAttributes(*d.Walk("f"), {.size = 0}, nullptr)), Code::kReadOnly);
  EXPECT_EQ(d.Read("f"), "x");
}

TEST_F(TreeTest, ErrorsOfTheStoreComeThrough) {
  d.Put("f", Noise(1'500'000));
  auto file = *d.Open("f");
  d.store->Add({.operation = object::Operation::kGet, .times = -1, .fault = {.code = Code::kUnavailable}});
  std::string piece(10, '?');
  EXPECT_EQ(ToErrno(CodeOf(file->Read(700'000, AsWritableBytes(piece)))), EIO);
  d.store->Clear();
  EXPECT_TRUE(file->Read(700'000, AsWritableBytes(piece))) << "a failure is not remembered";
  d.store->Add({.operation = object::Operation::kHead, .times = -1, .fault = {.code = Code::kPermissionDenied}});
  EXPECT_EQ(ToErrno(CodeOf(d.Walk("g"))), EACCES);
}

}  // namespace
}  // namespace millrace::vfs
