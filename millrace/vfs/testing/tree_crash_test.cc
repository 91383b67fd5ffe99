// A process is killed before every step that it takes: every system call that changes its staging folder, and every
// request that changes the store. What it leaves is taken over by the next mount, which must show, and publish, what
// the program was told to be done, the old or the new for what was under way, and leave nothing else behind.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <thread>

#include "millrace/base/files/managed_folder.h"
#include "millrace/vfs/testing/crash_simulation.h"
#include "millrace/vfs/testing/driver.h"
#include "millrace/vfs/testing/model.h"

namespace millrace::vfs {
namespace {

using Handles = std::map<int, std::unique_ptr<File>>;

constexpr Duration kPublishDelay = std::chrono::seconds(3);

/// Publications in the background go on beside the program's calls: no two runs are the same then. To look for faults
/// that need such a coincidence, not to guard.
bool WithRaces() { return std::getenv("MILLRACE_CRASH_RACES") != nullptr; }

/// What a program that uses the tree has been told: names and contents that outlive it, and files that it has open.
struct World {
  struct Open {
    std::string path;  ///< empty: it has no name any more
    std::string content;
    bool changed = false;
  };
  Model durable;
  std::map<int, Open> open;

  bool IsOpen(const std::string& path) const {
    return std::ranges::any_of(open, [&](const auto& each) { return each.second.path == path; });
  }
  bool HasOpenBelow(const std::string& directory) const {
    return std::ranges::any_of(open, [&](const auto& each) { return each.second.path.starts_with(directory + "/"); });
  }
  void Publish(int handle) {
    Open& file = open.at(handle);
    if (!file.path.empty() && file.changed) durable.files[file.path] = file.content;
    file.changed = false;
  }
};

/// One thing that a program does.
struct Act {
  std::string what;
  std::function<Status(Driver&, Handles&)> run;
  std::function<void(World&)> apply;  ///< when it is done
  /// States that may be left when it is cut off, besides that before and that after it.
  std::function<std::vector<Model>(World)> between = [](const World&) { return std::vector<Model>(); };
};

/// Acts drawn from a seed that all succeed, and the world before each and after the last.
class Script {
 public:
  Script(std::uint64_t seed, int length) : random_(seed) {
    for (const char* directory : {"a", "b"}) Mkdir(directory);
    while (static_cast<int>(acts_.size()) < length) Draw();
    for (int handle : {0, 1}) {
      if (world_.open.contains(handle)) Close(handle);
    }
    worlds_.push_back(world_);
  }
  const std::vector<Act>& acts() const { return acts_; }
  /// Before the act of that number.
  const World& world(std::size_t number) const { return worlds_[number]; }

 private:
  void Add(Act act) {
    worlds_.push_back(world_);
    act.apply(world_);
    acts_.push_back(std::move(act));
  }

  void Draw() {
    const std::string p = Path(), q = Path();
    const int handle = static_cast<int>(random_.Below(2));
    const bool is_open = world_.open.contains(handle);
    switch (random_.Below(16)) {
      case 0:
      case 1:
        if (IsFree(p)) Write(p, Content());
        break;
      case 2:
        if (IsFile(p) && IsFree(p)) Edit(p);
        break;
      case 3:
        if (IsFile(p) && IsFree(p)) Resize(p);
        break;
      case 4:
        if (IsFile(p)) Unlink(p);
        break;
      case 5:
        if (!world_.durable.Exists(p) && !world_.IsOpen(p)) Mkdir(p);
        break;
      case 6:
        if (world_.durable.IsDirectory(p) && world_.durable.IsEmpty(p + "/") && !world_.HasOpenBelow(p)) Rmdir(p);
        break;
      case 7:
      case 8:
      case 9:
        if (IsFile(p) && !world_.durable.IsDirectory(q) && p != q && !(world_.IsOpen(q) && !IsFile(q))) Rename(p, q);
        break;
      case 10:
      case 11:
        if (MayMove(p, q)) RenameDirectory(p, q);
        break;
      case 12:
        if (IsFile(p) && !world_.IsOpen(p)) Chmod(p);
        break;
      case 13:
        if (!is_open && IsFree(p)) Open(handle, p);
        break;
      case 14:
        if (is_open) Change(handle);
        break;
      default:
        if (!is_open) {
          Wait();
        } else if (random_.Below(2) == 0) {
          Sync(handle);
        } else {
          Close(handle);
        }
    }
  }

