#include "millrace/vfs/metadata/inode_table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"

namespace millrace::vfs {
namespace {

TEST(InodeTableTest, WhatIsFoldedComesBack) {
  InodeTable table("");
  const InodeId id = table.Acquire(kRootInode, "f", NodeKind::kFile)->id;
  const InodeId directory = table.Acquire(kRootInode, "d", NodeKind::kDirectory)->id;
  {
    InodePtr inode = *table.Find(id);
    MutexLock lock(inode->mutex);
    inode->reported = {.state = Metadata::State::kFile, .size = 3, .modified = {}, .etag = "e1", .as_of = {}};
    inode->pages_etag = "e1";
  }
  {
    InodePtr inode = *table.Find(directory);
    MutexLock lock(inode->mutex);
    inode->changed = WallTime(std::chrono::seconds(5));
  }
  InodePtr file = *table.Find(id), same = *table.Find(id), above = *table.Find(directory);
  EXPECT_EQ(file, same);
  MutexLock lock(file->mutex);
  EXPECT_EQ(file->reported.size, 3u);
  EXPECT_EQ(file->reported.etag, "e1");
  EXPECT_EQ(file->pages_etag, "e1");
  MutexLock above_lock(above->mutex);
  EXPECT_EQ(above->changed, WallTime(std::chrono::seconds(5)));
}

TEST(InodeTableTest, AnotherProcessGoesOnWithTheSameNumbers) {
  const TempDir dir = *TempDir::Create();
  InodeId directory = 0, file = 0, nameless = 0, gone = 0;
  {
    auto log = *SessionLog::Create(dir.path() / "log", "header", {});
    InodeTable table("p/", log.get());
    directory = table.Acquire(kRootInode, "d", NodeKind::kDirectory)->id;
    file = table.Acquire(directory, "f", NodeKind::kFile)->id;
    nameless = table.Acquire(kRootInode, "u", NodeKind::kFile)->id;
    table.Unlink(**table.Find(nameless));
    gone = table.Acquire(kRootInode, "g", NodeKind::kFile)->id;
    table.Forget(gone, 1);
    table.Hold(**table.Find(file));
    table.Move(**table.Find(file), kRootInode, "moved");
    table.Forget(directory, 1);
  }
  const auto resumed = SessionLog::Resume(dir.path() / "log", {});
  ASSERT_TRUE(resumed) << resumed.error().ToString();
  InodeTable table("p/", resumed->log.get());
  ASSERT_TRUE(table.Restore(resumed->state));
  EXPECT_EQ(table.FindChildId(kRootInode, "moved"), file);
  EXPECT_EQ(*table.PathOf(**table.Find(file)), "p/moved");
  EXPECT_FALSE(table.IsLinked(**table.Find(nameless)));
  EXPECT_FALSE(table.Find(directory)) << "nothing was left in it";
  EXPECT_FALSE(table.Find(gone));
  EXPECT_NE(table.Acquire(kRootInode, "new", NodeKind::kFile)->id, gone) << "no number is used twice";
  table.Forget(file, 1);
  EXPECT_TRUE(table.Find(file)) << "it has had two lookups";
  table.Forget(file, 1);
  EXPECT_FALSE(table.Find(file));
}

TEST(InodeTableTest, RefusesInodesThatMakeNoTree) {
  SessionState state;
  state.inodes[5] = {.parent = 4, .name = "f"};
  EXPECT_EQ(InodeTable("").Restore(state).error().code(), Code::kCorrupt);
  state.inodes[4] = {.parent = kRootInode, .name = "d", .kind = NodeKind::kDirectory};
  state.inodes[6] = {.parent = 4, .name = "f"};
  EXPECT_EQ(InodeTable("").Restore(state).error().code(), Code::kCorrupt);
  state.inodes.erase(6);
  EXPECT_TRUE(InodeTable("").Restore(state));
}

TEST(InodeTableTest, APageOfAnotherVersionIsNotClaimed) {
  InodeTable table("");
  const InodeId id = table.Acquire(kRootInode, "f", NodeKind::kFile)->id;
  {
    InodePtr inode = *table.Find(id);
    MutexLock lock(inode->mutex);
    inode->reported.etag = "e2";
    inode->pages_etag = "e1";
  }
  InodePtr inode = *table.Find(id);
  MutexLock lock(inode->mutex);
  EXPECT_NE(inode->pages_etag, "e2");
}

TEST(InodeTableTest, AnInodeInUseOutlivesItsLookups) {
  InodeTable table("p/");
  InodePtr held = table.Acquire(kRootInode, "f", NodeKind::kFile);
  const InodeId id = held->id;
  table.Forget(id, 1);
  EXPECT_EQ(*table.PathOf(*held), "p/f");
  held = nullptr;
  EXPECT_FALSE(table.Find(id));
  EXPECT_EQ(table.FindChildId(kRootInode, "f"), 0u);
}

TEST(InodeTableTest, NumbersAreNeverUsedTwice) {
  InodeTable table("");
  std::set<InodeId> seen = {kRootInode};
  for (int i = 0; i < 1000; ++i) {
    const InodeId id = table.Acquire(kRootInode, "same", NodeKind::kFile)->id;
    EXPECT_TRUE(seen.insert(id).second);
    table.Forget(id, 1);
    EXPECT_FALSE(table.Find(id));
  }
}

TEST(InodeTableTest, ADirectoryStaysAsLongAsWhatIsBelow) {
  InodeTable table("");
  const InodeId directory = table.Acquire(kRootInode, "d", NodeKind::kDirectory)->id;
  const InodeId file = table.Acquire(directory, "f", NodeKind::kFile)->id;
  table.Forget(directory, 1);
  EXPECT_EQ(*table.PathOf(**table.Find(file)), "d/f");
  table.Forget(file, 1);
  EXPECT_FALSE(table.Find(directory));
}

TEST(InodeTableTest, LocalChildrenComeByNameAndMoveAlong) {
  InodeTable table("");
  const InodeId d = table.Acquire(kRootInode, "d", NodeKind::kDirectory)->id;
  for (const char* name : {"b", "a", "stored"}) {
    table.SetLocal(*table.Acquire(kRootInode, name, NodeKind::kFile), std::string_view(name) != "stored");
  }
  auto names = [&](InodeId parent) {
    std::string all;
    for (const auto& child : table.LocalChildren(parent)) all += child.name + " ";
    return all;
  };
  EXPECT_EQ(names(kRootInode), "a b ");
  table.Move(*table.FindChild(kRootInode, "a"), d, "x");
  table.Unlink(*table.FindChild(kRootInode, "b"));
  EXPECT_EQ(names(kRootInode), "");
  EXPECT_EQ(names(d), "x ");
}

/// Against maps of what should be there.
TEST(InodeTableTest, AgreesWithAModel) {
  struct Held {
    std::string path;  ///< empty: it has lost its name
    std::uint64_t lookups;
  };
  InodeTable table("");
  std::map<InodeId, Held> model;
  std::map<std::string, InodeId> names;
  Random random(3);
  auto name = [&] { return std::to_string(random.Next() % 300); };
  auto lose = [&](const std::string& at) {
    if (auto found = names.find(at); found != names.end()) {
      model[found->second].path.clear();
      names.erase(found);
    }
  };
  auto any = [&] { return std::next(model.begin(), static_cast<std::ptrdiff_t>(random.Next() % model.size()))->first; };
  for (int step = 0; step < 20'000; ++step) {
    const auto what = random.Next() % 8;
    if (what < 3 || model.empty()) {
      const std::string at = name();
      const InodeId id = table.Acquire(kRootInode, at, NodeKind::kFile)->id;
      ASSERT_TRUE(!names.contains(at) || names[at] == id);
      names[at] = id;
      model[id].path = at;
      ++model[id].lookups;
    } else if (what < 6) {
      const InodeId id = any();
      table.Forget(id, 1);
      if (--model[id].lookups == 0) {
        if (!model[id].path.empty()) names.erase(model[id].path);
        model.erase(id);
      }
    } else if (const InodeId id = any(); what == 6) {
      table.Unlink(**table.Find(id));
      lose(model[id].path);
    } else {
      const std::string to = name();
      table.Move(**table.Find(id), kRootInode, to);
      if (model[id].path != to) lose(to);
      names.erase(model[id].path);
      model[id].path = to;
      names[to] = id;
    }
    if (step % 200 != 0) continue;
    for (const auto& [id, held] : model) {
      auto inode = table.Find(id);
      ASSERT_TRUE(inode);
      ASSERT_EQ(table.PathOf(**inode).value_or(""), held.path);
      if (held.path.empty()) continue;
      ASSERT_EQ(table.FindChildId(kRootInode, held.path), id);
    }
    for (int i = 0; i < 300; ++i)
      ASSERT_EQ(table.FindChildId(kRootInode, std::to_string(i)) != 0, names.contains(std::to_string(i)));
  }
}

TEST(InodeTableTest, ManyThreadsUseAndForgetTheSameNames) {
  InodeTable table("");
  std::vector<std::jthread> threads;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&table, seed] {
      Random random(seed);
      for (int i = 0; i < 3000; ++i) {
        InodePtr inode = table.Acquire(kRootInode, std::to_string(random.Next() % 4), NodeKind::kFile);
        {
          MutexLock lock(inode->mutex);
          ++inode->reported.size;
        }
        EXPECT_EQ(table.Find(inode->id).value(), inode);
        const InodeId id = inode->id;
        if (random.Next() % 2 == 0) inode = nullptr;
        table.Forget(id, 1);
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(table.InUse().empty());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(table.FindChildId(kRootInode, std::to_string(i)), 0u);
}

}  // namespace
}  // namespace millrace::vfs
