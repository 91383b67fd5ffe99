// A directory's rename is cut off at every request, users go on with what seems plausible to them, from the same mount
// and from another one, and then the rename is settled. Nothing may be lost that no user removed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "millrace/vfs/rename/rename_lease.h"
#include "millrace/vfs/rename/rename_recovery.h"
#include "millrace/vfs/testing/driver.h"

namespace millrace::vfs {
namespace {

constexpr const char* kRecords = ".millrace/renames/";

/// The bytes below all names of a bucket, without markers and records.
std::map<std::string, std::string> NamesAndBytes(object::Store& bucket) {
  std::map<std::string, std::string> found;
  EXPECT_TRUE(object::ListAll(bucket, {}, [&](const object::ListPage& page) {
    for (const auto& info : page.objects) {
      if (info.key.ends_with('/') || info.key.find(".millrace/") != std::string::npos) continue;
      auto content = object::GetAll(bucket, info.key, kMiB);
      EXPECT_TRUE(content && *content);
      if (content && *content) found[info.key] = (*content)->bytes;
    }
    return true;
  }));
  return found;
}

/// What users did to the names that they saw. A content that has a name here must be somewhere in the bucket.
class Names {
 public:
  explicit Names(std::map<std::string, std::string> names) : names_(std::move(names)) {}
  void Removed(const std::string& name) { names_.erase(name); }
  void Wrote(const std::string& name, const std::string& content) { names_[name] = content; }
  void Moved(const std::string& from, const std::string& to) {
    std::map<std::string, std::string> next;
    auto moves = [&](const std::string& name) { return name == from || name.starts_with(from + "/"); };
    for (const auto& [name, content] : names_) {
      if (!moves(name)) next[name] = content;
    }
    for (const auto& [name, content] : names_) {
      if (moves(name)) next[to + name.substr(from.size())] = content;  // replaces what was there
    }
    names_ = std::move(next);
  }
  const std::map<std::string, std::string>& all() const { return names_; }