  // --- What may be done where ---

  bool IsFile(const std::string& path) const { return world_.durable.files.contains(path); }
  bool IsFree(const std::string& path) const { return !world_.durable.IsDirectory(path) && !world_.IsOpen(path); }
  bool MayMove(const std::string& p, const std::string& q) const {
    const Model& durable = world_.durable;
    if (!durable.IsDirectory(p) || (q + "/").starts_with(p + "/") || durable.files.contains(q)) return false;
    if (world_.IsOpen(q) || world_.HasOpenBelow(q)) return false;
    return !durable.IsDirectory(q) || durable.IsEmpty(q + "/");
  }
  /// One whose directory exists.
  std::string Path() {
    static const std::vector<std::string> kNames = {"a", "b", "c"};
    while (true) {
      std::string path = kNames[random_.Below(kNames.size())];
      for (std::uint64_t depth = random_.Below(3); depth > 0; --depth) path += "/" + kNames[random_.Below(3)];
      if (world_.durable.ParentError(path) == Model::kOk) return path;
    }
  }
  /// Small, of several parts, and beyond what one request may copy.
  std::string Content() {
    const std::uint64_t sizes[] = {0, 60, 3'000, 9'000, 22'000, 70'000};
    return Noise(sizes[random_.Below(6)] + random_.Below(40), random_.Next());
  }

  // --- Acts ---

  void Write(const std::string& p, const std::string& text) {
    Add({.what = fmt::format("write {} ({} bytes)", p, text.size()),
         .run = [=](Driver& driver, Handles&) { return driver.Write(p, text); },
         .apply = [=](World& world) { world.durable.files[p] = text; }});
  }

