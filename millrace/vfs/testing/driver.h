// Drives a Tree by paths, as a kernel does on behalf of programs: for tests.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"
#include "millrace/transfer/stream/multipart_writer.h"
#include "millrace/vfs/tree.h"

namespace millrace::vfs {

inline std::string Noise(std::size_t size, std::uint64_t seed = 1) {
  std::string text(size, '\0');
  Random random(seed);
  for (char& c : text) c = static_cast<char>(random.Next());
  return text;
}

/// Returns the error code of a result; kInternal if it is a success.
inline Code CodeOf(const auto& result) { return result ? Code::kInternal : result.error().code(); }
/// A FakeClock that advances with each call of Now().
class TickingClock final : public Clock {
 public:
  explicit TickingClock(FakeClock& clock) : clock_(clock) {}
  TimePoint Now() const override {
    MutexLock lock(mutex_);
    clock_.Advance(std::chrono::nanoseconds(1));
    return clock_.Now();
  }
  WallTime Wall() const override { return clock_.Wall(); }
  bool SleepUntil(TimePoint when, std::stop_token stop) override { return clock_.SleepUntil(when, std::move(stop)); }

 private:
  FakeClock& clock_;
  mutable Mutex mutex_;
};

/// A tree over a memory store that can be made to fail, with small blocks and parts. Its clock stands still, unless
/// constructed with kTicks or kRuns. Tests with several threads need a clock that advances, because a tree orders the
/// answers of the store by the times of its requests.
class Driver {
 public:
  enum class Time { kStands, kTicks, kRuns };
  /// `bucket`: shared with other drivers; null: makes a bucket.
  explicit Driver(TreeOptions options = {}, Time time = Time::kStands, std::shared_ptr<object::Store> bucket = nullptr)
      : store_clock_(time == Time::kRuns ? SystemClock() : clock),
        inner(bucket ? std::move(bucket) : MakeBucket(store_clock_)),
        options_(std::move(options)) {
    if (time == Time::kStands) options_.clock = &clock;
    if (time == Time::kTicks) options_.clock = &ticking;
    options_.read_part_bytes = 32 * kKiB;
    options_.write_part_bytes = 4 * kKiB;
    if (options_.staging_directory.empty()) options_.staging_directory = staging.path();
    Mount();
  }
  static std::shared_ptr<object::Store> MakeBucket(Clock& clock) {
    return object::MakeMemoryStore({.limits = {.min_part = 4 * kKiB, .max_put = 64 * kKiB}, .clock = &clock});
  }

  /// As after kill -9: unpublished files stay staged, and the new tree publishes them.
  void Remount(bool read_only = false) {
    tree.reset();
    cache.reset();
    options_.read_only = read_only;
    Mount();
    if (!read_only) (void)tree->FlushAll();
  }

  /// Returns the inode of a path, with one lookup that is never taken back: tests are short.
  Result<InodeId> Walk(std::string_view path) {
    InodeId at = kRootInode;
    for (std::string_view name : Split(path, '/')) {
      if (name.empty()) continue;
      auto entry = MR_TRY(tree->Lookup(at, name));
      if (!entry) return Fail(Code::kNotFound, "no {}", path);
      at = entry->attributes.inode;
    }
    return at;
  }
  struct Split2 {
    InodeId parent;
    std::string name;
  };
  Result<Split2> WalkParent(std::string_view path) {
    auto slash = path.rfind('/');
    if (slash == std::string_view::npos) return Split2{kRootInode, std::string(path)};
    return Split2{MR_TRY(Walk(path.substr(0, slash))), std::string(path.substr(slash + 1))};
  }

