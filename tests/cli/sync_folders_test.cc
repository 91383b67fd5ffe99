// What sync and cp keep beside the bytes of files: permissions, times and empty folders. And sync --watch.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

class SyncFolders : public ObjectFixture {
 protected:
  std::string Path(const std::string& name) const { return (work() / name).string(); }
  /// Gives a file a time in the past, with a fraction of a second.
  void Age(const std::string& path, time_t at) {
    const timespec times[] = {{at, 123'456'789}, {at, 123'456'789}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  struct stat State(const std::string& name) const {
    struct stat state = {};
    EXPECT_EQ(::stat(Path(name).c_str(), &state), 0) << name;
    return state;
  }
  std::vector<std::string> Folders(const std::string& beneath) {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(work() / beneath)) {
      if (entry.is_directory()) names.push_back(fs::relative(entry.path(), work() / beneath).string());
    }
    return names;
  }
  /// Waits until there is an object with this content.
  bool Arrives(const std::string& url, const std::string& content) {
    const Deadline deadline = Deadline::After(SystemClock(), std::chrono::minutes(2));
    while (!deadline.Passed(SystemClock())) {
      if (Millrace({"cat", url}).out == content) return true;
    }
    return false;
  }
};

TEST_F(SyncFolders, PermissionsAndTimesGoThereAndBack) {
  constexpr time_t kThen = 1'600'000'000;
  WriteLocal("d/run.sh", "x");
  WriteLocal("d/secret", "y");
  ASSERT_EQ(::chmod(Path("d/run.sh").c_str(), 04755), 0);
  ASSERT_EQ(::chmod(Path("d/secret").c_str(), 0600), 0);
  for (const char* name : {"d/run.sh", "d/secret"}) Age(Path(name), kThen);
  ASSERT_EQ(Millrace({"sync", "--preserve", "d/", "s3://bucket/d/"}).exit, 0);
  const Json head = Millrace({"head", "--json", "s3://bucket/d/secret"}).objects().at(0);
  EXPECT_EQ(head["metadata"]["mtime"], "1600000000.123456789");
  EXPECT_EQ(head["metadata"]["mode"], std::to_string(S_IFREG | 0600));

  ASSERT_EQ(Millrace({"sync", "--preserve", "s3://bucket/d/", "e/"}).exit, 0);
  EXPECT_EQ(State("e/run.sh").st_mode & 07777, 0755u) << "a stranger's object gives nobody its owner's rights";
  EXPECT_EQ(State("e/secret").st_mode & 07777, 0600u);
  EXPECT_EQ(State("e/secret").st_mtim.tv_sec, kThen);
  EXPECT_EQ(State("e/secret").st_mtim.tv_nsec, 123'456'789);
  const Json again = Millrace({"sync", "--preserve", "--json", "s3://bucket/d/", "e/"}).objects().back();
  EXPECT_EQ(again["unchanged"], 2) << again;
  EXPECT_EQ(again["items"], 0) << again;
  ASSERT_EQ(Millrace({"cp", "s3://bucket/d/secret", "plain"}).exit, 0);
  EXPECT_NE(State("plain").st_mtim.tv_sec, kThen) << "only on request";
}

TEST_F(SyncFolders, EmptyFoldersGoThereAndBack) {
  WriteLocal("d/full/file", "x");
  fs::create_directories(work() / "d/empty/inner");
  fs::create_directories(work() / "d/out");
  ASSERT_EQ(Millrace({"sync", "d/", "s3://bucket/plain/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/plain/"), ElementsAre("plain/full/file"));
  ASSERT_EQ(Millrace({"sync", "--empty-folders", "--exclude", "out*", "d/", "s3://bucket/d/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/d/"), ElementsAre("d/empty/inner/", "d/full/file"));
  const Json again =
      Millrace({"sync", "--empty-folders", "--json", "--exclude", "out*", "d/", "s3://bucket/d/"}).objects().back();
  EXPECT_EQ(again["items"], 0) << again;
  ASSERT_EQ(Millrace({"sync", "s3://bucket/d/", "without/"}).exit, 0);
  EXPECT_THAT(Folders("without"), UnorderedElementsAre("full"));
  ASSERT_EQ(Millrace({"sync", "--empty-folders", "s3://bucket/d/", "with/"}).exit, 0);
  EXPECT_THAT(Folders("with"), UnorderedElementsAre("full", "empty", "empty/inner"));
  ASSERT_EQ(Millrace({"cp", "-r", "--empty-folders", "d/", "s3://bucket/c/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/c/"), ElementsAre("c/empty/inner/", "c/full/file", "c/out/"));
}

TEST_F(SyncFolders, DeleteRemovesEmptyFoldersThatTheSourceLacks) {
  WriteLocal("d/kept/file", "x");
  WriteLocal("d/gone/deep/file", "y");
  ASSERT_EQ(Millrace({"sync", "d/", "s3://bucket/d/"}).exit, 0);
  ASSERT_EQ(Millrace({"sync", "s3://bucket/d/", "copy/"}).exit, 0);
  ASSERT_EQ(Millrace({"rm", "-r", "s3://bucket/d/gone/"}).exit, 0);
  fs::create_directories(work() / "copy/stale");
  fs::create_directories(work() / "copy/spared");
  fs::create_directories(work() / "elsewhere/empty");
  fs::create_directory_symlink("../elsewhere", work() / "copy/kept/link");
  ASSERT_EQ(Millrace({"sync", "--delete", "--dry-run", "s3://bucket/d/", "copy/"}).exit, 0);
  EXPECT_TRUE(fs::exists(work() / "copy/stale"));
  ASSERT_EQ(Millrace({"sync", "--delete", "--exclude", "spared/*", "s3://bucket/d/", "copy/"}).exit, 0);
  EXPECT_THAT(Folders("copy"), UnorderedElementsAre("kept", "spared"));
  EXPECT_TRUE(fs::exists(work() / "elsewhere/empty")) << "behind a link";
  // A local source has the folder, or not.
  fs::create_directories(work() / "d/spared");
  fs::remove_all(work() / "d/gone");
  fs::create_directories(work() / "copy/stale");
  ASSERT_EQ(Millrace({"sync", "--delete", "d/", "copy/"}).exit, 0);
  EXPECT_THAT(Folders("copy"), UnorderedElementsAre("kept", "spared"));
}

TEST_F(SyncFolders, AWatchCopiesWhatIsDoneBeingWritten) {
  constexpr time_t kThen = 1'600'000'000;
  WriteLocal("d/first", "1");
  Age(Path("d/first"), kThen);
  Subprocess watch = program_.Start({"sync", "--watch", Path("d/"), "s3://bucket/w/"});
  EXPECT_TRUE(Arrives("s3://bucket/w/first", "1"));

  const int open_file = ::open(Path("d/open").c_str(), O_CREAT | O_WRONLY, 0644);
  ASSERT_EQ(::write(open_file, "half", 4), 4);
  Age(Path("d/open"), kThen);
  WriteLocal("aside", "2");
  Age(Path("aside"), kThen);
  fs::rename(work() / "aside", work() / "d/second");
  EXPECT_TRUE(Arrives("s3://bucket/w/second", "2"));
  EXPECT_THAT(Keys("s3://bucket/w/"), ElementsAre("w/first", "w/second")) << "the other one has a writer";
  ASSERT_EQ(::write(open_file, " whole", 6), 6);
  ::close(open_file);
  EXPECT_TRUE(Arrives("s3://bucket/w/open", "half whole"));

  watch.Signal(SIGTERM);
  const auto ended = watch.Wait();
  ASSERT_TRUE(ended);
  EXPECT_TRUE(ended->ok()) << ended->ToString();
}

TEST_F(SyncFolders, AWatchLooksAtAStoreAgain) {
  WriteLocal("f", "1");
  ASSERT_EQ(Millrace({"cp", "f", "s3://bucket/s/a"}).exit, 0);
  Subprocess watch = program_.Start({"sync", "--watch", "--interval", "50ms", "s3://bucket/s/", Path("down/")});
  ASSERT_EQ(Millrace({"cp", "f", "s3://bucket/s/b"}).exit, 0);
  const Deadline deadline = Deadline::After(SystemClock(), std::chrono::minutes(2));
  while (Local("down/b") != "1" && !deadline.Passed(SystemClock()))
    ASSERT_EQ(Millrace({"ls", "s3://bucket/s/"}).exit, 0);
  EXPECT_EQ(Local("down/b"), "1");
  watch.Signal(SIGINT);
  ASSERT_TRUE(watch.Wait());
  EXPECT_EQ(Millrace({"sync", "--interval", "1s", "s3://bucket/s/", "down/"}).exit, 2) << "only with --watch";
}

}  // namespace
}  // namespace millrace
