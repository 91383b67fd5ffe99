// What docs/semantics.md promises of modes, owners, times, xattrs, links and directories.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "millrace/vfs/metadata/attributes.h"
#include "millrace/vfs/testing/driver.h"

namespace millrace::vfs {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

class TreeAttributesTest : public testing::Test {
 protected:
  std::uint64_t Heads() const { return d.store->calls(object::Operation::kHead); }
  UserMetadata MetadataOf(const std::string& key) {
    auto info = object::Head(*d.inner, key);
    return info && *info ? (*info)->metadata : UserMetadata{{"absent", ""}};
  }
  Status Change(std::string_view path, const AttributeChange& change, File* through = nullptr) {
    MR_TRY(d.tree->SetAttributes(MR_TRY(d.Walk(path)), change, through));
    return {};
  }
  Status Chmod(std::string_view path, std::uint32_t permissions) { return Change(path, {.permissions = permissions}); }
  WallTime Later(int seconds) { return d.clock.Wall() + std::chrono::seconds(seconds); }
  Driver d;
};

TEST_F(TreeAttributesTest, WhatIsChangedIsStoredAndTheBytesStay) {
  d.Put("dir/f", "content");
  object::PutOptions with{.content_type = "text/x-special",
                          .metadata = {{"colour", "blue"}},
                          .attributes = {.storage_class = "STANDARD_IA",
                                         .encryption = "aws:kms",
                                         .cache_control = "max-age=60",
                                         .content_encoding = "gzip"}};
  ASSERT_TRUE(object::Put(*d.inner, "dir/g", AsBytes("other"), with));
  const WallTime before = d.Stat("dir/g")->modified;
  d.clock.Advance(std::chrono::hours(1));
  ASSERT_TRUE(Change("dir/g", {.permissions = 0750, .uid = 7, .gid = 8}));
  for (bool again : {false, true}) {
    auto a = *d.Stat("dir/g");
    EXPECT_EQ(a.permissions, 0750u);
    EXPECT_EQ(a.uid, 7u);
    EXPECT_EQ(a.gid, 8u);
    EXPECT_EQ(a.modified, before) << "only ctime moves";
    EXPECT_EQ(a.changed, d.clock.Wall());
    EXPECT_EQ(d.Stat("dir/f")->permissions, 0644u);
    if (!again) d.Remount();
  }
  EXPECT_EQ(d.Object("dir/g"), "other");
  EXPECT_EQ(MetadataOf("dir/g").at("mode"), "33256");
  EXPECT_EQ(MetadataOf("dir/g").at("colour"), "blue");
  EXPECT_EQ((*object::Head(*d.inner, "dir/g"))->content_type, "text/x-special");
  ASSERT_TRUE(d.Rename("dir/g", "dir/h"));
  const auto attributes = (*object::Head(*d.inner, "dir/h"))->attributes;
  EXPECT_EQ(attributes->cache_control, "max-age=60");
  EXPECT_EQ(attributes->content_encoding, "gzip");
  EXPECT_EQ(attributes->storage_class, "STANDARD_IA");
  EXPECT_EQ(attributes->encryption, "aws:kms");
  const WallTime when = Later(-5000) + std::chrono::nanoseconds(17);
  ASSERT_TRUE(Change("dir/f", {.modified = when, .accessed = Later(3)}));
  d.Remount();
  EXPECT_EQ(d.Stat("dir/f")->modified, when);
  EXPECT_EQ(d.Stat("dir/f")->accessed, Later(3));
}

TEST_F(TreeAttributesTest, OnlyMarkedDirectoriesCostHeads) {
  for (int i = 0; i < 2500; ++i) d.Put(fmt::format("plain/{}", i), "x");
  for (int i = 0; i < 50; ++i) d.Put(fmt::format("marked/{}", i), "x");
  d.Put("marked/sub/f", "x");
  ASSERT_TRUE(Chmod("marked/7", 0600));
  ASSERT_TRUE(Chmod("marked/sub", 0700));
  EXPECT_GT(d.Object("marked/").size(), 0u);
  d.Remount();
  d.clock.Advance(std::chrono::minutes(1));
  const auto plain = *d.Walk("plain"), marked = *d.Walk("marked");
  auto modes = [&](InodeId id) {
    std::map<std::string, std::uint32_t> modes;
    auto directory = *d.tree->OpenDirectory(id);
    EXPECT_TRUE(Driver::ReadToEnd(*directory, [&](const DirectoryEntry& entry) {
      modes[std::string(entry.name)] = entry.entry.attributes.permissions;
    }));
    return modes;
  };
  std::uint64_t before = Heads();
  EXPECT_EQ(modes(plain).size(), 2500u);
  EXPECT_EQ(Heads(), before) << "no entry has any";
  auto listed = modes(marked);
  EXPECT_EQ(listed.size(), 51u);
  EXPECT_EQ(listed["7"], 0600u);
  EXPECT_EQ(listed["8"], 0644u);
  EXPECT_EQ(listed["sub"], 0700u);
  EXPECT_EQ(Heads(), before + 51);
  d.PassTtl();
  before = Heads();
  EXPECT_EQ(modes(marked)["7"], 0600u);
  EXPECT_EQ(Heads(), before + 1) << "attributes of a known version are known; a directory has no version";
}

TEST_F(TreeAttributesTest, AMarkerThatTakesNoBodyHasANote) {
  d.Put("dir/f", "content");
  d.store->Add({.operation = object::Operation::kPut, .key_prefix = "dir/", .fault = {.code = Code::kInvalidArgument}});
  ASSERT_TRUE(Chmod("dir/f", 0600));
  EXPECT_EQ(d.Object("dir/"), "");
  EXPECT_EQ(MetadataOf("dir/").count("millrace-entries"), 1u);
  EXPECT_EQ(d.Stat("dir/f")->permissions, 0600u);
  ASSERT_TRUE(d.Rename("dir", "other"));
  EXPECT_EQ(d.Stat("other/f")->permissions, 0600u);
}

TEST_F(TreeAttributesTest, ARenameFindsOutThatMarkersTakeNoBody) {
  d.Put("dir/", "");
  d.Put("dir/f", "content");
  d.store->Add(
      {.operation = object::Operation::kPut, .key_prefix = "other/", .fault = {.code = Code::kInvalidArgument}});
  ASSERT_TRUE(d.Rename("dir", "other"));
  EXPECT_EQ(d.Object("other/"), "");
  EXPECT_EQ(d.Object("other/f"), "content");
}

TEST_F(TreeAttributesTest, AStoreThatDropsTheMetadataOfMarkersIsFoundOut) {
  d.Put("dir/", "");
  d.Put("dir/f", "content");
  const object::Fault drops{.drop_metadata = true};
  d.store->Add({.operation = object::Operation::kPut, .key_prefix = "dir/", .times = -1, .fault = drops});
  d.store->Add({.operation = object::Operation::kPut, .key_prefix = "made/", .times = -1, .fault = drops});
  EXPECT_EQ(CodeOf(Chmod("dir", 0700)), Code::kUnsupported);
  EXPECT_TRUE(Chmod("dir/f", 0600)) << "files keep theirs";
  auto made = d.tree->MakeDirectory(kRootInode, "made", {.permissions = 0700});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->attributes.permissions, 0755u) << "what a later mount shows";
  d.store->Clear();
  EXPECT_TRUE(Chmod("dir", 0700)) << "nothing is remembered of a store that has forgotten";
  d.Remount();
  EXPECT_EQ(d.Stat("dir")->permissions, 0700u);
  EXPECT_EQ(d.Stat("made")->permissions, 0755u);
  EXPECT_EQ(d.Stat("dir/f")->permissions, 0600u);
}

