#include "millrace/vfs/staging/staging_area.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <set>

#include "millrace/vfs/staging/staged_record.h"

namespace millrace::vfs {
namespace {

namespace fs = std::filesystem;

class StagingAreaTest : public testing::Test {
 protected:
  std::unique_ptr<StagingArea> Open(std::uint64_t limit = kMiB, std::string target = "s3://bucket") {
    auto area =
        StagingArea::Open({.directory = folder.path() / "staging", .limit_bytes = limit, .target = std::move(target)});
    EXPECT_TRUE(area) << area.error().ToString();
    return *std::move(area);
  }
  /// Spare ones are empty.
  std::size_t Files() const {
    std::size_t files = 0;
    for (const auto& entry : fs::directory_iterator(folder.path() / "staging")) {
      files += entry.file_size() > 0 && entry.path().filename() != ManagedFolder::kMarkerName;
    }
    return files;
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path() / "staging")) names.insert(entry.path().filename());
    return names;
  }
  static std::string Read(const StagedFile& file, std::uint64_t offset, std::size_t size) {
    std::string bytes(size, '?');
    EXPECT_TRUE(file.Read(offset, AsWritableBytes(bytes)));
    return bytes;
  }
  static StagedRecord Record(const StagedFile& file) {
    StagedRecord record{.key = "dir/f", .size = 100, .complete = true, .held = file.held(), .changed = file.held()};
    record.modified = WallTime(std::chrono::seconds(1'700'000'000));
    record.base = {"dir/f", "etag", 90};
    record.base_bytes = 80;
    record.metadata.emplace()["mode"] = "33188";
    record.upload_id = "id";
    record.upload_key = "dir/f";
    record.upload_begun = record.modified;
    return record;
  }

  TempDir folder = *TempDir::Create();
};

TEST_F(StagingAreaTest, AFileHoldsWhatWasWrittenAndNothingElse) {
  auto area = Open();
  auto file = *area->Create();
  ASSERT_TRUE(file->Write(100, AsBytes("hello")));
  ASSERT_TRUE(file->Write(103, AsBytes("LO, you")));
  EXPECT_EQ(file->held().All(), (std::vector<Interval>{{100, 110}}));
  EXPECT_EQ(Read(*file, 100, 10), "helLO, you");
  ASSERT_TRUE(file->Zero(102, 120));
  EXPECT_EQ(Read(*file, 100, 20), "he" + std::string(18, '\0'));
  file->Drop(101, 110);
  EXPECT_EQ(file->held().All(), (std::vector<Interval>{{100, 101}, {110, 120}}));
  EXPECT_EQ(area->used(), 11u);
  file.reset();
  EXPECT_EQ(area->used(), 0u);
  EXPECT_EQ(Files(), 0u);
}

TEST_F(StagingAreaTest, TheLimitIsForAllFilesAndARefusedWriteChangesNothing) {
  auto area = Open(100);
  auto one = *area->Create(), two = *area->Create();
  ASSERT_TRUE(one->Write(0, AsBytes(std::string(60, 'a'))));
  auto refused = two->Write(0, AsBytes(std::string(41, 'b')));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kNoSpace);
  EXPECT_TRUE(two->held().empty());
  EXPECT_FALSE(two->Zero(0, 41));
  ASSERT_TRUE(one->Write(10, AsBytes(std::string(50, 'c')))) << "the same room again";
  one->Drop(0, 1);
  EXPECT_TRUE(two->Write(0, AsBytes(std::string(41, 'b'))));
}

TEST_F(StagingAreaTest, ARecordSurvivesItsProcess) {
  auto area = Open();
  {
    auto file = *area->Create();
    ASSERT_TRUE(file->Write(10, AsBytes("kept")));
    ASSERT_TRUE(file->Save(Record(*file), false));
    file->LeaveOnDisk();
    auto lost = *area->Create();
    ASSERT_TRUE(lost->Write(0, AsBytes("no record")));
    lost->LeaveOnDisk();  // as a killed process does
  }
  EXPECT_EQ(area->used(), 0u);
  std::vector<std::string> unreadable;
  EXPECT_TRUE(Open(kMiB, "s3://other")->Adopt("", &unreadable)->empty()) << "of another store";
  EXPECT_TRUE(area->Adopt("elsewhere/", &unreadable)->empty());
  auto adopted = *area->Adopt("dir/", &unreadable);
  ASSERT_EQ(adopted.size(), 1u);
  EXPECT_TRUE(unreadable.empty());
  EXPECT_EQ(area->used(), 4u);
  EXPECT_EQ(Read(*adopted[0].file, 10, 4), "kept");
  EXPECT_TRUE(Open()->Adopt("", &unreadable)->empty()) << "it has an owner";
  StagedRecord record = adopted[0].record;
  const StagedRecord wanted = Record(*adopted[0].file);
  EXPECT_EQ(EncodeRecord(record, "x"), EncodeRecord(wanted, "x"));
  adopted.clear();
  EXPECT_EQ(Files(), 2u) << "not finished: it stays";
  adopted = *area->Adopt("dir/", &unreadable);
  adopted.at(0).file->RemoveRecord();
  adopted.clear();
  EXPECT_EQ(Files(), 0u);
}

TEST_F(StagingAreaTest, DamagedRecordsAreNamedAndLeftAlone) {
  auto area = Open();
  std::string path;
  {
    auto file = *area->Create();
    ASSERT_TRUE(file->Write(0, AsBytes("data")));
    ASSERT_TRUE(file->Save(Record(*file), true));
    file->LeaveOnDisk();
    path = fs::path(file->path()).replace_extension(".record");
  }
  const std::string text = *ReadFile(path);
  for (std::size_t at = 0; at < text.size(); at += 3) {
    std::string damaged = text;
    damaged[at] ^= 4;
    EXPECT_FALSE(DecodeRecord(damaged, "it")) << at;
    EXPECT_FALSE(DecodeRecord(text.substr(0, at), "it")) << at;
  }
  std::ofstream(path) << text.substr(0, text.size() / 2);
  std::vector<std::string> unreadable;
  EXPECT_TRUE(area->Adopt("", &unreadable)->empty());
  ASSERT_EQ(unreadable.size(), 1u);
  EXPECT_TRUE(unreadable[0].contains(path)) << unreadable[0];
  EXPECT_EQ(Files(), 2u);
}

TEST_F(StagingAreaTest, RecordsThatNameSomethingElsewhereAreNamedAndLeftAlone) {
  const std::vector<std::function<void(StagedRecord&)>> attempts = {
      [](StagedRecord& record) { record.key = "dir/../g"; },
      [](StagedRecord& record) { record.base->key = "elsewhere/f"; },
      [](StagedRecord& record) { record.upload_key = "elsewhere/f"; },
  };
  for (const auto& attempt : attempts) {
    auto area = Open();
    auto file = *area->Create();
    StagedRecord record = Record(*file);
    ASSERT_TRUE(CheckKeys(record, "dir/", "it"));
    attempt(record);
    ASSERT_TRUE(file->Save(record, false));
    file->LeaveOnDisk();
    file.reset();
    std::vector<std::string> unreadable;
    EXPECT_TRUE(area->Adopt("dir/", &unreadable)->empty());
    ASSERT_EQ(unreadable.size(), 1u);
    EXPECT_NE(unreadable.front().find("is refused"), std::string::npos) << unreadable.front();
    area.reset();
    fs::remove_all(folder.path() / "staging");
  }
}

TEST_F(StagingAreaTest, FilesServeAgainAndBringNothingAlong) {
  auto area = Open();
  std::set<std::string> names;
  for (int i = 0; i < 5; ++i) {
    auto file = *area->Create();
    EXPECT_TRUE(file->held().empty());
    ASSERT_TRUE(file->Write(0, AsBytes(std::string(static_cast<std::size_t>(100 - 10 * i), 'x'))));
    StagedRecord record = Record(*file);
    record.key = std::string(static_cast<std::size_t>(40 - 8 * i), 'k');
    ASSERT_TRUE(file->Save(record, /*durable=*/i == 3));
    const std::string text = *ReadFile(fs::path(file->path()).replace_extension(".record"));
    EXPECT_EQ(DecodeRecord(text, "it")->record.key, record.key) << "nothing of a longer one is left";
    file->RemoveRecord();
    file.reset();
    EXPECT_EQ(Files(), 0u);
    if (names.empty()) names = Names();
    EXPECT_EQ(Names(), names);
  }
  for (const std::string& name : names) {  // a process dies while it writes a record
    if (name.ends_with(".tmp")) std::ofstream(folder.path() / "staging" / name) << std::string(10'000, '#');
  }
  area = Open();  // the next mount
  std::vector<std::string> unreadable;
  EXPECT_TRUE(area->Adopt("", &unreadable)->empty());
  EXPECT_EQ(Files(), 0u);
  auto file = *area->Create();
  ASSERT_TRUE(file->Save({.key = "f"}, false));
  EXPECT_TRUE(DecodeRecord(*ReadFile(fs::path(file->path()).replace_extension(".record")), "it"));
  file.reset();
  EXPECT_EQ(Names(), names);
}

TEST_F(StagingAreaTest, WhatOthersUsedMeanwhileIsNotSpareAnyMore) {
  auto area = Open();
  area->Create()->reset();
  std::string path;
  {
    auto other = Open();
    std::vector<std::string> unreadable;
    EXPECT_TRUE(other->Adopt("", &unreadable)->empty());
    auto theirs = *other->Create();
    path = theirs->path();
    EXPECT_NE((*area->Create())->path(), path) << "theirs is locked";
    ASSERT_TRUE(theirs->Save(Record(*theirs), false));  // of an empty file
    theirs->LeaveOnDisk();
  }
  EXPECT_NE((*area->Create())->path(), path);
  std::vector<std::string> unreadable;
  EXPECT_EQ(area->Adopt("", &unreadable)->size(), 1u);
}

TEST_F(StagingAreaTest, SpareFilesAreFew) {
  auto area = *StagingArea::Open({.directory = folder.path() / "staging", .target = "t", .most_spare = 2});
  {
    std::vector<std::unique_ptr<StagedFile>> files;
    for (int i = 0; i < 5; ++i) files.push_back(*area->Create());
  }
  EXPECT_EQ(Names().size(), 4u) << "and the lock, and the marker";
}

TEST_F(StagingAreaTest, FilesOfOthersSurvive) {
  const fs::path staging = folder.path() / "staging";
  fs::create_directory(staging);
  ASSERT_TRUE(WriteFileAtomic(staging / "measurements.data", AsBytes("theirs")));
  ASSERT_EQ(::chmod(staging.c_str(), 0755), 0);
  auto refused = StagingArea::Open({.directory = staging, .target = "t"});
  ASSERT_FALSE(refused);
  const std::string why = refused.error().ToString();
  for (std::string_view part : {"measurements.data", "--staging-dir"}) EXPECT_NE(why.find(part), why.npos) << why;
  EXPECT_EQ(*ReadFile(staging / "measurements.data"), "theirs");
  EXPECT_EQ(fs::status(staging).permissions(), fs::perms(0755));
  // Nor are they touched where they came into a folder of ours.
  fs::remove(staging / "measurements.data");
  auto area = Open();
  ASSERT_TRUE(WriteFileAtomic(staging / "measurements.data", AsBytes("theirs")));
  std::vector<std::string> unreadable;
  EXPECT_TRUE(area->Adopt("", &unreadable)->empty());
  EXPECT_EQ(*ReadFile(staging / "measurements.data"), "theirs");
}

TEST_F(StagingAreaTest, AFolderThatIsSwappedForALinkLeadsNowhereElse) {
  auto area = Open();
  auto file = *area->Create();
  const std::string name = fs::path(file->path()).filename();
  const fs::path victim = folder.path() / "victim", staging = folder.path() / "staging";
  fs::create_directory(victim);
  ASSERT_TRUE(WriteFileAtomic(victim / name, AsBytes("theirs")));
  ASSERT_TRUE(WriteFileAtomic(victim / "0123456789abcdef.data", AsBytes("theirs")));
  fs::rename(staging, folder.path() / "elsewhere");
  fs::create_directory_symlink(victim, staging);

  ASSERT_TRUE(file->Save(Record(*file), true));
  file->RemoveRecord();
  file.reset();
  std::vector<std::string> unreadable;
  EXPECT_TRUE(area->Adopt("", &unreadable)->empty());
  EXPECT_EQ(*ReadFile(victim / name), "theirs");
  EXPECT_EQ(*ReadFile(victim / "0123456789abcdef.data"), "theirs");
  EXPECT_EQ(std::distance(fs::directory_iterator(victim), {}), 2);
  EXPECT_EQ(StagingArea::Open({.directory = staging, .target = "t"}).error().code(), Code::kPermissionDenied);
}

TEST_F(StagingAreaTest, WhatAnEarlierReleaseStagedIsAdopted) {
  {
    auto area = Open();
    auto file = *area->Create();
    ASSERT_TRUE(file->Write(0, AsBytes(std::string(100, 'x'))));
    ASSERT_TRUE(file->Save(Record(*file), true));
    file->LeaveOnDisk();
  }
  fs::remove(folder.path() / "staging" / ManagedFolder::kMarkerName);
  std::vector<std::string> unreadable;
  EXPECT_EQ(Open()->Adopt("", &unreadable)->size(), 1u);
}

TEST_F(StagingAreaTest, WhatDeadProcessesLeftIsHandedOver) {
  auto area = Open();
  auto owned = *area->Create(), left = *area->Create();
  for (auto* file : {&owned, &left}) {
    ASSERT_TRUE((*file)->Write(0, AsBytes(std::string(100, 'x'))));
    ASSERT_TRUE((*file)->Save(Record(**file), true));
    (*file)->LeaveOnDisk();
  }
  left.reset();
  const fs::path other = folder.path() / "other";
  EXPECT_EQ(StagingArea::HandOver(folder.path() / "staging", other).value_or(-1), 1);
  std::vector<std::string> unreadable;
  const auto next = *StagingArea::Open({.directory = other, .target = area->options().target});
  const auto adopted = *next->Adopt("", &unreadable);
  ASSERT_EQ(adopted.size(), 1u);
  EXPECT_EQ(adopted.front().record.held.bytes(), 100u);
  EXPECT_TRUE(Open()->Adopt("", &unreadable)->empty());
}

TEST_F(StagingAreaTest, AFileThatWasEmptiedIsNotClaimed) {
  auto area = Open();
  auto file = *area->Create();
  ASSERT_TRUE(file->Write(0, AsBytes(std::string(100, 'x'))));
  const std::string id = file->id();
  const IntervalSet held = file->held();
  file->LeaveOnDisk();
  file.reset();
  fs::resize_file(folder.path() / "staging" / (id + ".data"), 99);
  EXPECT_EQ(area->Claim(id, held).error().code(), Code::kCorrupt);
  fs::resize_file(folder.path() / "staging" / (id + ".data"), 100);
  EXPECT_TRUE(area->Claim(id, held));
}

TEST_F(StagingAreaTest, TheFolderIsPrivate) {
  Open();
  EXPECT_EQ(fs::status(folder.path() / "staging").permissions(), fs::perms::owner_all);
}

}  // namespace
}  // namespace millrace::vfs
