// A real mount over a store that fails: errors are right, nothing hangs, nothing that was acknowledged is lost, and
// what was refused is published once the store takes it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"
#include "tests/mount/mount_fixture.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

/// The same files and changes wherever it runs, so that a folder of the local disk says what a mount must have.
constexpr const char* kWorkload = R"(
import os, random, sys, shutil
os.chdir(sys.argv[1])
rng = random.Random(5)
for d in ("a", "a/b", "c"): os.mkdir(d)
for i in range(20):
    name = f"{('a', 'a/b', 'c')[i % 3]}/f{i}"
    data = rng.randbytes(rng.choice((10, 3000, 200_000, 1_500_000)))
    with open(name, "wb") as f: f.write(data)
    assert open(name, "rb").read() == data, name
    if i % 4 == 0:
        with open(name, "ab") as f: f.write(b"tail")
    if i % 5 == 0: os.rename(name, name + "-moved")
    if i % 7 == 3: os.remove(name) if os.path.exists(name) else None
with open("big", "wb") as f:
    for _ in range(12): f.write(rng.randbytes(1_000_000))
    f.flush()
    os.fsync(f.fileno())
    f.seek(5_000_000)
    f.write(b"edited")
os.rename("a", "renamed")
shutil.copytree("renamed", "copied")
os.chmod("big", 0o600)
)";

class MountFaultTest : public MountFixture {
 protected:
  void TearDown() override {
    if (!small_disk_.empty()) ::umount2(small_disk_.c_str(), MNT_DETACH);
  }
  /// Runs a command that must end within a time, however.
  MountProgram::Ran Within(std::chrono::milliseconds time, const std::string& command) {
    const auto began = std::chrono::steady_clock::now();
    auto ran = mount_->Shell(command);
    EXPECT_LT(std::chrono::steady_clock::now() - began, time) << command;
    return ran;
  }
  /// A file system of that size.
  void MakeSmallDisk(const char* size) {
    const auto folder = mount_->scratch() / "small";
    std::filesystem::create_directory(folder);
    if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, fmt::format("size={},mode=0700", size).c_str()) != 0) {
      GTEST_SKIP() << "a small disk needs the right to mount a tmpfs";
    }
    small_disk_ = folder;
  }
  static std::string Noise(std::size_t size, std::uint64_t seed) {
    std::string text(size, '\0');
    Random random(seed);
    for (char& c : text) c = static_cast<char>(random.Next());
    return text;
  }

  std::filesystem::path small_disk_;
};

TEST_F(MountFaultTest, AStoreThatIgnoresConditionsIsMountedReadOnlyOrNotAtAll) {
  mount_->Put("f", "kept");
  mount_->SetFaults("unconditional");
  for (const std::string url : {"s3://bucket", "s3://bucket/below/", "s3://"}) {
    const auto refused = mount_->MountUrl(url);
    EXPECT_NE(refused.status, 0) << url;
    EXPECT_THAT(refused.output, HasSubstr("ignores the conditions of writes")) << url;
    EXPECT_THAT(refused.output, HasSubstr("--read-only")) << url;
    EXPECT_EQ(mount_->daemon(), 0) << url;
  }
  MustMount({"--read-only"});
  Check("cat f", "kept");
  Check("ls -A", "f\n");  // the probe has left nothing
  MustUmount();
}

TEST_F(MountFaultTest, StormsAreRiddenOutAndNothingIsLost) {
  std::ofstream(mount_->scratch() / "workload.py") << kWorkload;
  mount_->SetAttempts(20);
  MustMount();
  mount_->SetFaults(
      "error=503,rate=4%; error=500,rate=4%; reset=request,rate=4%; "
      "reset=answer,rate=3%,op=PutObject|UploadPart|DeleteObject|HeadObject; "
      "reset=body,rate=4%,op=GetObject|ListObjectsV2; truncate,rate=4%,op=GetObject|ListObjectsV2; damage,rate=3%,"
      "op=PutObject|UploadPart");
  Check("mkdir ../expected && python3 ../workload.py ../expected");
  Check("python3 ../workload.py .");
  Check("diff -r . ../expected");
  MustUmount();
  mount_->SetFaults("");
  MustMount();
  Check("diff -r . ../expected && stat -c %a big", "600\n");
  MustUmount();
}