TEST_F(TreeAttributesTest, AStoreThatDropsAllMetadataIsFoundOut) {
  d.Put("f", "content");
  for (object::Operation operation : {object::Operation::kPut, object::Operation::kCopy})
    d.store->Add({.operation = operation, .times = -1, .fault = {.drop_metadata = true}});
  EXPECT_EQ(CodeOf(Chmod("f", 0600)), Code::kUnsupported);
  EXPECT_EQ(d.Object("f"), "content");
  EXPECT_EQ(CodeOf(d.tree->MakeSymlink(kRootInode, "link", "f", {})), Code::kUnsupported);
  EXPECT_EQ(d.Object("link"), "<absent>") << "a later mount would show a file";
  auto created = d.tree->Create(kRootInode, "x", true, {.permissions = 0600});
  ASSERT_TRUE(created);
  ASSERT_TRUE(created->file->Write(0, AsBytes("x")));
  ASSERT_TRUE(created->file->Close());
  EXPECT_EQ(d.Stat("x")->permissions, 0644u) << "what a later mount shows";
}

TEST_F(TreeAttributesTest, TheRootIsToldAsItWasWhileTheStoreIsDown) {
  ASSERT_TRUE(d.tree->SetAttributes(kRootInode, {.permissions = 0700}, nullptr));
  d.store->Add({.operation = {}, .times = -1, .fault = {.code = Code::kUnavailable}});
  d.clock.Advance(std::chrono::minutes(1));
  auto root = d.tree->GetAttributes(kRootInode);
  ASSERT_TRUE(root) << root.error().ToString();
  EXPECT_EQ(root->attributes.permissions, 0700u);
}

