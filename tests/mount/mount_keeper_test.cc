// A mount whose daemon is killed, and goes on: programs see no error and no wrong byte.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "millrace/base/hash/random.h"
#include "millrace/http/socket.h"
#include "millrace/mount/daemon/session_lease.h"
#include "tests/mount/mount_program.h"
#include "tests/support/kill.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

/// The keeper as the CSI driver runs it, in a process of its own.
class KeeperProcess {
 public:
  explicit KeeperProcess(const fs::path& socket) {
    auto started = Subprocess::Start(
        {.argv = {MountProgram::program().parent_path() / "millrace-csi", "keeper", "--socket", socket.string()},
         .stderr_file = socket.string() + ".log"});
    EXPECT_TRUE(started) << started.error().ToString();
    process_.emplace(*std::move(started));
    while (!process_->Poll() && !mount::ListHeldSessions(socket)) std::this_thread::yield();
  }
  void Kill() {
    process_->Signal(SIGKILL);
    process_->Wait();
  }

 private:
  std::optional<Subprocess> process_;
};

/// Starts daemons from a process that uses no file of the mount: a child of the test would close the test's files
/// before it runs its program, and wait for the daemon that it is to start.
class Starter {
 public:
  explicit Starter(const MountProgram& mount, std::vector<std::string> flags) : output_(mount.scratch() / "started") {
    std::vector<std::string> argv = {"/bin/sh",
                                     "-c",
                                     R"(while read _; do "$@" > "$0" 2>&1; echo $?; done)",
                                     output_.string(),
                                     MountProgram::program().string(),
                                     "mount",
                                     "s3://bucket",
                                     mount.point().string(),
                                     "--log-file",
                                     (mount.scratch() / "log").string()};
    argv.insert(argv.end(), flags.begin(), flags.end());
    auto shell = Subprocess::Start({.argv = std::move(argv),
                                    .env = mount.environment(),
                                    .capture_stdout = true,
                                    .null_stdin = false,
                                    .pipe_stdin = true});
    EXPECT_TRUE(shell) << shell.error().ToString();
    shell_.emplace(*std::move(shell));
  }
  /// Returns the exit status of `millrace mount`.
  std::string Start() {
    EXPECT_EQ(::write(shell_->stdin_fd(), "\n", 1), 1);
    std::string status;
    for (char c = 0; ::read(shell_->stdout_fd(), &c, 1) == 1 && c != '\n';) status += c;
    return status;
  }
  std::string output() const { return ReadFile(output_).value_or(""); }

 private:
  const fs::path output_;
  std::optional<Subprocess> shell_;
};

class MountKeeper : public testing::Test {
 protected:
  void SetUp() override {
    if (Status available = MountProgram::Available(); !available) GTEST_SKIP() << available.error().ToString();
    if (::geteuid() != 0) GTEST_SKIP() << "a kept mount needs root";
    if (!fs::exists(MountProgram::program().parent_path() / "millrace-csi"))
      GTEST_SKIP() << "millrace csi is not built";
    StartKeeper();
    starter_.emplace(mount_, flags());
    Start();
    if (mount_.log().contains("this kernel cannot send requests again")) GTEST_SKIP() << "the kernel is too old";
  }

  fs::path socket() const { return sockets_.path() / "keeper.sock"; }
  fs::path session_log() const { return mount_.scratch() / "session"; }
  std::vector<std::string> flags() const {
    return {"--keeper", socket().string(), "--kept-name", "m", "--session-log", session_log().string()};
  }
  void StartKeeper() {
    fs::remove(socket());
    keeper_.emplace(socket());
  }
  /// Starts a daemon, which goes on with the mount if there is one.
  void Start() { ASSERT_EQ(starter_->Start(), "0") << starter_->output() << mount_.log(); }
  void Kill() {
    const pid_t daemon = mount_.daemon();
    ASSERT_GT(daemon, 0) << mount_.log();
    // The keeper gives a mount to one process at a time.
    testing_support::KillAndAwaitEnd(daemon);
  }
  fs::path point() const { return mount_.point(); }

