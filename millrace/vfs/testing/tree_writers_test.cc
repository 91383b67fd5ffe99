// Two mounts of one bucket change the same names. What one mount reports as done, every mount must find.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include "millrace/vfs/testing/driver.h"
#include "millrace/vfs/testing/model.h"

namespace millrace::vfs {
namespace {

/// Random steps of two mounts, with files open across steps, and a model of what was published.
class Writers {
 public:
  explicit Writers(std::uint64_t seed) : random_(seed), fresh_names_(seed % 3 != 0) {
    TreeOptions options;
    if (fresh_names_) options.metadata_ttl = options.negative_ttl = {};
    for (auto& mount : mounts_) mount.emplace(options, Driver::Time::kTicks, bucket_);
  }

  void Step() {
    const std::size_t who = random_.Below(2);
    const std::string p = Path(), q = Path();
    switch (random_.Below(9)) {
      case 0:
        return Create(who, p);
      case 1:
        return Edit(who, p);
      case 2:
      case 3:
        return WriteOn(who);
      case 4:
      case 5:
        return Close(who);
      case 6:
        return Unlink(who, p);
      case 7:
        return Rename(who, p, q);
      default:
        return random_.Below(3) == 0 ? RenameDirectory(who) : MakeOrRemove(who);
    }
  }
  void CloseAll() {
    for (std::size_t who : {0, 1}) {
      while (!open_[who].empty()) Close(who);
    }
  }

  /// Returns what a new mount finds.
  void Compare() {
    for (auto& mount : mounts_) mount->clock.Advance(std::chrono::milliseconds(1));
    Driver fresh({}, Driver::Time::kTicks, bucket_);
    Model found = ModelOf(fresh, Contents::kOfFiles);
    if (!fresh_names_) found.directories = model_.directories;  // a mount with outdated names may recreate one
    EXPECT_EQ(Describe(found), Describe(model_)) << what_;
    EXPECT_TRUE(found == model_) << what_ << ": contents differ";
  }
  void ExpectNothingLeft() {
    EXPECT_TRUE(object::ListUploads(*mounts_[0]->inner, "")->empty());
    auto page = object::List(*mounts_[0]->inner, {});
    ASSERT_TRUE(page);
    for (const auto& object : page->objects) {
      const bool marker = object.key.ends_with('/') || object.key == ".millrace/root";
      EXPECT_TRUE(marker || model_.files.contains(object.key)) << object.key;
    }
    for (auto& mount : mounts_) EXPECT_EQ(mount->tree->pending().waiting, 0);
  }
  const std::string& what() const { return what_; }

 private:
  /// An open file of one mount. Its base, if any, was the published content at the open.
  struct Handle {
    std::string path, content;
    std::optional<std::string> base;
    int version = 0;     ///< of the base
    bool dirty = false;  ///< to be published
    bool linked = true;
    bool here_only = false;  ///< nothing had the name, and nothing was published yet
    std::unique_ptr<File> file;
  };
  using Handles = std::vector<Handle>;