  Result<NodeAttributes> Stat(std::string_view path) {
    return MR_TRY(tree->GetAttributes(MR_TRY(Walk(path)))).attributes;
  }
  Result<std::unique_ptr<File>> Open(std::string_view path, OpenFlags flags = {}) {
    return tree->OpenFile(MR_TRY(Walk(path)), flags);
  }
  Result<std::unique_ptr<File>> Create(std::string_view path, bool exclusive = false) {
    auto [parent, name] = MR_TRY(WalkParent(path));
    return MR_TRY(tree->Create(parent, name, exclusive)).file;
  }
  static Result<std::string> ReadAll(File& file, std::size_t step = 3000) {
    std::string all, piece(step, '\0');
    while (true) {
      std::size_t n = MR_TRY(file.Read(all.size(), AsWritableBytes(piece)));
      if (n == 0) return all;
      all.append(piece, 0, n);
    }
  }
  Result<std::string> Read(std::string_view path) { return ReadAll(*MR_TRY(Open(path))); }
  /// open(O_CREAT|O_TRUNC), write, close.
  Status Write(std::string_view path, std::string_view content) {
    auto known = Walk(path);
    auto file = MR_TRY(known ? tree->OpenFile(*known, {.write = true, .truncate = true}) : Create(path));
    for (std::size_t at = 0; at < content.size(); at += 3000) {
      MR_TRY(file->Write(at, AsBytes(content.substr(at, 3000))));
    }
    MR_TRY(file->Flush());
    return file->Close();
  }
  Status Append(std::string_view path, std::string_view content) {
    auto file = MR_TRY(Open(path, {.write = true}));
    MR_TRY(file->Write(MR_TRY(Stat(path)).size, AsBytes(content)));
    MR_TRY(file->Flush());
    return file->Close();
  }
  Status Unlink(std::string_view path) {
    auto [parent, name] = MR_TRY(WalkParent(path));
    return tree->Unlink(parent, name);
  }
  Status Mkdir(std::string_view path) {
    auto [parent, name] = MR_TRY(WalkParent(path));
    MR_TRY(tree->MakeDirectory(parent, name));
    return {};
  }
  Status Rmdir(std::string_view path) {
    auto [parent, name] = MR_TRY(WalkParent(path));
    return tree->RemoveDirectory(parent, name);
  }
  Status Rename(std::string_view from, std::string_view to, RenameFlags flags = {}) {
    auto a = MR_TRY(WalkParent(from)), b = MR_TRY(WalkParent(to));
    return tree->Rename(a.parent, a.name, b.parent, b.name, flags);
  }
  /// Names in listing order; directories end with '/'.
  Result<std::vector<std::string>> List(std::string_view path = "") {
    auto directory = MR_TRY(tree->OpenDirectory(MR_TRY(Walk(path))));
    std::vector<std::string> names;
    MR_TRY(ReadToEnd(*directory, [&](const DirectoryEntry& entry) {
      names.push_back(std::string(entry.name) + (entry.kind == NodeKind::kDirectory ? "/" : ""));
    }));
    return names;
  }
  static Status ReadToEnd(Directory& directory, const std::function<void(const DirectoryEntry&)>& visit) {
    std::uint64_t cookie = 0;
    for (bool more = true; more;) {
      more = false;
      MR_TRY(directory.ReadPlus(cookie, [&](const DirectoryEntry& entry) {
        visit(entry);
        cookie = entry.next_cookie;
        return more = true;
      }));
    }
    return {};
  }

  // Changes by another client.
  void Put(const std::string& key, std::string_view content) {
    transfer::MultipartWriter writer(*inner, budget, key, {});
    EXPECT_TRUE(writer.Write(AsBytes(content)));
    EXPECT_TRUE(writer.Finish());
  }
  void Delete(const std::string& key) { EXPECT_TRUE(object::Delete(*inner, key)); }
  std::string Object(const std::string& key) {
    auto content = object::GetAll(*inner, key, 64 * kMiB);
    return content && *content ? (*content)->bytes : "<absent>";
  }
  void PassTtl() { clock.Advance(options_.metadata_ttl + options_.negative_ttl + std::chrono::seconds(5)); }

  FakeClock clock;
  TickingClock ticking{clock};
  MemoryBudget budget{64 * kMiB};
  Clock& store_clock_;  // the system's where the tree's is: deadlines go from one to the other
  std::shared_ptr<object::Store> inner;
  std::shared_ptr<object::FaultStore> store = object::FaultStore::Create(inner, 1, store_clock_);
  TempDir staging = *TempDir::Create();
  std::unique_ptr<cache::BlockCache> cache;
  std::unique_ptr<Tree> tree;

 private:
  void Mount() {
    cache = *cache::BlockCache::Open(*store, budget,
                                     {.block_bytes = 4 * kKiB, .max_fetch_bytes = 32 * kKiB, .memory_bytes = 2 * kMiB});
    auto opened = Tree::Open(*store, *cache, budget, options_);
    EXPECT_TRUE(opened) << opened.error().ToString();
    tree = *std::move(opened);
  }

  TreeOptions options_;
};

}  // namespace millrace::vfs