  /// Into the middle, or over the end.
  void Edit(const std::string& p) {
    std::string now = world_.durable.files.at(p);
    const std::uint64_t at = random_.Below(now.size() + 1);
    const std::string piece = Noise(1 + random_.Below(6'000), random_.Next());
    Overlay(now, at, piece);
    Add({.what = fmt::format("edit {} at {} ({} bytes)", p, at, piece.size()),
         .run = [=](Driver& driver, Handles&) -> Status {
           auto file = MR_TRY(driver.Open(p, {.write = true}));
           MR_TRY(file->Write(at, AsBytes(piece)));
           MR_TRY(file->Flush());
           return file->Close();
         },
         .apply = [=](World& world) { world.durable.files[p] = now; }});
  }

  void Resize(const std::string& p) {
    const std::uint64_t size = random_.Below(30'000);
    Add({.what = fmt::format("truncate {} to {}", p, size),
         .run = [=](Driver& driver, Handles&) -> Status {
           MR_TRY(driver.tree->SetAttributes(MR_TRY(driver.Walk(p)), {.size = size}, nullptr));
           return {};
         },
         .apply = [=](World& world) { world.durable.files[p].resize(size); }});
  }

  void Unlink(const std::string& p) {
    Add({.what = "unlink " + p,
         .run = [=](Driver& driver, Handles&) { return driver.Unlink(p); },
         .apply =
             [=](World& world) {
               world.durable.Unlink(p);
               Forget(world, p);
             }});
  }

  void Mkdir(const std::string& p) {
    Add({.what = "mkdir " + p,
         .run = [=](Driver& driver, Handles&) { return driver.Mkdir(p); },
         .apply = [=](World& world) { world.durable.Mkdir(p); }});
  }

  void Rmdir(const std::string& p) {
    Add({.what = "rmdir " + p,
         .run = [=](Driver& driver, Handles&) { return driver.Rmdir(p); },
         .apply = [=](World& world) { world.durable.Rmdir(p); }});
  }

  void Rename(const std::string& p, const std::string& q) {
    auto publish = [=](World& world) {
      for (auto& [handle, file] : world.open) {
        if (file.path == p) world.Publish(handle);
      }
    };
    Add({.what = fmt::format("rename {} to {}", p, q),
         .run = [=](Driver& driver, Handles&) { return driver.Rename(p, q); },
         .apply =
             [=](World& world) {
               publish(world);
               Forget(world, q);
               world.durable.Rename(p, q, false);
               for (auto& [handle, file] : world.open) {
                 if (file.path == p) file.path = q;
               }
             },
         .between =
             [=](World world) {
               publish(world);
               std::vector<Model> states = {world.durable};
               Model both = world.durable;
               both.Rename(p, q, false);
               both.files[p] = both.files.at(q);
               if (auto bits = both.permissions.find(q); bits != both.permissions.end()) {
                 both.permissions[p] = bits->second;
               }
               states.push_back(std::move(both));
               return states;
             }});
  }

  void RenameDirectory(const std::string& p, const std::string& q) {
    auto below = [=](const World::Open& file) { return file.path.starts_with(p + "/"); };
    Add({.what = fmt::format("rename directory {} to {}", p, q),
         .run = [=](Driver& driver, Handles&) { return driver.Rename(p, q); },
         .apply =
             [=](World& world) {
               for (auto& [handle, file] : world.open) {
                 if (below(file)) world.Publish(handle);
               }
               world.durable.Rename(p, q, false);
               for (auto& [handle, file] : world.open) {
                 if (below(file)) file.path = q + file.path.substr(p.size());
               }
             },
         .between =
             [=](const World& world) {
               std::vector<Model> states;
               for (unsigned published = 1; published < 4; ++published) {
                 World some = world;
                 for (auto& [handle, file] : some.open) {
                   if (below(file) && (published >> handle & 1) != 0) some.Publish(handle);
                 }
                 states.push_back(std::move(some.durable));
               }
               return states;
             }});
  }

  void Chmod(const std::string& p) {
    const auto bits = static_cast<std::uint32_t>(random_.Below(01000));
    Add({.what = fmt::format("chmod {:o} {}", bits, p),
         .run = [=](Driver& driver, Handles&) -> Status {
           MR_TRY(driver.tree->SetAttributes(MR_TRY(driver.Walk(p)), {.permissions = bits}, nullptr));
           return {};
         },
         .apply = [=](World& world) { world.durable.Chmod(p, bits); }});
  }

  void Open(int handle, const std::string& p) {
    const bool exists = IsFile(p);
    World::Open open{.path = p, .content = exists ? world_.durable.files.at(p) : "", .changed = !exists};
    Add({.what = fmt::format("open {} as {}", p, handle),
         .run = [=](Driver& driver, Handles& handles) -> Status {
           handles[handle] = MR_TRY(exists ? driver.Open(p, {.write = true}) : driver.Create(p));
           return {};
         },
         .apply = [=](World& world) { world.open[handle] = open; }});
  }

  void Change(int handle) {
    const World::Open& file = world_.open.at(handle);
    const std::uint64_t size = file.content.size();
    if (random_.Below(4) == 0) {
      const std::uint64_t to = random_.Below(size + 5'000);
      Add({.what = fmt::format("truncate {} to {}", handle, to),
           .run = [=](Driver&, Handles& handles) { return handles.at(handle)->Truncate(to); },
           .apply =
               [=](World& world) {
                 World::Open& changed = world.open.at(handle);
                 changed.changed = changed.changed || changed.content.size() != to;
                 changed.content.resize(to);
               }});
      return;
    }
    const std::uint64_t at = random_.Below(3) == 0 ? random_.Below(size + 1) : size;
    const std::string piece = Noise(1 + random_.Below(14'000), random_.Next());
    Add({.what = fmt::format("write {} at {} ({} bytes)", handle, at, piece.size()),
         .run = [=](Driver&, Handles& handles) { return handles.at(handle)->Write(at, AsBytes(piece)); },
         .apply =
             [=](World& world) {
               Overlay(world.open.at(handle).content, at, piece);
               world.open.at(handle).changed = true;
             }});
  }

  void Sync(int handle) {
    Add({.what = fmt::format("fsync {}", handle),
         .run = [=](Driver&, Handles& handles) { return handles.at(handle)->Sync(); },
         .apply = [=](World& world) { world.Publish(handle); }});
  }

  void Close(int handle) {
    Add({.what = fmt::format("close {}", handle),
         .run = [=](Driver&, Handles& handles) -> Status {
           std::unique_ptr<File> file = std::move(handles.at(handle));
           MR_TRY(file->Flush());
           return file->Close();
         },
         .apply =
             [=](World& world) {
               world.Publish(handle);
               world.open.erase(handle);
             }});
  }

  /// What waits for its publication has its turn; the program goes on after that, or, with races, at once.
  void Wait() {
    Add({.what = "wait",
         .run = [](Driver& driver, Handles&) -> Status {
           driver.clock.Advance(2 * kPublishDelay);
           auto busy = [&](const PendingWrites& now) {
             return now.waiting > 0 && now.failing == 0;
           };  // a dead one fails
           while (!WithRaces() && busy(driver.tree->pending())) std::this_thread::yield();
           return {};
         },
         .apply = [](World&) {}});
  }

  static void Overlay(std::string& content, std::uint64_t at, const std::string& piece) {
    content.resize(std::max<std::size_t>(content.size(), at + piece.size()));
    content.replace(at, piece.size(), piece);
  }
  static void Forget(World& world, const std::string& path) {
    for (auto& [handle, file] : world.open) {
      if (file.path == path) file.path.clear();
    }
  }

  Random random_;
  World world_;
  std::vector<World> worlds_;
  std::vector<Act> acts_;
};

/// A process that runs a script, is killed, and what is found afterwards.
class TreeCrashTest : public testing::TestWithParam<std::tuple<bool, int>> {
 protected:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  static TreeOptions OptionsFor(const std::filesystem::path& staging, std::string owner) {
    TreeOptions options;
    options.close_async = std::get<0>(GetParam());
    options.publish_delay = WithRaces() ? std::chrono::seconds(1) : kPublishDelay;
    options.staging_directory = staging;
    options.owner = std::move(owner);
    options.owner_alive = [](std::string_view name) { return std::optional<bool>(name == "next"); };
    return options;
  }

  /// Runs the script in a process that dies before step `dies_at`; gives the act it was at, and the steps it took.
  struct Death {
    std::size_t act = 0;
    std::uint64_t steps = 0;
  };
  static Death RunUntilDeath(const Script& script, std::shared_ptr<object::Store> bucket,
                             const std::filesystem::path& remains, std::uint64_t dies_at) {
    TempDir staging = *TempDir::Create();
    CrashSimulation life(staging.path(), remains, dies_at);
    Driver driver(OptionsFor(staging.path(), "dead"), Driver::Time::kTicks, MakeCrashingStore(std::move(bucket), life));
    Handles handles;
    Death death;
    for (; death.act < script.acts().size(); ++death.act) {
      Status done = script.acts()[death.act].run(driver, handles);
      if (life.dead()) break;
      EXPECT_TRUE(done) << script.acts()[death.act].what << ": " << done.error().ToString();
      if (!done) break;
    }
    life.Die();
    death.steps = life.steps();
    handles.clear();
    driver.tree.reset();
    return death;
  }

  /// Mounts what is left, and says what there is.
  static void ExpectRecovered(const Script& script, std::size_t act, std::shared_ptr<object::Store> bucket,
                              const std::filesystem::path& remains) {
    std::vector<Model> allowed = {script.world(act).durable};
    if (act < script.acts().size()) {
      allowed.push_back(script.world(act + 1).durable);
      for (Model& state : script.acts()[act].between(script.world(act))) allowed.push_back(std::move(state));
    }
    Driver next(OptionsFor(remains, "next"), Driver::Time::kTicks, bucket);
    EXPECT_TRUE(next.tree->recovery());
    Status flushed = next.tree->FlushAll();
    EXPECT_TRUE(flushed) << flushed.error().ToString();
    const Model seen = ModelOf(next, Contents::kOfFiles);
    EXPECT_TRUE(std::ranges::find(allowed, seen) != allowed.end())
        << "it left   " << Describe(seen) << "\nbefore    " << Describe(allowed[0]) << "\nafter     "
        << Describe(allowed.size() > 1 ? allowed[1] : allowed[0]);
    EXPECT_TRUE(ModelOf(next, Contents::kOfObjects) == seen) << "what is published is not what was seen";
    next.tree.reset();

    const auto uploads = *object::ListUploads(*bucket, "");
    for (const auto& upload : uploads) ADD_FAILURE() << "an upload of " << upload.key;
    const auto listed = *object::List(*bucket, {});
    for (const auto& object : listed.objects) {
      const bool known = seen.directories.contains(object.key) || seen.files.contains(object.key) ||
                         object.key == ".millrace/root";  // its marker
      EXPECT_TRUE(known) << "a stray object " << object.key;
    }
    for (const auto& entry : std::filesystem::directory_iterator(remains)) {  // empty files serve again
      if (entry.path().filename() == ManagedFolder::kMarkerName) continue;
      EXPECT_TRUE(entry.path().extension() != ".record" && entry.file_size() == 0) << entry.path().filename();
    }
  }

  FakeClock clock_;
  std::shared_ptr<object::Store> Bucket() {
    return object::MakeMemoryStore({.limits = {.min_part = 4 * kKiB, .max_put = 64 * kKiB},
                                    .inline_completions = true,
                                    .md5_etags = true,
                                    .clock = &clock_});
  }
};

TEST_P(TreeCrashTest, WhatWasAcknowledgedIsThereAndNothingElse) {
  const auto seed = static_cast<std::uint64_t>(std::get<1>(GetParam()));
  const Script script(seed, 40);
  std::uint64_t steps;
  {
    TempDir remains = *TempDir::Create();
    steps = RunUntilDeath(script, Bucket(), remains.path(), kNever).steps;
  }
  ASSERT_FALSE(HasFailure());
  const char* every = std::getenv("MILLRACE_CRASH_EVERY_STEP");
  const std::uint64_t points = every ? steps + 1 : std::min<std::uint64_t>(steps + 1, 30);
  for (std::uint64_t point = 0; point < points; ++point) {
    const std::uint64_t dies_at = points <= 1 ? 0 : point * steps / (points - 1);
    auto bucket = Bucket();
    TempDir remains = *TempDir::Create();
    const Death death = RunUntilDeath(script, bucket, remains.path(), dies_at);
    const std::string at = death.act < script.acts().size() ? script.acts()[death.act].what : "the end";
    SCOPED_TRACE(fmt::format("killed before step {} of {}, in act {}: {}", dies_at, steps, death.act, at));
    ExpectRecovered(script, death.act, bucket, remains.path());
    if (!HasFailure()) continue;
    for (std::size_t i = 0; i <= death.act && i < script.acts().size(); ++i) {
      GTEST_LOG_(INFO) << "act " << i << ": " << script.acts()[i].what;
    }
    return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, TreeCrashTest, testing::Combine(testing::Bool(), testing::Range(1, 13)),
                         [](const auto& info) {
                           return fmt::format("{}{}", std::get<0>(info.param) ? "Async" : "Sync",
                                              std::get<1>(info.param));
                         });

}  // namespace
}  // namespace millrace::vfs
