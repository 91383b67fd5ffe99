#include "millrace/vfs/staging/session_log.h"

#include <gtest/gtest.h>

#include "millrace/base/files/files.h"

namespace millrace::vfs {
namespace {

class SessionLogTest : public testing::Test {
 protected:
  std::unique_ptr<SessionLog> Create() { return *SessionLog::Create(path_, "the header", {}); }
  SessionState Read() const {
    auto state = SessionLog::Read(AsBytes(*ReadFile(path_)), "it");
    EXPECT_TRUE(state) << state.error().ToString();
    return *state;
  }
  TempDir dir_ = *TempDir::Create();
  const std::filesystem::path path_ = dir_.path() / "log";
};

constexpr InodeId kOld = (3ULL << 32) | 7;

TEST_F(SessionLogTest, RestoresWhatWasPut) {
  auto log = Create();
  log->PutInode(2, {.parent = 1, .name = "a", .kind = NodeKind::kDirectory, .lookups = 1});
  log->PutInode(kOld, {.parent = 2, .name = "b", .lookups = 1});
  log->PutInode(9, {.parent = 1, .name = "gone", .lookups = 1});
  log->PutLookups(kOld, 5);
  log->RemoveInode(9);
  log->PutFile(11, {.inode = kOld, .request = 40, .reads = true, .opener = 8, .etag = "v1", .size = 100});
  log->PutFile(12, {.inode = kOld, .emptied_at_close = true, .etag = "v0"});
  log->PutFile(13, {.inode = kOld});
  log->RemoveFile(13);
  log->MoveVersion(kOld, "v1", "v2", 120);
  log->PutDirectory(14, {.inode = 2, .request = 50});
  log->PutPage(14, 1, {.start_after = "m", .held = {{.name = "n", .etag = "e", .size = 3, .modified = WallTime()}}});
  const SessionState state = Read();
  EXPECT_EQ(state.header, "the header");
  ASSERT_EQ(state.inodes.size(), 2);
  EXPECT_EQ(state.inodes.at(kOld).parent, 2);
  EXPECT_EQ(state.inodes.at(kOld).name, "b");
  EXPECT_EQ(state.inodes.at(kOld).lookups, 5);
  EXPECT_EQ(state.inodes.at(2).kind, NodeKind::kDirectory);
  EXPECT_EQ(state.last_generation, 3);
  ASSERT_EQ(state.files.size(), 2);
  EXPECT_EQ(state.files.at(11).etag, "v2");
  EXPECT_EQ(state.files.at(11).size, 120);
  EXPECT_EQ(state.files.at(11).opener, 8);
  EXPECT_TRUE(state.files.at(11).reads);
  EXPECT_FALSE(state.files.at(11).writes);
  EXPECT_FALSE(state.files.at(11).emptied_at_close);
  EXPECT_EQ(state.files.at(12).etag, "v0") << "it read another version";
  EXPECT_TRUE(state.files.at(12).emptied_at_close);
  ASSERT_EQ(state.directories.at(14).begins.size(), 2);
  EXPECT_EQ(state.directories.at(14).begins[1].start_after, "m");
  EXPECT_EQ(state.directories.at(14).begins[1].held.at(0).name, "n");
}

TEST_F(SessionLogTest, AddsWritesToAContent) {
  auto log = Create();
  SavedContent saved{.inode = 5, .staged = "0123456789abcdef", .record = {.key = "k"}, .recoverable = true};
  saved.record.complete = true;
  saved.record.expected = "soon";
  log->PutContent(log->NextContent(), saved);
  log->PutWrite(1, {0, 10}, WallTime(std::chrono::seconds(7)));
  log->PutWrite(1, {10, 30}, WallTime(std::chrono::seconds(8)));
  log->PutContent(log->NextContent(), saved);
  log->RemoveContent(2);
  const SessionState state = Read();
  ASSERT_EQ(state.contents.size(), 1);
  const SavedContent& content = state.contents.at(1);
  EXPECT_EQ(content.staged, saved.staged);
  EXPECT_EQ(content.record.key, "k");
  EXPECT_EQ(content.record.size, 30);
  EXPECT_TRUE(content.record.held.Covers(0, 30));
  EXPECT_TRUE(content.record.changed.Covers(0, 30));
  EXPECT_EQ(content.record.modified, WallTime(std::chrono::seconds(8)));
  EXPECT_TRUE(content.unpublished);
  EXPECT_TRUE(content.recoverable);
  EXPECT_EQ(content.record.expected, "") << "the publication under way was of other bytes";
}

TEST_F(SessionLogTest, GoesOnAfterARecordThatWasCutOff) {
  Create()->PutInode(2, {.parent = 1, .name = "whole", .lookups = 1});
  const std::string whole = *ReadFile(path_);
  SessionLog::Resume(path_, {})->log->PutInode(3, {.parent = 1, .name = "cut off", .lookups = 1});
  std::string text = *ReadFile(path_);
  text.pop_back();
  ASSERT_TRUE(ReplaceFile(path_, AsBytes(text)));
  auto resumed = SessionLog::Resume(path_, {});
  ASSERT_TRUE(resumed) << resumed.error().ToString();
  EXPECT_EQ(resumed->state.inodes.size(), 1);
  resumed->log->PutLookups(2, 9);
  EXPECT_EQ(Read().inodes.at(2).lookups, 9);
}

TEST_F(SessionLogTest, RefusesADamagedRecord) {
  auto log = Create();
  for (InodeId id = 2; id < 10; ++id) log->PutInode(id, {.parent = 1, .name = "name", .lookups = 1});
  std::string text = *ReadFile(path_);
  text[text.size() / 2] ^= 1;
  EXPECT_EQ(SessionLog::Read(AsBytes(text), "it").error().code(), Code::kCorrupt);
}

TEST_F(SessionLogTest, IsReplacedByItsStateWhenItGrows) {
  auto log = Create();
  const std::string name(200, 'n');
  constexpr int kPuts = 200'000;  // some 50 MiB
  for (int i = 0; i < kPuts; ++i) {
    log->PutInode(2, {.parent = 1, .name = name, .lookups = static_cast<std::uint32_t>(i)});
  }
  log->PutInode(kOld, {.parent = 1, .name = "old"});
  log->RemoveInode(kOld);
  EXPECT_LT(std::filesystem::file_size(path_), 17 * kMiB);
  EXPECT_EQ(Read().inodes.at(2).lookups, kPuts - 1);
  const auto resumed = SessionLog::Resume(path_, {});
  EXPECT_LT(std::filesystem::file_size(path_), 2 * kKiB);
  EXPECT_EQ(resumed->state.last_generation, 3);
  EXPECT_EQ(Read().last_generation, 3) << "numbers would be used twice";
}

TEST_F(SessionLogTest, IsGoneAfterRemove) {
  auto log = Create();
  log->Remove();
  log->PutLookups(1, 1);
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(SessionLog::Resume(path_, {}).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace millrace::vfs