  MountProgram mount_;
  TempDir sockets_ = *TempDir::Create("/tmp");  ///< the test's own folder may be too deep for a socket
  std::optional<KeeperProcess> keeper_;
  std::optional<Starter> starter_;
};

/// Uses files as programs do, and compares with what they must have. Ends with the first thing that is wrong.
class Worker {
 public:
  Worker(fs::path folder, std::uint64_t seed) : folder_(std::move(folder)), random_(seed) {
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  }
  std::string End() {
    thread_.request_stop();
    thread_.join();
    return wrong_;
  }
  int steps() const { return steps_; }
  bool failed() const { return failed_; }

 private:
  void Run(const std::stop_token& stop) {
    Check(::mkdir(folder_.c_str(), 0755) == 0, "mkdir");
    fd_ = ::open((folder_ / "long").c_str(), O_RDWR | O_CREAT | O_EXCL, 0644);
    Check(fd_ >= 0, "create");
    while (!stop.stop_requested() && !failed_) {
      WriteSome();
      ReadSome();
      if (steps_ % 5 == 0) WholeFile();
      if (steps_ % 7 == 0) Rename();
      if (steps_ % 11 == 0) Check(::fsync(fd_) == 0, "fsync");
      if (steps_ % 13 == 0) List();
      if (steps_ % 17 == 0) Cut();
      ++steps_;
    }
    Check(::close(fd_) == 0, "close");
    Check(ReadAll(folder_ / "long") == expected_, "the long file after its close");
  }

  void WriteSome() {
    const std::uint64_t at = random_.Below(kMax), size = 1 + random_.Below(40'000);
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random_.Next());
    Check(::pwrite(fd_, bytes.data(), size, static_cast<off_t>(at)) == static_cast<ssize_t>(size), "write");
    if (expected_.size() < at + size) expected_.resize(at + size);
    expected_.replace(at, size, bytes);
  }
  void ReadSome() {
    // Not from the kernel's cache, so that the mount reads what it has staged.
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    std::string bytes(expected_.size(), '\0');
    std::size_t got = 0;
    while (got < bytes.size()) {
      const ssize_t n = ::pread(fd_, bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
      if (n <= 0) break;
      got += static_cast<std::size_t>(n);
    }
    Check(bytes == expected_, "what was written, read again");
  }
  void Cut() {
    const std::uint64_t size = random_.Below(expected_.size() + 1);
    Check(::ftruncate(fd_, static_cast<off_t>(size)) == 0, "truncate");
    expected_.resize(size);
  }
  void WholeFile() {
    const fs::path path = folder_ / ("f" + std::to_string(names_++));
    const std::string content(1 + random_.Below(100'000), static_cast<char>('a' + steps_ % 26));
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
    Check(fd >= 0, "create a file");
    Check(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()), "write a file");
    Check(::close(fd) == 0, "close a file");
    Check(ReadAll(path) == content, "a file after its close");
    struct stat info{};
    Check(::stat(path.c_str(), &info) == 0 && (info.st_mode & 0777) == 0600, "the mode of a file");
    files_[path.filename()] = content;
    if (files_.size() > 12) {
      Check(::unlink((folder_ / files_.begin()->first).c_str()) == 0, "unlink");
      files_.erase(files_.begin());
    }
  }
  void Rename() {
    if (files_.empty()) return;
    auto file = files_.extract(files_.begin());
    const std::string next = "g" + std::to_string(names_++);
    Check(::rename((folder_ / file.key()).c_str(), (folder_ / next).c_str()) == 0, "rename");
    Check(ReadAll(folder_ / next) == file.mapped(), "a renamed file");
    file.key() = next;
    files_.insert(std::move(file));
  }
  void List() {
    std::set<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_, error)) names.insert(entry.path().filename());
    std::set<std::string> all = {"long"};
    for (const auto& [name, content] : files_) all.insert(name);
    Check(!error && names == all, "the names of the directory");
  }
  static std::string ReadAll(const fs::path& path) { return ReadFile(path).value_or("<cannot be read>"); }
  void Check(bool right, const std::string& what) {
    if (right || failed_) return;
    wrong_ = fmt::format("{} in step {}: {}", what, steps_.load(), ErrnoError(errno, "errno").ToString());
    failed_ = true;
  }

