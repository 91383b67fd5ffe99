#include "millrace/base/files/managed_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

namespace millrace {
namespace {

namespace fs = std::filesystem;

NameForm FormOf(std::string_view name) {
  if (name == "blobs") return NameForm::kFolder;
  return name == "lock" || (name.ends_with(".data") && IsHexName(name.substr(0, name.size() - 5), 4))
             ? NameForm::kFile
             : NameForm::kForeign;
}

constexpr FolderRole kStoreRole = {.what = "the store", .cure = "choose another one with --store"};
constexpr ManagedFolder::Format kStore = {
    .purpose = "store", .version = 2, .role = kStoreRole, .legacy_file = "lock", .name_form = &FormOf};
constexpr ManagedFolder::Format kOtherKind = {
    .purpose = "other", .version = 1, .role = kStoreRole, .legacy_file = "lock", .name_form = &FormOf};

/// Every file below a folder, but for markers, with its content.
std::map<std::string, std::string> FilesIn(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder);
    if (entry.is_regular_file() && !name.ends_with(ManagedFolder::kMarkerName)) files[name] = *ReadFile(entry.path());
  }
  return files;
}

class ManagedFolderTest : public testing::Test {
 protected:
  static void Write(const fs::path& path, std::string_view content = "theirs") {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << content;
    ::chmod(path.c_str(), 0600);
  }
  /// Nothing in the folder, its mode included, is changed by a refusal.
  void MustRefuse(std::string_view why, const ManagedFolder::Format& kind = kStore) {
    const auto files = FilesIn(path_);
    const auto mode = fs::status(path_).permissions();
    auto opened = ManagedFolder::Open(path_, kind);
    ASSERT_FALSE(opened) << why;
    const std::string text = opened.error().ToString();
    for (std::string_view part : {std::string_view(path_.native()), why, kStoreRole.what, kStoreRole.cure}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    EXPECT_EQ(FilesIn(path_), files);
    EXPECT_EQ(fs::status(path_).permissions(), mode);
  }

  TempDir temp_ = *TempDir::Create();
  const fs::path path_ = temp_.path() / "folder";
};

TEST_F(ManagedFolderTest, AFreshFolderIsMarkedAndOpensAgain) {
  auto folder = *ManagedFolder::Open(path_, kStore);
  ASSERT_TRUE(folder.WriteFileAtomic("0123.data", AsBytes("ours")));
  EXPECT_EQ(
      *ReadFile(path_ / ManagedFolder::kMarkerName),
      fmt::format("{{\"format\":\"millrace-folder\",\"version\":2,\"holds\":\"store\",\"uid\":{}}}\n", ::geteuid()));
  auto again = ManagedFolder::Open(path_, kStore);
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(*again->ReadFile("0123.data", kMiB), "ours");
  EXPECT_EQ(*again->Names(), std::vector<std::string>{"0123.data"});
  EXPECT_EQ(fs::status(path_ / "0123.data").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(ManagedFolderTest, FoldersOfOthersAreRefusedAndLeftAlone) {
  Write(path_ / "notes.data");
  MustRefuse("notes.data");
  fs::remove(path_ / "notes.data");
  Write(path_ / "0123.data");
  MustRefuse("nothing in it says that Millrace made it");
  Write(path_ / "lock", "");
  Write(path_ / "blobs");  // a file, where ours is a folder
  MustRefuse("blobs");
  fs::remove(path_ / "blobs");
  fs::create_symlink("/etc/passwd", path_ / "4567.data");
  MustRefuse("4567.data");
  fs::remove(path_ / "4567.data");
  fs::create_hard_link(path_ / "0123.data", path_ / "4567.data");
  MustRefuse("may have been put there by another user");
}

TEST_F(ManagedFolderTest, WhatAnEarlierReleaseLeftIsAdopted) {
  Write(path_ / "lock", "");
  Write(path_ / "0123.data", "ours");
  fs::create_directory(path_ / "blobs");
  auto folder = ManagedFolder::Open(path_, kStore);
  ASSERT_TRUE(folder) << folder.error().ToString();
  EXPECT_TRUE(fs::exists(path_ / ManagedFolder::kMarkerName));
  EXPECT_EQ(*folder->ReadFile("0123.data", kMiB), "ours");
  // With the marker, what others add is neither told nor in the way.
  Write(path_ / "notes.data");
  folder = ManagedFolder::Open(path_, kStore);
  ASSERT_TRUE(folder) << folder.error().ToString();
  EXPECT_EQ(folder->Names()->size(), 3u);
}

TEST_F(ManagedFolderTest, AMarkerThatWasCutOffIsWrittenAgain) {
  Write(path_ / ManagedFolder::kMarkerName, "{\"format\":\"mill");
  ASSERT_TRUE(ManagedFolder::Open(path_, kStore));
  Write(path_ / "notes");
  EXPECT_TRUE(ManagedFolder::Open(path_, kStore));
}

TEST_F(ManagedFolderTest, AnotherKindAndALaterVersionAreRefused) {
  ASSERT_TRUE(ManagedFolder::Open(path_, kStore));
  MustRefuse("serves Millrace as \"store\"", kOtherKind);
  ManagedFolder::Format old = kStore;
  old.version = 1;
  MustRefuse("later release", old);
}

TEST_F(ManagedFolderTest, LostAndFoundAndManagedFoldersAreNoContent) {
  if (::geteuid() == 0) fs::create_directories(path_ / "lost+found");
  ASSERT_TRUE(ManagedFolder::Open(path_ / "staging", kOtherKind));
  EXPECT_TRUE(ManagedFolder::Open(path_, kStore));
}

TEST_F(ManagedFolderTest, AFolderThatIsSwappedForALinkLeadsNowhereElse) {
  auto folder = *ManagedFolder::Open(path_, kStore);
  ASSERT_TRUE(folder.WriteFileAtomic("0123.data", AsBytes("ours")));
  const fs::path victim = temp_.path() / "victim";
  Write(victim / "0123.data");
  Write(victim / "4567.data");
  fs::rename(path_, temp_.path() / "elsewhere");
  fs::create_directory_symlink(victim, path_);

  EXPECT_EQ(*folder.ReadFile("0123.data", kMiB), "ours");
  EXPECT_EQ(*folder.Names(), std::vector<std::string>{"0123.data"});
  EXPECT_TRUE(folder.WriteFileAtomic("4567.data", AsBytes("ours too")));
  EXPECT_TRUE(folder.Remove("0123.data"));
  EXPECT_EQ(FilesIn(victim), (std::map<std::string, std::string>{{"0123.data", "theirs"}, {"4567.data", "theirs"}}));
  EXPECT_EQ(*ReadFile(temp_.path() / "elsewhere" / "4567.data"), "ours too");
}

TEST_F(ManagedFolderTest, LinksAndPathsBelowAreNotFollowed) {
  auto folder = *ManagedFolder::Open(path_, kStore);
  Write(temp_.path() / "victim");
  fs::create_symlink(temp_.path() / "victim", path_ / "0123.data");
  EXPECT_FALSE(folder.OpenFile("0123.data", O_RDWR | O_CREAT | O_TRUNC));
  EXPECT_FALSE(folder.OpenFile("../victim", O_RDWR | O_TRUNC));
  EXPECT_FALSE(folder.Remove("../victim"));
  EXPECT_FALSE(folder.Rename("0123.data", "../victim"));
  EXPECT_EQ(*ReadFile(temp_.path() / "victim"), "theirs");
  fs::create_directory_symlink(temp_.path(), path_ / "blobs");
  EXPECT_FALSE(folder.Below("blobs", kStore));
  ASSERT_EQ(::mkfifo((path_ / "4567.data").c_str(), 0600), 0);
  EXPECT_FALSE(folder.OpenFile("4567.data", O_RDONLY)) << "and does not wait for a writer";
}

// While one thread swaps a folder on the way for a link to the victim's, and back, each opening gives the real one or
// fails.
TEST_F(ManagedFolderTest, AComponentThatBecomesALinkWhileItIsOpenedIsNotFollowed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a link to another user";
  const fs::path way = temp_.path() / "way", link = temp_.path() / "link", victim = temp_.path() / "victim";
  fs::create_directories(victim / "store");
  fs::create_directory(way);
  fs::create_directory_symlink(victim, link);
  ASSERT_EQ(::lchown(link.c_str(), 54321, 54321), 0);
  std::atomic<bool> done = false;
  std::thread swapper([&] {
    while (!done) ::renameat2(AT_FDCWD, way.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE);
  });
  int opened = 0;
  for (int i = 0; i < 500; ++i) opened += ManagedFolder::Open(way / "store", kStore).has_value();
  done = true;
  swapper.join();
  EXPECT_TRUE(fs::is_empty(victim / "store")) << "after " << opened << " openings";
}

TEST_F(ManagedFolderTest, ManyMayBeTheFirst) {
  std::vector<std::thread> threads;
  std::atomic<int> opened = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      auto folder = ManagedFolder::Open(path_, kStore);
      if (folder && folder->WriteFileAtomic(fmt::format("000{}.data", i), AsBytes("x"))) ++opened;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(opened, 8);
}

TEST_F(ManagedFolderTest, FilesAndMarkersOfAnotherUserAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to other users";
  Write(path_ / "lock", "");
  Write(path_ / "0123.data", "poison");
  ASSERT_EQ(::chown((path_ / "0123.data").c_str(), 54321, 54321), 0);
  MustRefuse("0123.data");
  fs::remove(path_ / "0123.data");
  auto folder = *ManagedFolder::Open(path_, kStore);
  ASSERT_EQ(::chown((path_ / ManagedFolder::kMarkerName).c_str(), 54321, 54321), 0);
  MustRefuse(ManagedFolder::kMarkerName);
}

/// Sets variables for a scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(DefaultCacheFolder, IsTheUsersCache) {
  const Environment home("HOME", "/home/ann"), cache("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(*DefaultCacheFolder("--f"), "/home/ann/.cache/millrace");
  {
    const Environment set("XDG_CACHE_HOME", "/disk/cache");
    EXPECT_EQ(*DefaultCacheFolder("--f"), "/disk/cache/millrace");
  }
  const Environment relative("XDG_CACHE_HOME", "cache");
  EXPECT_EQ(*DefaultCacheFolder("--f"), "/home/ann/.cache/millrace") << "the specification has it ignored";
}

TEST(DefaultCacheFolder, SaysWhatToSetWhereThereIsNoHome) {
  const Environment cache("XDG_CACHE_HOME", nullptr), home("HOME", "nowhere");
  auto none = DefaultCacheFolder("--staging-dir");
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().ToString().find("--staging-dir"), std::string::npos);
  if (::geteuid() != 0) return;
  const Environment service("HOME", nullptr);
  EXPECT_EQ(*DefaultCacheFolder("--staging-dir"), "/var/cache/millrace");
}

}  // namespace
}  // namespace millrace
