// Ordinary commands, given what destroys files where a tool trusts names: two names of one folder, symbolic links,
// files that are replaced, trees inside each other, sources that are not there, readers that go away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"
#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;
using testing_support::Ran;

class ObjectSafety : public ObjectFixture {
 protected:
  static bool HasOpen(pid_t process, const fs::path& file) {
    std::error_code error;
    for (const auto& fd : fs::directory_iterator(fmt::format("/proc/{}/fd", process), error)) {
      if (fs::read_symlink(fd, error) == file) return true;
    }
    return false;
  }
  void Link(const std::string& target, const std::string& name) { fs::create_symlink(target, work() / name); }
};

TEST_F(ObjectSafety, MovingAFolderOntoAnotherNameOfItDestroysNothing) {
  WriteLocal("data/a", "a");
  WriteLocal("data/sub/b", "b");
  Link("data", "alias");
  for (const char* verb : {"mv", "cp"}) {
    EXPECT_EQ(Millrace({verb, "data/a", "alias/a"}).exit, 2);
    EXPECT_EQ(Millrace({verb, "data/a", "alias/"}).exit, 2);
    EXPECT_EQ(Millrace({verb, "-r", "data/", "alias/"}).exit, 2);
    EXPECT_EQ(Millrace({verb, "-r", "alias/", "file://" + (work() / "data").string() + "/"}).exit, 2);
    EXPECT_EQ(Millrace({verb, "data/*", "alias/"}).exit, 3) << "a pattern names single files";
  }
  EXPECT_EQ(Millrace({"sync", "--delete", "data", "alias"}).exit, 2);
  EXPECT_EQ(Local("data/a"), "a");
  EXPECT_EQ(Local("data/sub/b"), "b");
}