TEST_F(MountFaultTest, DamagedBytesAreReadAgainOrRefused) {
  const std::string content = Noise(300'000, 1);
  mount_->Put("f", content);
  mount_->Put("g", content);
  MustMount();
  std::ofstream(mount_->scratch() / "expected", std::ios::binary) << content;
  mount_->SetFaults("damage,op=GetObject,count=1");
  Check("cmp f ../expected");
  mount_->SetFaults("damage,op=GetObject");
  EXPECT_THAT(mount_->Shell("cat g >/dev/null").output, HasSubstr("Input/output error"));
  mount_->SetFaults("");
  Check("cmp g ../expected");
  mount_->SetFaults("damage,op=PutObject,count=1");
  Check("cp ../expected h");
  mount_->SetFaults("");
  EXPECT_TRUE(mount_->Object("h") == content);
}

TEST_F(MountFaultTest, AServerThatGoesAndComesBackCostsErrorsButNoData) {
  mount_->Put("there", "content");
  MustMount();
  Check("cat there", "content");
  UniqueFd fd(::open((mount_->point() / "open").c_str(), O_RDWR | O_CREAT, 0644));
  ASSERT_EQ(::write(fd.get(), "before ", 7), 7);
  mount_->StopServer();
  EXPECT_EQ(Within(20s, "cat there").status, 1);
  EXPECT_NE(Within(20s, "ls").status, 0);
  EXPECT_EQ(::write(fd.get(), "meanwhile", 9), 9) << "writing needs no store";
  EXPECT_EQ(::fsync(fd.get()), -1);
  EXPECT_EQ(errno, EIO);
  char read[16] = {};
  EXPECT_EQ(::pread(fd.get(), read, sizeof read, 0), 16) << "what was written is here";
  EXPECT_EQ(std::string_view(read, 16), "before meanwhile");
  EXPECT_NE(Within(20s, "echo never >new").status, 0);
  mount_->StartServer();
  EXPECT_EQ(::fsync(fd.get()), 0);
  EXPECT_EQ(mount_->Object("open"), "before meanwhile");
  Check("cat there && echo again >new && cat new", "contentagain\n");
  EXPECT_EQ(::close(fd.Release()), 0);
  MustUmount();
}

TEST_F(MountFaultTest, AnOutageOfSecondsIsWaitedFor) {
  mount_->Put("there", "content");
  mount_->SetAttempts(30);
  MustMount();
  mount_->StopServer();
  std::jthread back([&] {
    ::usleep(700'000);  // the other process waits in real time
    mount_->StartServer();
  });
  Check("cat there && cp there copy && cat copy", "contentcontent");
  back.join();
  EXPECT_EQ(mount_->Object("copy"), "content");
  MustUmount();
}

TEST_F(MountFaultTest, ARenameOfUnknownOutcomeLosesNothingWhateverUsersDo) {
  mount_->Put("from/f", "content");
  mount_->Put("from/s/g", "more");
  MustMount({"--metadata-ttl=none"});  // the kernel asks for every name
  // The commit takes effect, its answer is lost, and then the record can be neither written nor read.
  mount_->SetFaults(
      "reset=answer,op=PutObject,key=.millrace/renames,skip=1,count=1; "
      "error=503,op=PutObject,key=.millrace/renames,skip=2; error=503,op=GetObject,key=.millrace/renames");
  EXPECT_NE(mount_->Shell("mv from to").status, 0);
  Check("cat from/f to/s/g", "contentmore");
  EXPECT_THAT(mount_->Shell("rm -r to").output, HasSubstr("Device or resource busy"));
  EXPECT_THAT(mount_->Shell("mv from to2").output, HasSubstr("Device or resource busy"));
  EXPECT_THAT(mount_->Shell("echo x >from/new").output, HasSubstr("Device or resource busy"));
  EXPECT_THAT(mount_->log(), HasSubstr("it is open whether a directory was renamed"));
  mount_->SetFaults("");
  for (int tries = 0; mount_->Shell("echo x >from/new").status != 0 && tries < 100; ++tries) ::usleep(100'000);
  Check("ls; cat from/f from/s/g from/new", "from\ncontentmorex\n");
  Check("mv from to && rm to/new && cat to/f to/s/g", "contentmore");
  MustUmount();
  MustMount();
  Check("ls; cat to/f to/s/g", "to\ncontentmore");
  MustUmount();
}

TEST_F(MountFaultTest, ARenameOfUnknownOutcomeIsSettledByTheNextMount) {
  mount_->Put("from/f", "content");
  MustMount();
  mount_->SetFaults(
      "reset=answer,op=PutObject,key=.millrace/renames,skip=1,count=1; "
      "error=503,op=PutObject,key=.millrace/renames,skip=2; error=503,op=GetObject,key=.millrace/renames");
  EXPECT_NE(mount_->Shell("mv from to").status, 0);
  // Somebody else, who knows nothing of the rename, takes one of the two for spare.
  ASSERT_TRUE(object::DeleteMany(mount_->store(), {"to/f", "to/"}));
  MustUmount();
  mount_->SetFaults("");
  MustMount();
  Check("cat from/f", "content");
  Check("mv from to && cat to/f", "content");
  MustUmount();
}

/// Programs that do the same thing again and again, while a test waits for what becomes of them.
class Programs {
 public:
  /// Does its thing once: 0, or what it was refused with.
  using Once = std::function<int()>;
  explicit Programs(std::vector<Once> all) : seen_(all.size()) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      threads_.emplace_back([this, i, once = std::move(all[i])](const std::stop_token& stop) {
        while (!stop.stop_requested()) Count(i, once());
      });
    }
  }
  /// Until each has done it so often more, or has been refused.
  void AwaitDone(int times) { Await(times, &Seen::done); }
  void AwaitRefused() { Await(1, &Seen::refused); }

 private:
  struct Seen {
    int done = 0, refused = 0;
  };
  void Count(std::size_t i, int error) MR_EXCLUDES(mutex_) {
    EXPECT_TRUE(error == 0 || error == EIO) << "program " << i << ": " << error;
    MutexLock lock(mutex_);
    ++(error == 0 ? seen_[i].done : seen_[i].refused);
    news_.NotifyAll();
  }
  void Await(int times, int Seen::* what) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const std::vector<Seen> before = seen_;
    const auto end = std::chrono::steady_clock::now() + 50s;
    auto all = [&]() MR_NO_THREAD_SAFETY_ANALYSIS {
      for (std::size_t i = 0; i < seen_.size(); ++i) {
        if (seen_[i].*what < before[i].*what + times) return false;
      }
      return true;
    };
    EXPECT_TRUE(news_.WaitUntil(mutex_, end, {}, all)) << "a program hangs";
  }

  Mutex mutex_;
  CondVar news_;
  std::vector<Seen> seen_ MR_GUARDED_BY(mutex_);
  std::vector<std::jthread> threads_;
};