TEST_F(TreeAttributesTest, CreatedWithAModeOrAnOwner) {
  auto created = d.tree->Create(kRootInode, "x", true, {.permissions = 0755, .uid = 5});
  ASSERT_TRUE(created);
  EXPECT_EQ(created->entry.attributes.permissions, 0755u);
  ASSERT_TRUE(created->file->Write(0, AsBytes("#!")));
  ASSERT_TRUE(created->file->Close());
  ASSERT_TRUE(d.tree->MakeDirectory(kRootInode, "d", {.permissions = 02770, .gid = 9}));
  auto inside = d.tree->MakeDirectory(*d.Walk("d"), "e", {.permissions = 0755, .gid = 1});
  EXPECT_EQ(inside->attributes.gid, 9u) << "set-group-ID directories hand on their group";
  EXPECT_EQ(inside->attributes.permissions, 02755u);
  ASSERT_TRUE(d.Write("usual", "x"));
  d.Remount();
  EXPECT_EQ(d.Stat("x")->permissions, 0755u);
  EXPECT_EQ(d.Stat("x")->uid, 5u);
  EXPECT_EQ(d.Stat("d")->permissions, 02770u);
  EXPECT_EQ(d.Stat("d/e")->gid, 9u);
  EXPECT_EQ(MetadataOf("usual"), UserMetadata());
}

TEST_F(TreeAttributesTest, ATimeThatIsSetForADirectoryCounts) {
  d.Put("dir/f", "x");
  const WallTime past = Later(-5000);
  for (int i = 0; i < 2; ++i) {
    d.clock.Advance(std::chrono::seconds(1));
    ASSERT_TRUE(d.Write(fmt::format("dir/new{}", i), "x"));
    EXPECT_EQ(d.Stat("dir")->modified, d.clock.Wall()) << "entries change it";
    ASSERT_TRUE(Change("dir", {.modified = past}));
    EXPECT_EQ(d.Stat("dir")->modified, past) << "as unpacked archives have it";
  }
  ASSERT_TRUE(Chmod("dir", 0700));
  EXPECT_EQ(d.Stat("dir")->modified, past);
}

TEST_F(TreeAttributesTest, RewritingKeepsTheModeAndMovesTheTime) {
  ASSERT_TRUE(d.Write("f", "one"));
  ASSERT_TRUE(Change("f", {.permissions = 0600, .modified = Later(-1000)}));
  ASSERT_TRUE(d.Write("f", "two"));
  EXPECT_EQ(d.Stat("f")->permissions, 0600u);
  EXPECT_EQ(d.Stat("f")->modified, d.clock.Wall());
  d.Remount();
  EXPECT_EQ(d.Stat("f")->permissions, 0600u);
  EXPECT_EQ(d.Stat("f")->modified, d.clock.Wall());
  EXPECT_EQ(d.Read("f"), "two");
}