  static constexpr std::uint64_t kMax = 400'000;
  const fs::path folder_;
  Random random_;
  int fd_ = -1, names_ = 0;
  std::string expected_, wrong_;
  std::map<std::string, std::string> files_;
  std::atomic<int> steps_ = 0;
  std::atomic<bool> failed_ = false;
  std::jthread thread_;
};

TEST_F(MountKeeper, ProgramsGoOnWhenTheDaemonIsKilled) {
  constexpr int kKills = 20;
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint64_t seed : {1, 2, 3}) {
    workers.push_back(std::make_unique<Worker>(point() / ("d" + std::to_string(seed)), seed));
  }
  auto steps = [&] {
    int sum = 0;
    for (const auto& worker : workers) sum += worker->steps();
    return sum;
  };
  auto failed = [&] { return std::ranges::any_of(workers, [](const auto& worker) { return worker->failed(); }); };
  Random random(7);
  for (int kill = 0; kill < kKills && !failed(); ++kill) {
    const int until = steps() + 5 + static_cast<int>(random.Below(20));
    while (steps() < until && !failed()) std::this_thread::yield();
    Kill();
    Start();
  }
  for (auto& worker : workers) EXPECT_THAT(worker->End(), IsEmpty()) << mount_.log() << starter_->output();
  const auto ended = mount_.Umount();
  EXPECT_EQ(ended.status, 0) << ended.output << mount_.log();
  EXPECT_FALSE(fs::exists(session_log()));
  for (const auto& entry : fs::recursive_directory_iterator(mount_.scratch() / "home")) {
    if (entry.path().filename().string().ends_with(".record")) ADD_FAILURE() << entry.path() << " is left staged";
  }
}

