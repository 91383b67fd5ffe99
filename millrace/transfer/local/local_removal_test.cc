#include "millrace/transfer/local/local_removal.h"

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>

#include "millrace/object/local/paths.h"

namespace millrace::transfer {
namespace {

namespace fs = std::filesystem;
using Outcome = LocalRemover::Outcome;

class LocalRemoval : public testing::Test {
 protected:
  LocalRemoval() {
    fs::create_directories(tree() / "sub");
    fs::create_directories(folder_.path() / "outside");
    Write("tree/a", "a");
    Write("tree/sub/b", "b");
    Write("outside/c", "c");
  }
  fs::path tree() const { return folder_.path() / "tree"; }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_.path() / name, std::ios::trunc) << content;
  }
  std::string Read(const std::string& name) { return ReadFile(folder_.path() / name).value_or("<absent>"); }
  LocalRemover Remover() { return std::move(*LocalRemover::Open(tree())); }

  TempDir folder_ = std::move(*TempDir::Create());
};

TEST_F(LocalRemoval, RemovesFilesAndLinksButFollowsNoLink) {
  fs::create_directory_symlink(folder_.path() / "outside", tree() / "link");
  fs::create_symlink(folder_.path() / "outside/c", tree() / "to-file");
  const LocalRemover remover = Remover();
  EXPECT_EQ(remover.Remove("sub/b"), Outcome::kRemoved);
  EXPECT_EQ(remover.Remove("sub/b"), Outcome::kAbsent);
  EXPECT_EQ(remover.Remove("link/c"), Outcome::kBehindLink);
  EXPECT_EQ(remover.LinkOn("link/c"), "link");
  EXPECT_EQ(remover.LinkOn("sub/b"), std::nullopt);
  EXPECT_EQ(remover.Remove("to-file"), Outcome::kRemoved);
  EXPECT_EQ(remover.Remove("link/"), Outcome::kRemoved);
  EXPECT_EQ(Read("outside/c"), "c");
  EXPECT_FALSE(fs::is_symlink(tree() / "link"));
  EXPECT_FALSE(remover.Remove("sub")) << "a folder is no file";
  EXPECT_FALSE(remover.Remove("a/")) << "it was listed as a link";
  EXPECT_EQ(Read("tree/a"), "a");
}

TEST_F(LocalRemoval, WhatIsNoFileStays) {
  ASSERT_EQ(mkfifo((tree() / "fifo").c_str(), 0600), 0);
  auto removed = Remover().Remove("fifo");
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code(), Code::kStale);
  EXPECT_TRUE(fs::is_fifo(tree() / "fifo"));
}

TEST_F(LocalRemoval, AFolderThatBecomesALinkIsNotFollowed) {
  const LocalRemover remover = Remover();
  fs::rename(tree() / "sub", tree() / "sub.old");
  fs::create_directory_symlink(folder_.path() / "outside", tree() / "sub");
  Write("outside/b", "not ours");
  EXPECT_EQ(remover.Remove("sub/b"), Outcome::kBehindLink);
  EXPECT_EQ(Read("outside/b"), "not ours");
}

TEST_F(LocalRemoval, WhatWasSentGoes) {
  const LocalFile sent = std::move(*LocalFile::Open(tree() / "a"));
  const UniqueFd watch(inotify_init1(IN_CLOEXEC));
  ASSERT_GE(inotify_add_watch(watch.get(), tree().c_str(), IN_MOVED_TO), 0);
  EXPECT_EQ(Remover().RemoveSent("a", sent), Outcome::kRemoved);
  EXPECT_FALSE(fs::exists(tree() / "a"));
  alignas(inotify_event) char moved[sizeof(inotify_event) + NAME_MAX + 1];
  ASSERT_GT(read(watch.get(), moved, sizeof moved), 0);
  const std::string name = reinterpret_cast<const inotify_event*>(moved)->name;
  EXPECT_EQ(object::SegmentOfName(name), std::nullopt) << "a copy after a crash would send " << name;
  EXPECT_EQ(std::distance(fs::directory_iterator(tree()), {}), 1) << "no private name stays";
}

TEST_F(LocalRemoval, AnotherFileOfThatNameStays) {
  const LocalFile sent = std::move(*LocalFile::Open(tree() / "a"));
  Write("tree/new", "b");
  fs::rename(tree() / "new", tree() / "a");
  auto removed = Remover().RemoveSent("a", sent);
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code(), Code::kStale);
  EXPECT_EQ(Read("tree/a"), "b");
}

TEST_F(LocalRemoval, AFileThatWasWrittenToStays) {
  const LocalFile sent = std::move(*LocalFile::Open(tree() / "a"));
  const auto modified = fs::last_write_time(tree() / "a");
  Write("tree/a", "b");
  fs::last_write_time(tree() / "a", modified);  // size and time are as before
  EXPECT_FALSE(Remover().RemoveSent("a", sent));
  EXPECT_EQ(Read("tree/a"), "b");
}

TEST_F(LocalRemoval, EveryNameOfAFileGoes) {
  fs::create_hard_link(tree() / "a", tree() / "also");
  const LocalFile first = std::move(*LocalFile::Open(tree() / "a")),
                  second = std::move(*LocalFile::Open(tree() / "also"));
  EXPECT_EQ(Remover().RemoveSent("a", first), Outcome::kRemoved);
  EXPECT_EQ(Remover().RemoveSent("also", second), Outcome::kRemoved);
}

TEST_F(LocalRemoval, ALinkGoesIfItStillLeadsToWhatWasSent) {
  fs::create_symlink(folder_.path() / "outside/c", tree() / "link");
  const LocalFile sent = std::move(*LocalFile::Open(tree() / "link"));
  fs::create_symlink(tree() / "a", tree() / "other");
  EXPECT_FALSE(Remover().RemoveSent("other", sent));
  EXPECT_EQ(Remover().RemoveSent("link", sent), Outcome::kRemoved);
  EXPECT_EQ(Read("outside/c"), "c");
}

}  // namespace
}  // namespace millrace::transfer