// Build tools record the time of a file on one mount, and build again if the time is later on another one.
TEST_F(TreeAttributesTest, NoFileIsNewerOnAnotherMount) {
  d.clock.Advance(milliseconds(900));
  const WallTime written = d.clock.Wall();
  for (std::string name : {"closed", "synced", "large"}) {
    SCOPED_TRACE(name);
    auto file = *d.Create(name);
    ASSERT_TRUE(file->Write(0, AsBytes(Noise(name == "large" ? 10'000 : 1))));
    const WallTime last = d.clock.Wall();
    EXPECT_EQ(d.Stat(name)->modified, last);
    d.clock.Advance(milliseconds(200));  // the next second begins before the store gets the content
    ASSERT_TRUE(name == "synced" ? file->Sync() : file->Flush());
    const WallTime here = d.Stat(name)->modified;
    EXPECT_GE(here, last);
    EXPECT_LE(here, d.clock.Wall());
    ASSERT_TRUE(file->Close());
    EXPECT_EQ(d.Stat(name)->modified, here);
    Driver other({}, Driver::Time::kStands, d.inner);
    EXPECT_LE(other.Stat(name)->modified, here);
    d.PassTtl();
    EXPECT_EQ(d.Stat(name)->modified, here) << "as it was reported first";
    d.clock.Advance(milliseconds(800));
  }
  EXPECT_GT(d.Stat("closed")->modified, written);
  const WallTime now = d.clock.Wall();
  ASSERT_TRUE(d.Write("quick", "published within the second"));
  EXPECT_EQ(d.Stat("quick")->modified, now) << "to the nanosecond";
}

TEST_F(TreeAttributesTest, ATimeThatIsSetBeforeTheCloseStays) {
  auto file = *d.Create("f");
  ASSERT_TRUE(file->Write(0, AsBytes("x")));
  const WallTime when = Later(-1000) + nanoseconds(7);
  ASSERT_TRUE(Change("f", {.modified = when}, file.get()));
  d.clock.Advance(seconds(1));
  ASSERT_TRUE(file->Close());
  EXPECT_EQ(d.Stat("f")->modified, when);
  d.Remount();
  EXPECT_EQ(d.Stat("f")->modified, when);
}

TEST_F(TreeAttributesTest, AVersionHasOneTimeInListingsAndHeads) {
  d.clock.Advance(milliseconds(900));
  d.Put("dir/f", "x");
  const WallTime by_head = d.Stat("dir/f")->modified;
  EXPECT_EQ(by_head, std::chrono::floor<seconds>(d.clock.Wall()));
  d.Remount();
  auto directory = *d.tree->OpenDirectory(*d.Walk("dir"));
  std::vector<WallTime> by_listing;
  ASSERT_TRUE(d.ReadToEnd(*directory, [&](const DirectoryEntry& entry) {
    if (entry.name == "f") by_listing.push_back(entry.entry.attributes.modified);
  }));
  EXPECT_THAT(by_listing, ElementsAre(by_head));
}

TEST_F(TreeAttributesTest, AnOpenFileTakesChangesAlong) {
  auto file = *d.Create("f");
  ASSERT_TRUE(Change("f", {.permissions = 0700}, file.get()));
  ASSERT_TRUE(file->Write(0, AsBytes("bytes")));
  EXPECT_EQ(d.Stat("f")->permissions, 0700u);
  ASSERT_TRUE(file->Close());
  d.Remount();
  EXPECT_EQ(d.Stat("f")->permissions, 0700u);
  EXPECT_EQ(d.Read("f"), "bytes");

  d.Put("read", "as it was");
  auto reader = *d.Open("read");
  ASSERT_TRUE(Chmod("read", 0400));
  EXPECT_EQ(Driver::ReadAll(*reader), "as it was");
  d.Put("read", "another one");
  d.PassTtl();
  ASSERT_TRUE(d.Stat("read"));
  EXPECT_EQ(CodeOf(Driver::ReadAll(*reader)), Code::kStale);
}

TEST_F(TreeAttributesTest, LinksAreObjectsAsS3fsMakesThem) {
  auto made = d.tree->MakeSymlink(kRootInode, "link", "../target/\xC3\xA9");
  ASSERT_TRUE(made);
  EXPECT_EQ(made->attributes.kind, NodeKind::kSymlink);
  EXPECT_EQ(d.Object("link"), "../target/\xC3\xA9");
  EXPECT_EQ(MetadataOf("link").at("mode"), "41471");
  EXPECT_EQ(CodeOf(d.tree->MakeSymlink(kRootInode, "link", "x")), Code::kAlreadyExists);
  ASSERT_TRUE(d.Rename("link", "moved"));
  d.Remount();
  EXPECT_EQ(d.Stat("moved")->kind, NodeKind::kSymlink);
  EXPECT_EQ(*d.tree->ReadLink(*d.Walk("moved")), "../target/\xC3\xA9");
  auto directory = *d.tree->OpenDirectory(kRootInode);
  ASSERT_TRUE(directory->Read(0, [&](const DirectoryEntry& entry) {
    EXPECT_EQ(entry.kind, NodeKind::kSymlink) << entry.name;
    return true;
  }));
  ASSERT_TRUE(d.Unlink("moved"));
  EXPECT_EQ(d.Object("moved"), "<absent>");
}

TEST_F(TreeAttributesTest, Xattrs) {
  d.Put("f", "x");
  const InodeId f = *d.Walk("f");
  EXPECT_EQ(CodeOf(d.tree->SetXattr(f, "security.x", "1", XattrMode::kAny)), Code::kUnsupported);
  EXPECT_TRUE(*d.tree->SetXattr(f, "user.a", std::string_view("\0\xFF", 2), XattrMode::kCreate));
  EXPECT_EQ(CodeOf(d.tree->SetXattr(f, "user.a", "2", XattrMode::kCreate)), Code::kAlreadyExists);
  EXPECT_FALSE(*d.tree->SetXattr(f, "user.b", "2", XattrMode::kReplace));
  EXPECT_TRUE(*d.tree->SetXattr(f, "user.b", "2", XattrMode::kAny));
  EXPECT_EQ(CodeOf(d.tree->SetXattr(f, "user.c", std::string(3000, 'x'), XattrMode::kAny)), Code::kNoSpace);
  d.Remount();
  const InodeId again = *d.Walk("f");
  EXPECT_THAT(*d.tree->ListXattrs(again), ElementsAre("user.a", "user.b"));
  EXPECT_EQ(**d.tree->GetXattr(again, "user.a"), std::string("\0\xFF", 2));
  EXPECT_EQ(*d.tree->GetXattr(again, "user.c"), std::nullopt);
  EXPECT_TRUE(*d.tree->RemoveXattr(again, "user.a"));
  EXPECT_FALSE(*d.tree->RemoveXattr(again, "user.a"));
  ASSERT_TRUE(*d.tree->SetXattr(kRootInode, "user.root", "1", XattrMode::kAny));
  d.Remount();
  EXPECT_THAT(*d.tree->ListXattrs(*d.Walk("f")), ElementsAre("user.b"));
  EXPECT_THAT(*d.tree->ListXattrs(kRootInode), ElementsAre("user.root"));
  EXPECT_THAT(*d.List(), ElementsAre("f")) << "what the mount keeps for itself is not shown";
}

TEST_F(TreeAttributesTest, EmptiedDirectoriesStay) {
  d.Put("a/b/f", "x");
  d.Put("c/g", "x");
  ASSERT_TRUE(d.Unlink("a/b/f"));
  ASSERT_TRUE(d.Rename("c/g", "g"));
  d.Remount();
  EXPECT_THAT(*d.List(), UnorderedElementsAre("a/", "c/", "g"));
  EXPECT_THAT(*d.List("a"), ElementsAre("b/"));
  ASSERT_TRUE(d.Rmdir("a/b"));
  d.Remount();
  EXPECT_THAT(*d.List("a"), ElementsAre());
  ASSERT_TRUE(d.Rmdir("a"));
  EXPECT_EQ(d.Object("a/"), "<absent>");
}

TEST_F(TreeAttributesTest, ARenameKeepsWhatTheObjectHas) {
  ASSERT_TRUE(object::Put(*d.inner, "f", AsBytes("x"), {.content_type = "image/png", .metadata = {{"colour", "red"}}}));
  const WallTime before = d.Stat("f")->modified;
  d.clock.Advance(std::chrono::hours(2));
  ASSERT_TRUE(d.Rename("f", "g"));
  EXPECT_EQ(d.Stat("g")->modified, before);
  d.Remount();
  EXPECT_EQ(d.Stat("g")->modified, before);
  EXPECT_EQ(MetadataOf("g").at("colour"), "red");
  EXPECT_EQ((*object::Head(*d.inner, "g"))->content_type, "image/png");
  d.Put("large", Noise(200'000));
  d.clock.Advance(std::chrono::hours(2));
  ASSERT_TRUE(Chmod("large", 0600));
  ASSERT_TRUE(d.Rename("large", "large2"));
  d.Remount();
  EXPECT_EQ(d.Stat("large2")->permissions, 0600u);
  EXPECT_EQ(d.Object("large2"), Noise(200'000));
  ASSERT_TRUE(d.Write("fresh", "x"));
  ASSERT_TRUE(d.Mkdir("m"));
  ASSERT_TRUE(d.Rename("fresh", "m/fresh"));
  EXPECT_EQ(d.Object("m/"), "") << "a file that just got its name needs no stored time";
}

TEST_F(TreeAttributesTest, AListingProvesItsDirectory) {
  Driver d({.stored_attributes = StoredAttributesPolicy::kNever});
  d.Put("dir/file", "");
  const auto id = *d.Walk("dir");
  d.clock.Advance(std::chrono::milliseconds(900));
  auto directory = *d.tree->OpenDirectory(id);
  ASSERT_TRUE(Driver::ReadToEnd(*directory, [](const DirectoryEntry&) {}));
  d.clock.Advance(std::chrono::milliseconds(900));
  const auto heads = d.store->calls(object::Operation::kHead), lists = d.store->calls(object::Operation::kList);
  EXPECT_TRUE((*d.tree->Lookup(kRootInode, "dir")).has_value());
  EXPECT_EQ(d.store->calls(object::Operation::kHead), heads);
  EXPECT_EQ(d.store->calls(object::Operation::kList), lists);
}

TEST_F(TreeAttributesTest, NeverStoresAndReadsNothing) {
  Driver d({.stored_attributes = StoredAttributesPolicy::kNever});
  ASSERT_TRUE(object::Put(*d.inner, "f", AsBytes("x"), {.content_type = {}, .metadata = {{"mode", "33152"}}}));
  EXPECT_EQ(d.Stat("f")->permissions, 0644u);
  ASSERT_TRUE(d.tree->SetAttributes(*d.Walk("f"), {.permissions = 0700}, nullptr)) << "accepted, as chmod must be";
  EXPECT_EQ(d.Stat("f")->permissions, 0644u);
  EXPECT_EQ(CodeOf(d.tree->MakeSymlink(kRootInode, "l", "x")), Code::kUnsupported);
  EXPECT_EQ(CodeOf(d.tree->SetXattr(*d.Walk("f"), "user.x", "", XattrMode::kAny)), Code::kUnsupported);
}

TEST_F(TreeAttributesTest, AlwaysReadsWhatOthersStored) {
  Driver d({.stored_attributes = StoredAttributesPolicy::kAlways});
  auto put = [&](const std::string& key, const UserMetadata& metadata) {
    ASSERT_TRUE(object::Put(*d.inner, key, AsBytes("target"), {.content_type = {}, .metadata = metadata}));
  };
  put("file", {{"mode", "33152"}, {"uid", "12"}, {"mtime", "1600000000"}});
  put("link", {{"mode", "41471"}});
  ASSERT_TRUE(object::Put(*d.inner, "dir/", {}, {.content_type = {}, .metadata = {{"mode", "16832"}}}));
  std::map<std::string, std::pair<NodeKind, std::uint32_t>> seen;
  auto directory = *d.tree->OpenDirectory(kRootInode);
  ASSERT_TRUE(directory->ReadPlus(0, [&](const DirectoryEntry& entry) {
    seen[std::string(entry.name)] = {entry.kind, entry.entry.attributes.permissions};
    return true;
  }));
  EXPECT_EQ(seen, (decltype(seen){{"file", {NodeKind::kFile, 0600}},
                                  {"link", {NodeKind::kSymlink, 0777}},
                                  {"dir", {NodeKind::kDirectory, 0700}}}));
}

TEST_F(TreeAttributesTest, PoliciesRefuseDeletingAndOverwriting) {
  Driver d({.allow_delete = false, .allow_overwrite = false});
  d.Put("f", "x");
  ASSERT_TRUE(d.Write("new", "new files may be written")) << "once";
  ASSERT_TRUE(d.Mkdir("m"));
  EXPECT_EQ(CodeOf(d.Unlink("f")), Code::kPermissionDenied);
  EXPECT_EQ(CodeOf(d.Rmdir("m")), Code::kPermissionDenied);
  EXPECT_EQ(CodeOf(d.Open("new", {.write = true})), Code::kPermissionDenied);
  EXPECT_EQ(CodeOf(d.Write("f", "y")), Code::kPermissionDenied);
  EXPECT_EQ(CodeOf(d.Rename("new", "f")), Code::kAlreadyExists);
  EXPECT_TRUE(d.Rename("new", "newer"));
  EXPECT_EQ(d.Object("f"), "x");
}

}  // namespace
}  // namespace millrace::vfs