TEST_F(MountKeeper, OpenFilesAndMappingsGoOn) {
  mount_.Put("read", std::string(3'000'000, 'r'));
  UniqueFd read(::open((point() / "read").c_str(), O_RDONLY));
  UniqueFd written(::open((point() / "written").c_str(), O_RDWR | O_CREAT, 0644));
  UniqueFd removed(::open((point() / "removed").c_str(), O_RDWR | O_CREAT, 0644));
  ASSERT_TRUE(read && written && removed);
  ASSERT_EQ(::pwrite(written.get(), "staged", 6, 100'000), 6);
  ASSERT_EQ(::pwrite(removed.get(), "no name", 7, 0), 7);
  ASSERT_EQ(::unlink((point() / "removed").c_str()), 0);
  ASSERT_EQ(::flock(written.get(), LOCK_EX), 0);
  auto* mapped = static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, written.get(), 98'304));
  ASSERT_NE(mapped, MAP_FAILED);
  mapped[0] = 'm';
  Kill();
  Start();
  EXPECT_EQ(std::string(mapped + 1696, 6), "staged");
  mapped[1] = 'n';
  ASSERT_EQ(::msync(mapped, 8192, MS_SYNC), 0);
  char bytes[8] = {};
  ASSERT_EQ(::pread(read.get(), bytes, 3, 2'000'000), 3);
  EXPECT_STREQ(bytes, "rrr");
  ASSERT_EQ(::pread(removed.get(), bytes, 7, 0), 7);
  EXPECT_STREQ(bytes, "no name");
  UniqueFd other(::open((point() / "written").c_str(), O_RDWR));
  EXPECT_NE(::flock(other.get(), LOCK_EX | LOCK_NB), 0) << "the lock is held";
  ASSERT_EQ(::close(written.Release()), 0);
  other.Reset();
  ::munmap(mapped, 8192);
  const std::string content = mount_.Object("written");
  ASSERT_EQ(content.size(), 100'006);
  EXPECT_EQ(content.substr(100'000), "staged");
  EXPECT_EQ(content.substr(98'304, 2), "mn");
}

TEST_F(MountKeeper, ADirectoryIsReadOn) {
  constexpr int kFiles = 2500;  // three pages
  for (int i = 0; i < kFiles; ++i) mount_.Put("many/f" + std::to_string(10'000 + i), "");
  std::multiset<std::string> names;
  int read = 0;
  for (const auto& entry : fs::directory_iterator(point() / "many")) {
    names.insert(entry.path().filename());
    if (++read % 900 != 0) continue;
    Kill();
    Start();
  }
  EXPECT_EQ(names.size(), kFiles);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), kFiles);
}

TEST_F(MountKeeper, AReaderOfAReplacedFileDoesNotSeeTheNewOne) {
  mount_.Put("f", std::string(3'000'000, 'a'));
  UniqueFd old(::open((point() / "f").c_str(), O_RDONLY));
  ASSERT_TRUE(old);
  mount_.Put("f", std::string(3'000'000, 'b'));
  UniqueFd now(::open((point() / "f").c_str(), O_RDONLY));
  Kill();
  Start();
  char byte = 0;
  EXPECT_EQ(::pread(now.get(), &byte, 1, 2'500'000), 1);
  EXPECT_EQ(byte, 'b');
  EXPECT_EQ(::pread(old.get(), &byte, 1, 1000), -1);  // not where the kernel has pages
  EXPECT_EQ(errno, ESTALE);
}

TEST_F(MountKeeper, AnotherKeeperGetsTheMount) {
  std::ofstream open(point() / "file");
  open << "before" << std::flush;
  keeper_->Kill();
  std::ofstream(point() / "meanwhile") << "works";
  EXPECT_EQ(mount_.Object("meanwhile"), "works");
  StartKeeper();
  auto known = [&] {
    const auto kept = mount::ListHeldSessions(socket());
    return kept && !kept->empty() && kept->front().has_device;
  };
  while (!known()) std::this_thread::yield();
  Kill();
  Start();
  open << " after";
  open.close();
  EXPECT_TRUE(open);
  EXPECT_EQ(mount_.Object("file"), "before after");
}

TEST_F(MountKeeper, GoesOnWithoutAnAddressForMetrics) {
  const http::Listener taken = *http::Listener::Open("127.0.0.1:0");
  auto with_metrics = flags();
  with_metrics.insert(with_metrics.end(), {"--metrics-listen", "127.0.0.1:" + std::to_string(taken.port)});
  starter_.emplace(mount_, with_metrics);
  std::ofstream open(point() / "file");
  open << "before" << std::flush;
  Kill();
  Start();
  EXPECT_THAT(starter_->output(), testing::HasSubstr("goes on without metrics"));
  open << " after";
  open.close();
  EXPECT_TRUE(open);
  EXPECT_EQ(mount_.Object("file"), "before after");
}

TEST_F(MountKeeper, WithoutBothProgramsGetAnError) {
  UniqueFd open(::open((point() / "file").c_str(), O_RDWR | O_CREAT, 0644));
  keeper_->Kill();
  Kill();
  struct stat info{};
  EXPECT_NE(::stat((point() / "other").c_str(), &info), 0);
  EXPECT_EQ(errno, ENOTCONN);
  EXPECT_NE(::pwrite(open.get(), "x", 1, 0), 1);
  StartKeeper();
  Start();  // a new mount in its place
  EXPECT_NE(::pwrite(open.get(), "x", 1, 0), 1);
  std::ofstream(point() / "other") << "works";
  EXPECT_EQ(mount_.Object("other"), "works");
}

TEST_F(MountKeeper, ADamagedLogEndsTheMount) {
  UniqueFd open(::open((point() / "file").c_str(), O_RDWR | O_CREAT, 0644));
  Kill();
  std::string text = *ReadFile(session_log());
  text[12] ^= 1;
  ASSERT_TRUE(ReplaceFile(session_log(), AsBytes(text)));
  EXPECT_NE(starter_->Start(), "0");
  EXPECT_THAT(starter_->output(), testing::HasSubstr("cannot be served on"));
  EXPECT_NE(::pwrite(open.get(), "x", 1, 0), 1);
  Start();
  std::ofstream(point() / "other") << "works";
  EXPECT_EQ(mount_.Object("other"), "works");
}

}  // namespace
}  // namespace millrace