  void Create(std::size_t who, const std::string& path) {
    Say(who, "create", path);
    if (Find(who, path) || open_[who].size() > 2) return;
    auto known = mounts_[who]->Walk(path);
    auto file =
        known ? mounts_[who]->tree->OpenFile(*known, {.write = true, .truncate = true}) : mounts_[who]->Create(path);
    if (!file) return Explained(CodeOf(file));
    open_[who].push_back(
        {.path = path, .content = {}, .base = {}, .dirty = true, .here_only = !known, .file = *std::move(file)});
  }
  void Edit(std::size_t who, const std::string& path) {
    Say(who, "edit", path);
    if (Find(who, path) || open_[who].size() > 2) return;
    auto file = mounts_[who]->Open(path, {.write = true});
    if (!file) return Explained(CodeOf(file));
    // An open finds what was published, whatever this mount remembers of names.
    auto content = Driver::ReadAll(**file);
    ASSERT_TRUE(content) << what_ << content.error().ToString();
    ASSERT_TRUE(model_.files.contains(path)) << what_;
    EXPECT_TRUE(*content == model_.files.at(path)) << what_ << ": an old version";
    open_[who].push_back(
        {.path = path, .content = *content, .base = *content, .version = versions_[path], .file = *std::move(file)});
  }
  void WriteOn(std::size_t who) {
    if (open_[who].empty()) return;
    Handle& handle = open_[who][random_.Below(open_[who].size())];
    Say(who, "write", handle.path);
    const std::string text = Noise(1 + random_.Below(random_.Below(4) == 0 ? 20'000 : 500), random_.Next());
    const std::uint64_t at = random_.Below(3) == 0 ? random_.Below(handle.content.size() + 1) : handle.content.size();
    Status written = handle.file->Write(at, AsBytes(text));
    if (!written) {
      ExpectReplaced(handle, CodeOf(written));
      return;
    }
    handle.content.resize(std::max(handle.content.size(), at + text.size()));
    handle.content.replace(at, text.size(), text);
    handle.dirty = true;
  }
  void Close(std::size_t who) {
    if (open_[who].empty()) return;
    const auto at = open_[who].begin() + static_cast<Handles::difference_type>(random_.Below(open_[who].size()));
    Handle handle = std::move(*at);
    open_[who].erase(at);
    Say(who, "close", handle.path);
    Status closed = handle.file->Flush();
    if (Status last = handle.file->Close(); closed) closed = std::move(last);
    if (!handle.linked || !handle.dirty) return;
    if (closed) return Publish(handle);
    ExpectReplaced(handle, CodeOf(closed));
  }
  void Publish(Handle& handle) {
    if (handle.base) {
      EXPECT_TRUE(model_.files.contains(handle.path) && model_.files.at(handle.path) == *handle.base)
          << what_ << " was built on a version that others had replaced";
    }
    handle.base = handle.content;
    handle.version = versions_[handle.path] = ++steps_;
    handle.dirty = handle.here_only = false;
    model_.files[handle.path] = handle.content;
    model_.directories.insert(Model::Parent(handle.path));
  }

  void Unlink(std::size_t who, const std::string& path) {
    Say(who, "unlink", path);
    Status unlinked = mounts_[who]->Unlink(path);
    if (!unlinked) return Explained(CodeOf(unlinked));
    Handle* handle = Find(who, path);
    if (handle) handle->linked = false;
    // Removing a file that is only local does not remove what another mount publishes meanwhile.
    if (handle && handle->here_only && mounts_[who]->Object(path) != "<absent>") return;
    model_.files.erase(path);
  }
  void Rename(std::size_t who, const std::string& from, const std::string& to) {
    Say(who, "rename", from + " " + to);
    if (from == to) return;
    Status renamed = mounts_[who]->Rename(from, to);
    Handle* moved = Find(who, from);
    if (!renamed) return Explained(CodeOf(renamed));
    if (moved && moved->dirty) Publish(*moved);
    ASSERT_TRUE(model_.files.contains(from)) << what_ << ": what is not there cannot be renamed";
    if (Handle* replaced = Find(who, to)) replaced->linked = false;
    versions_[to] = ++steps_;
    if (moved) moved->path = to, moved->version = steps_;
    model_.files[to] = model_.files.at(from);
    model_.files.erase(from);
    model_.directories.insert(Model::Parent(to));
  }
  void MakeOrRemove(std::size_t who) {
    const std::string path = random_.Below(2) == 0 ? "d" : "e";
    const bool make = random_.Below(2) == 0;
    Say(who, make ? "mkdir" : "rmdir", path);
    Status done = make ? mounts_[who]->Mkdir(path) : mounts_[who]->Rmdir(path);
    if (!done) return Explained(CodeOf(done));
    if (make) model_.directories.insert(path + "/");
    if (!make) {
      EXPECT_TRUE(model_.IsEmpty(path + "/")) << what_ << ": it was not empty";
      model_.directories.erase(path + "/");
    }
  }
  void RenameDirectory(std::size_t who) {
    const bool forth = random_.Below(2) == 0;
    const std::string from = forth ? "d" : "e", to = forth ? "e" : "d";
    Say(who, "rename", from + "/ " + to + "/");
    for (const Handle& handle : open_[who]) {
      if (handle.path.contains('/')) return;
    }
    Status renamed = mounts_[who]->Rename(from, to);
    if (!renamed) return Explained(CodeOf(renamed));
    EXPECT_EQ(CodeName(model_.RenameDirectory(from, to)), CodeName(Model::kOk)) << what_;
    for (const auto& [path, content] : model_.files) {
      if (path.starts_with(to + "/")) versions_[path] = ++steps_;
    }
  }

  std::string Path() {
    static const std::vector<std::string> kPaths = {"a", "b", "c", "d/a", "d/b", "e/a"};
    return kPaths[random_.Below(kPaths.size())];
  }
  Handle* Find(std::size_t who, const std::string& path) {
    auto found = std::ranges::find_if(open_[who], [&](const Handle& h) { return h.linked && h.path == path; });
    return found == open_[who].end() ? nullptr : &*found;
  }
  void Say(std::size_t who, std::string_view what, const std::string& path) {
    what_ = fmt::format("step {}: mount {}: {} {}", ++steps_, who, what, path);
    if (random_.Below(4) == 0) mounts_[who]->clock.Advance(std::chrono::milliseconds(random_.Below(1500)));
  }
  /// Checks that the error is one that a change by another mount can cause.
  void Explained(Code code) {
    const bool known = code == Code::kNotFound || code == Code::kStale || code == Code::kAlreadyExists ||
                       code == Code::kNotEmpty || code == Code::kNotDirectory || code == Code::kIsDirectory;
    EXPECT_TRUE(known) << what_ << ": " << CodeName(code);
  }
  void ExpectReplaced(const Handle& handle, Code code) {
    EXPECT_EQ(CodeName(code), CodeName(Code::kStale)) << what_;
    const bool still = handle.base && model_.files.contains(handle.path) && versions_[handle.path] == handle.version;
    EXPECT_FALSE(still && handle.linked) << what_ << ": nobody has replaced it";
  }

  Random random_;
  const bool fresh_names_;
  FakeClock clock_;
  std::shared_ptr<object::Store> bucket_ = Driver::MakeBucket(clock_);
  std::optional<Driver> mounts_[2];
  Handles open_[2];
  Model model_;
  std::map<std::string, int> versions_;  ///< of names: another one with each publication and rename
  std::string what_;
  int steps_ = 0;
};

class TreeWritersTest : public testing::TestWithParam<int> {};

TEST_P(TreeWritersTest, WhatOneMountClosedIsWhatEverybodyFinds) {
  Writers writers(static_cast<std::uint64_t>(GetParam()));
  for (int i = 0; i < 200; ++i) {
    writers.Step();
    writers.Compare();
    ASSERT_FALSE(HasFailure()) << "seed " << GetParam();
  }
  writers.CloseAll();
  writers.Compare();
  writers.ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Seeds, TreeWritersTest, testing::Values(12, 21, 22, 34, 44));

// --- At the same time ---

/// Returns content that shows whether it is complete: a seed, a length, and noise made from both.
std::string Record(std::uint64_t seed, std::uint64_t length) {
  std::string text(16, '\0');
  std::memcpy(text.data(), &seed, 8);
  std::memcpy(text.data() + 8, &length, 8);
  return text + Noise(length, seed);
}
/// Returns the seeds of the records in a content; nothing if the content is not made of whole records.
std::optional<std::vector<std::uint64_t>> SeedsOf(std::string_view content) {
  std::vector<std::uint64_t> seeds;
  while (!content.empty()) {
    if (content.size() < 16) return std::nullopt;
    std::uint64_t seed, length;
    std::memcpy(&seed, content.data(), 8);
    std::memcpy(&length, content.data() + 8, 8);
    if (length > 100'000 || content.substr(0, 16 + length) != Record(seed, length)) return std::nullopt;
    seeds.push_back(seed);
    content.remove_prefix(16 + length);
  }
  return seeds;
}

/// One of several threads, each on a mount of its own. On one mount, files would be shared as on a local disk.
class Worker {
 public:
  Worker(Driver& mount, std::uint64_t number) : mount_(mount), number_(number), random_(number + 1) {}

  void Run() {
    for (int i = 0; i < 30; ++i) {
      const std::string p = Path(), q = Path();
      switch (random_.Below(7)) {
        case 0:
        case 1:
          (void)mount_.Write(p, Next());
          break;
        case 2:
          (void)mount_.Append(p, Next());
          break;
        case 3:
          (void)mount_.Unlink(p);
          break;
        case 4:
          (void)mount_.Rename(p, q);
          break;
        case 5:
          AppendToLog();
          break;
        default:
          if (auto read = mount_.Read(p); read && !SeedsOf(*read)) ADD_FAILURE() << p << " is a mixture";
          own_ = Next();
          EXPECT_TRUE(mount_.Write(own_name(), own_));
      }
    }
  }
  std::string own_name() const { return fmt::format("own{}", number_); }
  const std::string& own() const { return own_; }
  const std::vector<std::uint64_t>& logged() const { return logged_; }

 private:
  std::string Next() {
    seed_ = number_ << 32 | ++written_;
    return Record(seed_, random_.Below(random_.Below(3) == 0 ? 20'000 : 300));
  }
  std::string Path() { return fmt::format("f{}", random_.Below(3)); }
  /// Retries changes that are refused because another mount has replaced their base.
  void AppendToLog() {
    const std::string text = Next();
    Status appended = mount_.Append("log", text);
    for (int i = 0; !appended && i < 10'000; ++i) {
      EXPECT_EQ(CodeName(appended.error().code()), CodeName(Code::kStale)) << appended.error().ToString();
      appended = mount_.Append("log", text);
    }
    ASSERT_TRUE(appended) << appended.error().ToString();
    logged_.push_back(seed_);
  }

  Driver& mount_;
  const std::uint64_t number_;
  Random random_;
  std::uint64_t seed_ = 0, written_ = 0;
  std::string own_;
  std::vector<std::uint64_t> logged_;
};

TEST(TreeWritersTogetherTest, NoMixtureNoLostAppendNothingLeft) {
  auto bucket = Driver::MakeBucket(SystemClock());
  std::vector<std::unique_ptr<Driver>> mounts;
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint64_t n = 0; n < 3; ++n) {
    mounts.push_back(std::make_unique<Driver>(TreeOptions(), Driver::Time::kRuns, bucket));
    workers.push_back(std::make_unique<Worker>(*mounts.back(), n));
  }
  mounts[0]->Put("log", "");
  mounts[0]->Put("third", "untouched");
  {
    std::vector<std::jthread> threads;
    for (auto& worker : workers) threads.emplace_back([&] { worker->Run(); });
  }
  Driver fresh({}, Driver::Time::kRuns, bucket);
  Model found = ModelOf(fresh, Contents::kOfFiles);
  for (const auto& [path, content] : found.files) {
    EXPECT_TRUE(path == "third" || SeedsOf(content)) << path << " is a mixture";
  }
  EXPECT_EQ(found.files["third"], "untouched");
  std::vector<std::uint64_t> logged, expected;
  for (const auto& worker : workers) {
    EXPECT_TRUE(worker->own().empty() || found.files[worker->own_name()] == worker->own());
    expected.insert(expected.end(), worker->logged().begin(), worker->logged().end());
  }
  if (auto seeds = SeedsOf(found.files["log"])) logged = *seeds;
  std::ranges::sort(logged);
  std::ranges::sort(expected);
  EXPECT_EQ(logged, expected);
  EXPECT_TRUE(object::ListUploads(*bucket, "")->empty());
}

}  // namespace
}  // namespace millrace::vfs