TEST_F(ObjectSafety, ATreeIsNotMovedIntoItself) {
  WriteLocal("data/a", "a");
  EXPECT_EQ(Millrace({"mv", "-r", "data/", "data/sub/"}).exit, 2);
  EXPECT_EQ(Millrace({"cp", "-r", "data/", "data/sub/"}).exit, 2);
  ASSERT_EQ(Millrace({"cp", "data/a", "s3://bucket/x/a"}).exit, 0);
  EXPECT_EQ(Millrace({"cp", "-r", "s3://bucket/x/", "s3://bucket/x/y/"}).exit, 2);
  EXPECT_EQ(Millrace({"cp", "-r", "--exclude", "y/*", "s3://bucket/x/", "s3://bucket/x/y/"}).exit, 0);
  EXPECT_EQ(Millrace({"cp", "s3://bucket/x/*", "s3://bucket/x/y/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/x/"), ElementsAre("x/a", "x/y/a"));
}

TEST_F(ObjectSafety, CatOfDamagedBytesIsAnError) {
  ASSERT_EQ(Millrace({"pipe", "s3://bucket/k"}, {}, "content").exit, 0);
  ASSERT_TRUE(server_->SetFaults("damage,op=GetObject"));
  const Ran ran = Millrace({"cat", "s3://bucket/k"});
  EXPECT_NE(ran.exit, 0);
  EXPECT_THAT(ran.err, HasSubstr("CRC32C"));
}

TEST_F(ObjectSafety, SyncKeepsTheMarkersOfFoldersThatTheSourceHas) {
  auto connection = object::OpenConnection(
      {.endpoint_url = server_->endpoint(),
       .environment = {{"AWS_ACCESS_KEY_ID", "key"}, {"AWS_SECRET_ACCESS_KEY", "secret-of-the-test"}}});
  auto bucket = object::Locate(**connection, "s3://bucket");
  for (const char* marker : {"d/", "d/empty/", "d/gone/"}) ASSERT_TRUE(object::Put(*bucket->store, marker, {}));
  WriteLocal("src/a", "a");
  fs::create_directories(work() / "src/empty");
  EXPECT_EQ(Millrace({"sync", "--delete", "src/", "s3://bucket/d/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/d/"), ElementsAre("d/", "d/a", "d/empty/"));
}

TEST_F(ObjectSafety, SyncPutsAFileInThePlaceOfAFolderAndTheReverse) {
  WriteLocal("one/item", "file");
  WriteLocal("two/item/sub/x", "x");
  EXPECT_EQ(Millrace({"sync", "one/", "s3://bucket/one/"}).exit, 0);
  EXPECT_EQ(Millrace({"sync", "two/", "s3://bucket/two/"}).exit, 0);
  WriteLocal("dst/item/old/y", "y");
  EXPECT_NE(Millrace({"sync", "s3://bucket/one/", "dst/"}).exit, 0) << "without --delete nothing goes";
  EXPECT_EQ(Local("dst/item/old/y"), "y");
  EXPECT_EQ(Millrace({"sync", "--delete", "s3://bucket/one/", "dst/"}).exit, 0);
  EXPECT_EQ(Local("dst/item"), "file");
  EXPECT_EQ(Millrace({"sync", "--delete", "s3://bucket/two/", "dst/"}).exit, 0);
  EXPECT_EQ(Local("dst/item/sub/x"), "x");
}

TEST_F(ObjectSafety, RemovingFollowsNoLinks) {
  WriteLocal("outside/kept", "kept");
  WriteLocal("tree/a", "a");
  Link(work() / "outside", "tree/folder");
  Link(work() / "outside/kept", "tree/file");
  Link("nowhere", "tree/dangling");
  Link("tree", "name");
  EXPECT_EQ(Millrace({"rm", "-r", "name/"}).exit, 2) << "the link, or what it leads to?";
  EXPECT_EQ(Millrace({"rm", "-r", "tree/"}).exit, 0);
  EXPECT_TRUE(fs::is_empty(work() / "tree"));
  EXPECT_EQ(Millrace({"rm", "name"}).exit, 0);
  EXPECT_FALSE(fs::is_symlink(work() / "name"));
  EXPECT_EQ(Local("outside/kept"), "kept");
}

TEST_F(ObjectSafety, MovingSendsWhatLinksLeadToAndRemovesTheLinks) {
  WriteLocal("outside/kept", "kept");
  WriteLocal("outside/single", "single");
  WriteLocal("tree/a", "a");
  Link(work() / "outside", "tree/folder");
  Link(work() / "outside/single", "tree/file");
  EXPECT_EQ(Millrace({"mv", "-r", "tree/", "s3://bucket/t/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/t/"), ElementsAre("t/a", "t/file", "t/folder/kept", "t/folder/single"));
  EXPECT_TRUE(fs::is_empty(work() / "tree"));
  EXPECT_EQ(Local("outside/kept"), "kept");
  EXPECT_EQ(Local("outside/single"), "single");
}

TEST_F(ObjectSafety, SyncDeletesLinksNotWhatTheyLeadTo) {
  WriteLocal("outside/kept", "kept");
  WriteLocal("from/a", "a");
  WriteLocal("from/disk/b", "b");
  WriteLocal("to/extra", "x");
  Link(work() / "outside", "to/folder");
  Link(work() / "outside/kept", "to/file");
  fs::create_directory(work() / "other");
  WriteLocal("other/stays", "stays");
  Link(work() / "other", "to/disk");  // a folder of the source, on another disk
  EXPECT_EQ(Millrace({"sync", "--delete", "from", "to"}).exit, 0);
  EXPECT_THAT(LocalFiles("to"), UnorderedElementsAre("a"));
  EXPECT_TRUE(fs::is_symlink(work() / "to/disk"));
  EXPECT_FALSE(fs::is_symlink(work() / "to/folder"));
  EXPECT_FALSE(fs::is_symlink(work() / "to/file"));
  EXPECT_EQ(Local("outside/kept"), "kept");
  EXPECT_EQ(Local("other/stays"), "stays");
  EXPECT_EQ(Local("other/b"), "b");
}

TEST_F(ObjectSafety, WhatIsNoFileIsNeitherReplacedNorRemoved) {
  WriteLocal("file", "x");
  WriteLocal("from/fifo", "x");
  fs::create_directory(work() / "to");
  ASSERT_EQ(mkfifo((work() / "to/fifo").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo((work() / "to/extra").c_str(), 0600), 0);
  Link("fifo", "to/link");
  Link("/proc/self/fd/1", "stdout");  // as /dev/stdout
  ASSERT_EQ(Millrace({"cp", "file", "s3://bucket/fifo"}).exit, 0);
  for (const char* source : {"s3://bucket/fifo", "file"}) {
    for (const char* verb : {"cp", "mv"}) {
      for (const auto& [name, type] :
           {std::pair("to/fifo", "a FIFO"), {"to/link", "a FIFO"}, {"stdout", "descriptor"}}) {
        const Ran ran = Millrace({verb, source, name});
        EXPECT_EQ(ran.exit, 2);
        EXPECT_THAT(ran.err, AllOf(HasSubstr(name), HasSubstr(type)));
      }
    }
  }
  EXPECT_EQ(Millrace({"pipe", "file://" + (work() / "to/fifo").string()}, {}, "x").exit, 2);
  for (const char* source : {"from/", "s3://bucket/"}) {
    const Ran ran = Millrace({"sync", "--delete", source, "to/"});
    EXPECT_NE(ran.exit, 0);
    EXPECT_THAT(ran.err, HasSubstr("a FIFO"));
  }
  EXPECT_TRUE(fs::is_fifo(work() / "to/fifo"));
  EXPECT_TRUE(fs::is_fifo(work() / "to/extra"));
  EXPECT_TRUE(fs::is_symlink(work() / "stdout"));
  for (const std::vector<std::string>& command : {std::vector<std::string>{"cp", "to/fifo", "s3://bucket/k"},
                                                  {"mv", "to/fifo", "s3://bucket/k"},
                                                  {"rm", "to/fifo"}}) {
    const Ran ran = Millrace(command);
    EXPECT_EQ(ran.exit, 2);
    EXPECT_THAT(ran.err, HasSubstr("to/fifo is a FIFO"));
  }
  EXPECT_EQ(Local("file"), "x");
  EXPECT_THAT(Keys("s3://bucket/"), ElementsAre("fifo"));
}

TEST_F(ObjectSafety, AReplacedFileKeepsItsPermissionsAndALinkIsNotFollowed) {
  WriteLocal("file", "new");
  WriteLocal("private", "old");
  WriteLocal("target", "target");
  Link("target", "link");
  const auto only_owner = fs::perms::owner_read | fs::perms::owner_write;
  fs::permissions(work() / "private", only_owner);
  ASSERT_EQ(Millrace({"cp", "file", "s3://bucket/k"}).exit, 0);
  for (const char* source : {"s3://bucket/k", "file"}) {
    EXPECT_EQ(Millrace({"cp", source, "private"}).exit, 0);
    EXPECT_EQ(Local("private"), "new");
    EXPECT_EQ(fs::status(work() / "private").permissions(), only_owner);
  }
  EXPECT_EQ(Millrace({"cp", "s3://bucket/k", "link"}).exit, 0);
  EXPECT_FALSE(fs::is_symlink(work() / "link"));
  EXPECT_EQ(Local("target"), "target");
}

TEST_F(ObjectSafety, WhatCannotBeCopiedIsNamedAndItsCopyStays) {
  WriteLocal("real/a", "a");
  WriteLocal("disk/b", "b");
  WriteLocal("from/c", "c");
  Link("../real/a", "from/link");
  Link("../disk", "from/mount");
  WriteLocal("from/links", "not below link");
  ASSERT_EQ(Millrace({"sync", "from/", "s3://bucket/x/"}).exit, 0);
  fs::rename(work() / "real", work() / "away");  // disks that are not there at the moment
  fs::rename(work() / "disk", work() / "gone");
  fs::remove(work() / "from/links");
  ASSERT_EQ(mkfifo((work() / "from/fifo").c_str(), 0600), 0);
  Ran ran = Millrace({"sync", "--delete", "from/", "s3://bucket/x/"});
  EXPECT_EQ(ran.exit, 3);
  for (const char* told :
       {"from/link is a symbolic link that leads nowhere", "from/mount is a symbolic link", "from/fifo is a FIFO"}) {
    EXPECT_THAT(ran.err, HasSubstr(told));
  }
  EXPECT_THAT(Keys("s3://bucket/x/"), ElementsAre("x/c", "x/link", "x/mount/b"));
  ran = Millrace({"cp", "-r", "from/", "s3://bucket/y/"});
  EXPECT_EQ(ran.exit, 3);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("from/link"), HasSubstr("from/mount"), HasSubstr("from/fifo")));
  EXPECT_THAT(Keys("s3://bucket/y/"), ElementsAre("y/c"));
  for (const std::vector<std::string>& without :
       {std::vector<std::string>{"--exclude", "link", "--exclude", "mount", "--exclude", "fifo"},
        {"--exclude", "*", "--include", "c"}}) {
    std::vector<std::string> command = {"sync", "--delete"};
    command.insert(command.end(), without.begin(), without.end());
    command.insert(command.end(), {"from/", "s3://bucket/x/"});
    ran = Millrace(command);
    EXPECT_EQ(ran.exit, 0) << ran.err;
    EXPECT_THAT(ran.err, Not(HasSubstr("from/")));
  }
  EXPECT_EQ(Millrace({"ls", "-r", "from/"}).err, "");
  EXPECT_EQ(Millrace({"du", "from/"}).exit, 0);
}

TEST_F(ObjectSafety, AMovedFileThatIsReplacedMeanwhileStays) {
  ASSERT_TRUE(server_->SetFaults("latency=300ms,op=PutObject"));
  // mv opens the file twice: to look at it, then to send it. If it is replaced in between, mv moves the new version.
  for (int attempt = 0; attempt < 50; ++attempt) {
    WriteLocal("file", "old");
    WriteLocal("new", "new");
    Subprocess moving = program_.Start({"mv", "file", "s3://bucket/file"});
    while (!HasOpen(moving.pid(), work() / "file") && !moving.Poll()) std::this_thread::yield();
    fs::rename(work() / "new", work() / "file");
    const bool stopped = moving.Wait()->exit_code == 1;
    const std::string sent = Millrace({"cat", "s3://bucket/file"}).out;
    if (sent == "new") {
      EXPECT_FALSE(stopped);
      EXPECT_EQ(Local("file"), "<absent>");
      continue;
    }
    EXPECT_EQ(sent, "old");
    ASSERT_EQ(Local("file"), "new");
    if (stopped) return;
  }
  FAIL() << "the file was never replaced while it was sent";
}

TEST_F(ObjectSafety, SyncRefusesTreesInsideEachOther) {
  WriteLocal("data/a", "a");
  WriteLocal("data/sub/b", "b");
  Link("data/sub", "inner");
  EXPECT_EQ(Millrace({"sync", "--delete", "data/sub", "data"}).exit, 2);
  EXPECT_EQ(Millrace({"sync", "--delete", "inner/", "data"}).exit, 2);
  EXPECT_EQ(Millrace({"sync", "--delete", "data", "data/sub"}).exit, 2);
  EXPECT_EQ(Millrace({"sync", "data", "data/new"}).exit, 2);
  EXPECT_THAT(LocalFiles("data"), UnorderedElementsAre("a", "sub/b"));
  ASSERT_EQ(Millrace({"cp", "-r", "data/", "s3://bucket/data/"}).exit, 0);
  Ran ran = Millrace({"sync", "--delete", "s3://bucket/data/sub/", "s3://bucket/data/"});
  EXPECT_EQ(ran.exit, 2);
  EXPECT_THAT(ran.err, HasSubstr("--exclude 'sub/*'"));
  EXPECT_THAT(Keys("s3://bucket/"), ElementsAre("data/a", "data/sub/b"));
  EXPECT_EQ(Millrace({"sync", "--delete", "--exclude", "sub/*", "s3://bucket/data/sub/", "s3://bucket/data/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/"), ElementsAre("data/b", "data/sub/b"));
}

TEST_F(ObjectSafety, AMissingOrEmptySourceEmptiesNothing) {
  WriteLocal("data/a", "a");
  ASSERT_EQ(Millrace({"cp", "-r", "data/", "s3://bucket/d/"}).exit, 0);
  fs::create_directory(work() / "empty");
  EXPECT_EQ(Millrace({"sync", "--delete", "missing", "s3://bucket/d/"}).exit, 4);
  EXPECT_EQ(Millrace({"sync", "--delete", "empty", "s3://bucket/d/"}).exit, 4);
  EXPECT_EQ(Millrace({"sync", "--delete", "s3://bucket/typo/", "data"}).exit, 4);
  EXPECT_EQ(Millrace({"sync", "s3://bucket/typo/", "data"}).exit, 4);
  EXPECT_EQ(Millrace({"sync", "--delete", "--include", "*.none", "data", "s3://bucket/d/"}).exit, 0);
  EXPECT_EQ(Local("data/a"), "a");
  EXPECT_THAT(Keys("s3://bucket/d/"), ElementsAre("d/a"));
  EXPECT_EQ(Millrace({"sync", "--delete", "--allow-empty-source", "empty", "s3://bucket/d/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/"), IsEmpty());
}

TEST_F(ObjectSafety, MaxDeleteDeletesAllOrNone) {
  for (const char* name : {"data/a", "data/b", "data/c", "less/a"}) WriteLocal(name, "x");
  ASSERT_EQ(Millrace({"cp", "-r", "data/", "s3://bucket/d/"}).exit, 0);
  Ran ran = Millrace({"sync", "--delete", "--max-delete", "1", "less", "s3://bucket/d/"});
  EXPECT_NE(ran.exit, 0);
  EXPECT_THAT(ran.err, HasSubstr("lacks 2 names"));
  EXPECT_THAT(Keys("s3://bucket/d/"), ElementsAre("d/a", "d/b", "d/c"));
  EXPECT_EQ(Millrace({"sync", "--delete", "--max-delete", "2", "less", "s3://bucket/d/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/d/"), ElementsAre("d/a"));
}

TEST_F(ObjectSafety, ManyAreRemovedOnlyWhenSaid) {
  for (const char* name : {"data/a", "data/b"}) WriteLocal(name, "x");
  ASSERT_EQ(Millrace({"cp", "-r", "data/", "s3://bucket/d/"}).exit, 0);
  Ran ran = Millrace({"rm", "s3://bucket/d/"});
  EXPECT_EQ(ran.exit, 2);
  EXPECT_THAT(ran.err, HasSubstr("--recursive"));
  EXPECT_EQ(Millrace({"rm", "data/"}).exit, 2);
  EXPECT_THAT(Keys("s3://bucket/"), ElementsAre("d/a", "d/b"));
  EXPECT_THAT(Millrace({"rm", "s3://bucket/d/*"}).err, HasSubstr("rm: 2 items"));
  EXPECT_THAT(Millrace({"rm", "-r", "data/"}).err, HasSubstr("rm: 2 items"));
}

/// What the program says at a terminal, where `answer` is typed.
std::pair<int, std::string> AtTerminal(testing_support::Program& program, std::vector<std::string> arguments,
                                       std::string_view answer) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    for (const auto& [name, value] : program.env()) setenv(name.c_str(), value.c_str(), 1);
    std::string path = program.path().string();
    std::vector<char*> argv{path.data()};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(path.c_str(), argv.data());
    _exit(127);
  }
  UniqueFd owned(terminal);
  EXPECT_EQ(write(terminal, answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
  std::string said;
  char piece[4096];
  for (ssize_t n = 0; (n = read(terminal, piece, sizeof piece)) > 0;) said.append(piece, static_cast<std::size_t>(n));
  int status = 0;
  waitpid(child, &status, 0);
  return {WEXITSTATUS(status), said};
}

TEST_F(ObjectSafety, ATerminalIsAskedBeforeAThousandGo) {
  for (int i = 0; i < 1001; ++i) WriteLocal(fmt::format("data/{}", i), "");
  auto [exit, said] = AtTerminal(program_, {"rm", "-r", (work() / "data/").string()}, "n\n");
  EXPECT_EQ(exit, 1);
  EXPECT_THAT(said, HasSubstr("1,001 items"));
  EXPECT_EQ(LocalFiles("data").size(), 1001u);
  EXPECT_EQ(AtTerminal(program_, {"rm", "-r", "--dry-run", (work() / "data/").string()}, "").first, 0);
  EXPECT_EQ(AtTerminal(program_, {"rm", "-r", (work() / "data/").string()}, "y\n").first, 0);
  EXPECT_THAT(LocalFiles("data"), IsEmpty());
}

TEST_F(ObjectSafety, NamesOfStrangersDoNotCommandATerminal) {
  const std::string name = "a\x1b]52;c;cm0gLXJm\x07\x1b[2Jb";
  WriteLocal("data/" + name, "x");
  ASSERT_EQ(Millrace({"cp", "-r", "data/", "s3://bucket/d/"}).exit, 0);
  const std::string folder = (work() / "data/").string(), copy = (work() / "copy/").string();
  using Words = std::vector<std::string>;
  for (const Words& command : {Words{"ls", "-r", "s3://bucket/"},
                               {"ls", "-r", "--json", "s3://bucket/"},
                               {"ls", "--versions", "-r", "s3://bucket/"},
                               {"ls", folder},
                               {"head", "s3://bucket/d/" + name},
                               {"du", "s3://bucket/d/" + name},
                               {"cp", "-r", "--progress", "off", "s3://bucket/d/", copy},
                               {"cat", "s3://bucket/" + name},
                               {"rm", "--dry-run", "-r", "s3://bucket/d/"},
                               {"ls", "s3://bucket/" + name}}) {
    const std::string said = AtTerminal(program_, command, "").second;
    EXPECT_THAT(said, HasSubstr("52;c;cm0gLXJm")) << command.front();
    EXPECT_THAT(said, Not(HasSubstr("\x1b"))) << command.front();
    EXPECT_THAT(said, Not(HasSubstr("\x07"))) << command.front();
  }
  EXPECT_THAT(Millrace({"ls", "-r", "s3://bucket/"}).out, HasSubstr(name)) << "a pipe gets the name as it is";
}

TEST_F(ObjectSafety, AReaderThatGoesEndsAListingButNoCopy) {
  for (int i = 0; i < 3000; ++i) WriteLocal(fmt::format("data/{:060}", i), "");
  Ran copied = program_.Shell("millrace cp -r data/ copy/ | head -2 >&2; exit ${PIPESTATUS[0]}");
  EXPECT_EQ(copied.exit, 0) << copied.err;
  EXPECT_EQ(LocalFiles("copy").size(), 3000u);
  for (const char* command : {"ls -r data/", "ls -r --json data/", "cat data/"}) {
    WriteLocal("data/0", std::string(kMiB, 'x'));
    Ran listed = program_.Shell(fmt::format("millrace {} | head -c 10 >/dev/null; exit ${{PIPESTATUS[0]}}", command));
    EXPECT_EQ(listed.exit, 128 + SIGPIPE) << command;
    EXPECT_THAT(listed.err, IsEmpty()) << command;
  }
  Ran removed = program_.Shell("millrace rm -r copy/ 2>&1 | head -1 >/dev/null; exit ${PIPESTATUS[0]}");
  EXPECT_EQ(removed.exit, 0);
  EXPECT_THAT(LocalFiles("copy"), IsEmpty());
  Ran run = program_.Shell(
      "printf 'ls -r data/\ncp -r data/ run/\n' | millrace run --workers 1 | head -1 >/dev/null; "
      "exit ${PIPESTATUS[1]}");
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(LocalFiles("run").size(), 3001u);
  Ran full = program_.Shell("millrace ls -r data/ > /dev/full");
  EXPECT_EQ(full.exit, 1);
  EXPECT_THAT(full.err, HasSubstr("No space left"));
}

}  // namespace
}  // namespace millrace