TEST_F(MountFaultTest, ProgramsThatTryAgainLoseNothingToAnOutage) {
  const std::string large = Noise(20'000'000, 6);
  mount_->Put("large", large);
  for (int i = 0; i < 20; ++i) mount_->Put(fmt::format("list/{}", i), "x");
  ASSERT_NO_FATAL_FAILURE(MustMount({"--memory-budget", "128MiB"}));
  const auto point = mount_->point();

  UniqueFd reading;
  std::size_t read = 0;
  auto read_on = [&] {
    if (!reading) {
      reading = UniqueFd(::open((point / "large").c_str(), O_RDONLY));
      if (!reading) return errno;
      (void)::posix_fadvise(reading.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
    std::string piece(kMiB, '\0');
    const ssize_t got = ::pread(reading.get(), piece.data(), piece.size(), static_cast<off_t>(read));
    if (got < 0) return errno;
    EXPECT_TRUE(piece.substr(0, static_cast<std::size_t>(got)) == large.substr(read, kMiB)) << read;
    read += static_cast<std::size_t>(got);
    if (read == large.size()) reading.Reset(), read = 0;
    return 0;
  };
  UniqueFd writing;
  std::uint64_t files = 0;
  auto content = [](std::uint64_t i) { return Noise(i % 5 == 4 ? 9'000'000 : 2'000 * i, i); };
  auto write_file = [&] {
    if (!writing) {
      writing = UniqueFd(::open((point / fmt::format("w{}", files)).c_str(), O_WRONLY | O_CREAT, 0644));
      if (!writing) return errno;
      const std::string text = content(files);
      EXPECT_EQ(::write(writing.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    }
    if (::fsync(writing.get()) != 0) return errno;
    ++files;
    return ::close(writing.Release()) == 0 ? 0 : errno;
  };
  auto list = [&] {
    std::error_code error;
    std::ptrdiff_t names = 0;
    for (std::filesystem::directory_iterator at(point / "list", error), end; !error && at != end; at.increment(error)) {
      ++names;
    }
    EXPECT_TRUE(error || names == 20) << names;
    return error.value();
  };
  {
    Programs programs({read_on, write_file, list});
    programs.AwaitDone(3);
    mount_->StopServer();
    programs.AwaitRefused();
    mount_->StartServer();
    programs.AwaitDone(6);
  }
  writing.Reset();
  reading.Reset();
  for (std::uint64_t i = 0; i < files; ++i) EXPECT_TRUE(mount_->Object(fmt::format("w{}", i)) == content(i)) << i;
  EXPECT_TRUE(object::ListUploads(mount_->store(), "")->empty());
  MustUmount();
}

TEST_F(MountFaultTest, WhoWaitsForAServerThatDripsCanLeave) {
  mount_->Put("f", Noise(3'000'000, 3));
  MustMount();
  Check("stat f >/dev/null");
  mount_->SetFaults("bandwidth=2000,op=GetObject");
  EXPECT_EQ(Within(5s, "timeout -s INT 0.5 cat f >/dev/null").status, 124);
  EXPECT_EQ(Within(5s, "timeout -s KILL 0.5 cat f >/dev/null").status, 137);
  Within(5s, "ls >/dev/null && stat f >/dev/null");  // others are served meanwhile
  mount_->SetFaults("");
  Check("wc -c <f", "3000000\n");
  MustUmount();
}

TEST_F(MountFaultTest, AFullStagingDiskGivesEnospcAndGoesOnWhenThereIsRoom) {
  ASSERT_NO_FATAL_FAILURE(MakeSmallDisk("24m"));
  if (IsSkipped()) return;
  mount_->SetFaults("error=503,op=UploadPart|PutObject");  // nothing leaves
  MustMount({"--staging-dir", (small_disk_ / "staging").string(), "--staging-limit", "1GiB"});
  std::ofstream(mount_->scratch() / "expected", std::ios::binary) << Noise(4'000'000, 4);
  UniqueFd kept(::open((mount_->point() / "kept").c_str(), O_RDWR | O_CREAT, 0644));
  ASSERT_EQ(::write(kept.get(), "staged before", 13), 13);
  auto full = Within(30s, "dd if=/dev/zero of=too-much bs=1M count=40");
  EXPECT_NE(full.status, 0);
  EXPECT_THAT(full.output, HasSubstr("No space left on device"));
  EXPECT_THAT(mount_->log(), Not(HasSubstr("nor written down"))) << "there is room for records";
  mount_->SetFaults("");
  Check("rm -f too-much && cp ../expected fits && cmp fits ../expected");
  EXPECT_EQ(::fsync(kept.get()), 0) << "what was staged before is whole";
  EXPECT_EQ(::close(kept.Release()), 0);
  EXPECT_EQ(mount_->Object("kept"), "staged before");
  Check("dd if=/dev/zero of=streamed bs=1M count=60 2>/dev/null && stat -c %s streamed", "62914560\n");
  MustUmount();
}

TEST_F(MountFaultTest, AFullCacheDiskCostsNothingButTheCache) {
  ASSERT_NO_FATAL_FAILURE(MakeSmallDisk("6m"));
  if (IsSkipped()) return;
  const std::string content = Noise(20'000'000, 5);
  mount_->Put("f", content);
  std::ofstream(mount_->scratch() / "expected", std::ios::binary) << content;
  MustMount({"--cache", (small_disk_ / "cache").string(), "--memory-budget", "128MiB"});
  for (int i = 0; i < 2; ++i) Check("cmp f ../expected");
  std::ofstream(small_disk_ / "filler") << std::string(8'000'000, 'x');
  Check("cmp f ../expected && echo still >g && cat g", "still\n");
  MustUmount();
}

}  // namespace
}  // namespace millrace