 private:
  std::map<std::string, std::string> names_;
};

/// Removes what is below a directory, and the directory, as `rm -r` does. Goes on after failures.
void RemoveAll(Driver& d, const std::string& directory, Names& names) {
  auto listed = d.List(directory);
  if (!listed) return;
  for (std::string name : *listed) {
    const bool is_directory = name.ends_with('/');
    if (is_directory) name.pop_back();
    const std::string path = directory + "/" + name;
    if (is_directory) {
      RemoveAll(d, path, names);
    } else if (d.Unlink(path)) {
      names.Removed(path);
    }
  }
  (void)d.Rmdir(directory);
}

void Move(Driver& d, const std::string& from, const std::string& to, Names& names) {
  if (d.Rename(from, to)) names.Moved(from, to);
}

void WriteFile(Driver& d, const std::string& path, const std::string& content, Names& names) {
  if (d.Write(path, content)) names.Wrote(path, content);
}

struct Command {
  const char* what;
  std::function<void(Driver&, Names&)> run;
};

/// What a user may do after an error of `mv p/a p/b`, or without knowing of the rename.
const std::vector<Command>& Commands() {
  static const std::vector<Command> kCommands = {
      {"nothing", [](Driver&, Names&) {}},
      {"mv a b", [](Driver& d, Names& names) { Move(d, "p/a", "p/b", names); }},
      {"rm -r a", [](Driver& d, Names& names) { RemoveAll(d, "p/a", names); }},
      {"rm -r b", [](Driver& d, Names& names) { RemoveAll(d, "p/b", names); }},
      {"rm -r b; mv a b",
       [](Driver& d, Names& names) {
         RemoveAll(d, "p/b", names);
         Move(d, "p/a", "p/b", names);
       }},
      {"rm -r a; mv b a",
       [](Driver& d, Names& names) {
         RemoveAll(d, "p/a", names);
         Move(d, "p/b", "p/a", names);
       }},
      {"mv a c", [](Driver& d, Names& names) { Move(d, "p/a", "p/c", names); }},
      {"mv b c", [](Driver& d, Names& names) { Move(d, "p/b", "p/c", names); }},
      {"mv p q", [](Driver& d, Names& names) { Move(d, "p", "q", names); }},
      {"mv a/f b/f", [](Driver& d, Names& names) { Move(d, "p/a/f", "p/b/f", names); }},
      {"mv b/f b/g; echo > b/f",
       [](Driver& d, Names& names) {
         Move(d, "p/b/f", "p/b/g", names);
         WriteFile(d, "p/b/f", "9", names);
       }},
      {"echo > a/f", [](Driver& d, Names& names) { WriteFile(d, "p/a/f", "2", names); }},
      {"echo > b/f; rm a/f",
       [](Driver& d, Names& names) {
         WriteFile(d, "p/b/f", "3", names);
         if (d.Unlink("p/a/f")) names.Removed("p/a/f");
       }},
      {"echo > a/new; echo > b/s/new",
       [](Driver& d, Names& names) {
         WriteFile(d, "p/a/new", "4", names);
         WriteFile(d, "p/b/s/new", "5", names);
       }},
      {"chmod b/f; rm -r a",
       [](Driver& d, Names& names) {
         if (auto file = d.Walk("p/b/f")) (void)d.tree->SetAttributes(*file, {.permissions = 0600}, nullptr);
         RemoveAll(d, "p/a", names);
       }},
  };
  return kCommands;
}

/// What the store does to the mount that renames.
enum class Outage {
  kDeath,        ///< from a request on it gets no answer; the request has no effect
  kLostAnswer,   ///< the same, but that request takes effect
  kRecordsOnly,  ///< the record cannot be written or read from a write of it on, which takes effect
};

/// Who gives the commands, and who settles the rename afterwards.
enum class Ending {
  kSameMountSettles,   ///< the store comes back; the mount settles, and the commands are given there before and after
  kSameMountDies,      ///< the commands are given there, then it dies, and the next mount recovers
  kOtherMountRecovers  ///< it is dead; another mount, which was there before, gives the commands; a third one recovers
};

class RenameCrashTest : public testing::TestWithParam<std::tuple<Outage, Ending>> {
 protected:
  static TreeOptions OptionsOf(std::string owner) {
    TreeOptions options;
    options.owner = std::move(owner);
    options.owner_alive = [](std::string_view name) { return std::optional<bool>(name != "first"); };
    return options;
  }
  static std::shared_ptr<object::Store> Bucket(Clock& clock) {
    return object::MakeMemoryStore({.limits = {.min_part = 4 * kKiB, .max_put = 64 * kKiB},
                                    .inline_completions = true,
                                    .md5_etags = true,
                                    .clock = &clock});
  }
  static void Cut(Driver& d, Outage outage, int calls) {
    const bool records = outage == Outage::kRecordsOnly;
    const std::string prefix = records ? kRecords : "";
    const auto operation = records ? std::optional(object::Operation::kPut) : std::nullopt;
    if (outage != Outage::kDeath) {
      d.store->Add({.operation = operation,
                    .key_prefix = prefix,
                    .skip = calls,
                    .times = 1,
                    .fault = {.code = Code::kUnavailable, .after_effect = true}});
    }
    d.store->Add({.operation = operation,
                  .key_prefix = prefix,
                  .skip = calls,
                  .times = -1,
                  .fault = {.code = Code::kUnavailable}});
    if (!records) return;
    for (auto reads : {object::Operation::kGet, object::Operation::kHead}) {
      d.store->Add({.operation = reads, .key_prefix = prefix, .times = -1, .fault = {.code = Code::kUnavailable}});
    }
  }
  /// One run. False when the rename was not cut off any more.
  static bool RunOnce(Outage outage, Ending ending, int calls, const Command& command) {
    FakeClock clock;
    auto bucket = Bucket(clock);
    auto first = std::make_unique<Driver>(OptionsOf("first"), Driver::Time::kTicks, bucket);
    first->Put("p/a/f", "1");
    first->Put("p/a/s/g", Noise(70'000));  // in parts
    EXPECT_TRUE(first->Mkdir("p/a/t"));
    first->Put("p/a/t/h", "6");
    EXPECT_TRUE(first->Mkdir("p/b"));
    first->PassTtl();
    Driver other(OptionsOf("other"), Driver::Time::kTicks, bucket);
    Cut(*first, outage, calls);
    const bool told_done = first->Rename("p/a", "p/b").has_value();
    const bool cut_off = told_done ? *object::Head(*bucket, "p/a/f") || HasRecord(*bucket) : true;

    Driver& user = ending == Ending::kOtherMountRecovers ? other : *first;
    if (ending == Ending::kOtherMountRecovers) {
      user.PassTtl();
    } else {
      first->store->Clear();  // its clock stands: it settles nothing by itself
    }
    Names names(NamesAndBytes(*bucket));
    command.run(user, names);
    if (ending == Ending::kSameMountSettles) {
      (void)user.tree->FlushAll();
      EXPECT_FALSE(HasRecord(*bucket)) << "the mount settles what it began";
      ExpectAllThere(names, *bucket);
      user.PassTtl();
      names = Names(NamesAndBytes(*bucket));
      command.run(user, names);  // again, when nothing is in the way
    }
    first.reset();
    other.tree.reset();
    Driver third(OptionsOf("third"), Driver::Time::kTicks, bucket);
    (void)third.tree->FlushAll();
    EXPECT_FALSE(HasRecord(*bucket));
    ExpectAllThere(names, *bucket);
    return cut_off;
  }
  static void ExpectAllThere(const Names& names, object::Store& bucket) {
    std::set<std::string> contents;
    for (const auto& [name, content] : NamesAndBytes(bucket)) contents.insert(content);
    for (const auto& [name, content] : names.all()) {
      EXPECT_TRUE(contents.contains(content)) << "what was in " << name << " is nowhere";
    }
  }
  static bool HasRecord(object::Store& bucket) { return !object::List(bucket, {.prefix = kRecords})->objects.empty(); }
};

TEST_P(RenameCrashTest, NothingIsLostThatNoUserRemoved) {
  const auto [outage, ending] = GetParam();
  const auto& commands = Commands();
  // Each command comes after some of the points. All after all of them take minutes.
  const bool every = std::getenv("MILLRACE_CRASH_EVERY_STEP") != nullptr || outage == Outage::kRecordsOnly;
  const std::size_t after_each = every ? commands.size() : 2;
  bool cut_off = true;
  int calls = 0;
  for (std::size_t next = 0; cut_off && !HasFailure(); ++calls) {
    for (std::size_t i = 0; i < after_each && !HasFailure(); ++i, ++next) {
      const Command& command = commands[next % commands.size()];
      SCOPED_TRACE(fmt::format("cut off after {} calls, then {}", calls, command.what));
      cut_off = RunOnce(outage, ending, calls, command);
    }
  }
  EXPECT_GT(calls, outage == Outage::kRecordsOnly ? 2 : 20);
}

std::string NameOfCase(const testing::TestParamInfo<RenameCrashTest::ParamType>& info) {
  constexpr const char* kOutages[] = {"Death", "LostAnswer", "RecordsOnly"};
  constexpr const char* kEndings[] = {"SameMountSettles", "SameMountDies", "OtherMountRecovers"};
  return fmt::format("{}{}", kOutages[static_cast<int>(std::get<0>(info.param))],
                     kEndings[static_cast<int>(std::get<1>(info.param))]);
}

INSTANTIATE_TEST_SUITE_P(Faults, RenameCrashTest,
                         testing::Combine(testing::Values(Outage::kDeath, Outage::kLostAnswer, Outage::kRecordsOnly),
                                          testing::Values(Ending::kSameMountSettles, Ending::kSameMountDies,
                                                          Ending::kOtherMountRecovers)),
                         NameOfCase);

class RenameSettleTest : public testing::Test {
 protected:
  /// The commit takes effect, but nobody learns of it.
  void LoseTheCommit() {
    d.store->Add({.operation = object::Operation::kPut,
                  .key_prefix = kRecords,
                  .skip = 1,
                  .times = 1,
                  .fault = {.code = Code::kUnavailable, .after_effect = true}});
    for (auto operation : {object::Operation::kPut, object::Operation::kGet, object::Operation::kHead}) {
      const int skip = operation == object::Operation::kPut ? 1 : 0;
      d.store->Add({.operation = operation,
                    .key_prefix = kRecords,
                    .skip = skip,
                    .times = -1,
                    .fault = {.code = Code::kUnavailable}});
    }
  }
  /// The heartbeat and the settler sleep; a second later the settler tries.
  void AwaitSettled() {
    d.clock.AwaitSleepers(2);
    d.clock.Advance(std::chrono::seconds(2));
    while (CodeOf(d.Write("b/probe", "")) == Code::kBusy) std::this_thread::yield();
    if (d.Walk("b/probe")) (void)d.Unlink("b/probe");
  }
  Driver d{{.owner = "first"}, Driver::Time::kTicks};
};

TEST_F(RenameSettleTest, UntilARenameIsSettledNeitherNameCanBeChanged) {
  d.Put("a/f", "1");
  d.Put("a/s/g", "2");
  d.Put("z", "3");
  auto open = *d.Open("a/f", {.write = true});
  LoseTheCommit();
  EXPECT_EQ(CodeOf(d.Rename("a", "b")), Code::kUnavailable);
  d.PassTtl();
  EXPECT_EQ(*d.Read("a/f"), "1") << "both can be read";
  EXPECT_EQ(*d.Read("b/s/g"), "2");
  EXPECT_EQ(CodeOf(d.Unlink("b/f")), Code::kBusy);
  EXPECT_EQ(CodeOf(d.Unlink("a/s/g")), Code::kBusy);
  EXPECT_EQ(CodeOf(d.Mkdir("a/new")), Code::kBusy);
  EXPECT_EQ(CodeOf(d.Create("b/new")), Code::kBusy);
  EXPECT_EQ(CodeOf(d.Rename("a", "b")), Code::kBusy);
  EXPECT_EQ(CodeOf(d.Rename("b", "c")), Code::kBusy);
  EXPECT_EQ(CodeOf(d.Rename("z", "a/z")), Code::kBusy);
  EXPECT_EQ(CodeOf(d.tree->SetAttributes(*d.Walk("a/f"), {.permissions = 0600}, nullptr)), Code::kBusy);
  EXPECT_TRUE(d.Rename("z", "y")) << "others can";
  d.store->Clear();
  AwaitSettled();
  EXPECT_EQ(CodeOf(d.Walk("b/f")), Code::kNotFound) << "a rename that was told to have failed is undone";
  EXPECT_EQ(*d.Read("a/s/g"), "2");
  ASSERT_TRUE(open->Write(0, AsBytes("9")));
  ASSERT_TRUE(open->Close());
  EXPECT_EQ(d.Object("a/f"), "9");
  ASSERT_TRUE(d.Rename("a", "b"));
  EXPECT_EQ(d.Object("b/f"), "9");
}

TEST_F(RenameSettleTest, WhatIsClosedMeanwhileIsKeptAndPublished) {
  d.Put("a/f", "1");
  auto open = *d.Open("a/f", {.write = true});
  ASSERT_TRUE(open->Write(0, AsBytes("0")));
  LoseTheCommit();
  ASSERT_FALSE(d.Rename("a", "b"));
  ASSERT_TRUE(open->Write(0, AsBytes("2")));
  EXPECT_EQ(CodeOf(open->Flush()), Code::kBusy);
  EXPECT_FALSE(open->Close());
  d.store->Clear();
  EXPECT_TRUE(d.tree->FlushAll()) << "it settles the rename first";
  EXPECT_EQ(d.Object("a/f"), "2");
}

TEST_F(RenameSettleTest, SourcesThatCannotBeDeletedAtOnceAreDeletedLater) {
  d.Put("a/f", "1");
  d.store->Add({.operation = object::Operation::kDeleteMany, .times = 1, .fault = {.code = Code::kUnavailable}});
  ASSERT_TRUE(d.Rename("a", "b"));
  EXPECT_EQ(d.Object("a/f"), "1");
  EXPECT_EQ(CodeOf(d.Unlink("b/f")), Code::kBusy);
  AwaitSettled();
  EXPECT_EQ(d.Object("a/f"), "<absent>");
  EXPECT_EQ(d.Object("b/f"), "1");
}

TEST_F(RenameSettleTest, AMountWhoseRecordWasTakenLetsTheOtherDecide) {
  d.Put("a/f", "1");
  LoseTheCommit();
  ASSERT_FALSE(d.Rename("a", "b"));
  // Another mount thinks that the owner is dead, finishes the rename, and its user goes on.
  Driver other({.owner = "other", .owner_alive = [](std::string_view) { return std::optional(false); }},
               Driver::Time::kTicks, d.inner);
  EXPECT_EQ(*other.Read("b/f"), "1");
  ASSERT_TRUE(other.Rename("b", "a"));
  d.store->Clear();
  AwaitSettled();
  d.PassTtl();
  EXPECT_EQ(*d.Read("a/f"), "1") << "the first mount deletes nothing";
}

TEST_F(RenameSettleTest, ARenameKeepsItsRecordAliveWhileItCopies) {
  constexpr int kBeats = 12;
  for (int i = 0; i < 3; ++i) d.Put(fmt::format("a/{}", i), "x");
  d.store->Add({.operation = object::Operation::kCopy, .times = 1, .fault = {.latency = kBeats * kLeaseBeat}});
  bool done = false;
  {
    const std::jthread renaming([&] { done = d.Rename("a", "b").has_value(); });
    auto record = [&] {
      const auto page = *object::List(*d.inner, {.prefix = kRecords});
      return page.objects.empty() ? "" : page.objects.front().etag;
    };
    std::string before;
    for (int beat = 1; beat < kBeats; ++beat) {
      d.clock.AwaitSleepers(2);  // the copy and the heartbeat
      while (record() == before) std::this_thread::yield();
      before = record();
      EXPECT_EQ(RecoverRenames(*d.inner, {}, {.clock = &d.clock, .owner = "other"})->left, 1) << "beat " << beat;
      d.clock.Advance(kLeaseBeat);
    }
    d.clock.Advance(kLeaseBeat);
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(d.List("b")->size(), 3u);
}

}  // namespace
}  // namespace millrace::vfs
