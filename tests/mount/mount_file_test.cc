// The real program on a real mount: what users and their programs see.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/file_store.h"
#include "tests/mount/mount_fixture.h"

namespace millrace {
namespace {

using testing::HasSubstr;

class MountTest : public MountFixture {
 protected:
  static std::string Noise(std::size_t size, std::uint64_t seed = 1) {
    std::string text(size, '\0');
    Random random(seed);
    for (char& c : text) c = static_cast<char>(random.Next());
    return text;
  }
  static bool Has(const char* program) { return ::access(program, X_OK) == 0; }
};

TEST_F(MountTest, FilesAndFoldersAsProgramsUseThem) {
  MustMount();
  Check("mkdir d && echo hello > d/a && cat d/a", "hello\n");
  EXPECT_EQ(mount_->Object("d/a"), "hello\n");
  Check("cp /etc/passwd d/p && cmp /etc/passwd d/p && mv d/p q && cmp /etc/passwd q && test ! -e d/p");
  Check("echo replaced > other && mv q other && cmp /etc/passwd other && ! mv -T d other 2>/dev/null");
  Check("mv -n other d/a && cat d/a", "hello\n");
  Check("echo one > log; echo two >> log; cat log", "one\ntwo\n");
  Check("printf 12345 > t && truncate -s 0 t && stat -c %s t", "0\n");
  Check("touch empty && test -e empty && ! test -s empty");
  Check("python3 -c \"open('py','w').write('x'*5000); assert len(open('py').read())==5000\"");
  Check("(echo a; /bin/echo b; /bin/echo c) > forked && cat forked", "a\nb\nc\n");
  EXPECT_EQ(mount_->Shell("rmdir d").status, 1);
  Check("rm -r d && test ! -e d && ls", "empty\nforked\nlog\nother\npy\nt\n");
  MustUmount();
  EXPECT_EQ(mount_->Object("empty"), "");
  EXPECT_EQ(mount_->Object("log"), "one\ntwo\n");
}

TEST_F(MountTest, ADirectoryOfTenThousandListsInFull) {
  for (int block = 0; block < 10; ++block) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = t; i < 1000; i += 4) mount_->Put(fmt::format("many/f{:05}", block * 1000 + i), "x");
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  mount_->Put("many/sub/x", "x");
  MustMount();
  Check("ls many | wc -l", "10001\n");
  Check("ls -l many | grep -c \"^-rw-r--r-- 1 $(id -un) $(id -gn) 1 \"", "10000\n");
  Check("ls many | sort | uniq -d | wc -l", "0\n");
  Check("find . -type d | wc -l", "3\n");
  MustUmount();
}

TEST_F(MountTest, LargeFilesKeepEveryByte) {
  MustMount({"--memory-budget", "128MiB"});
  Check(
      "dd if=/dev/urandom of=../big bs=1M count=40 2>/dev/null && dd if=../big of=big bs=1M 2>/dev/null && cmp big "
      "../big");
  std::ifstream status(fmt::format("/proc/{}/status", mount_->daemon()));
  std::string line;
  while (std::getline(status, line) && !line.starts_with("VmHWM:")) {
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadow memory is many times the program's
  EXPECT_LT(std::atoi(line.c_str() + 6), 128 * 1024) << "memory stays within the budget: " << line;
#endif
  Check("cp big copy && cmp copy ../big && dd if=big of=/dev/null bs=64k skip=777 2>/dev/null");
  MustUmount();
  EXPECT_EQ((*object::Head(mount_->store(), "big"))->size, 40 * kMiB);
}

TEST_F(MountTest, ReadersSeeReplacedObjectsOnTheNextOpen) {
  mount_->Put("f", "old content");
  MustMount();
  Check("cat f", "old content");
  mount_->Put("f", "and the new, longer content");
  Check("cat f", "and the new, longer content");
  mount_->Put("f", "short");
  Check("cat f", "short");
}

TEST_F(MountTest, AnOpenFileNeverMixesVersions) {
  const std::string old = Noise(4 * kMiB, 1), fresh = Noise(4 * kMiB, 2);
  mount_->Put("f", old);
  MustMount();
  UniqueFd fd(::open((mount_->point() / "f").c_str(), O_RDONLY));
  std::string piece(4096, '?');
  ASSERT_EQ(::pread(fd.get(), piece.data(), piece.size(), 0), 4096);
  mount_->Put("f", fresh);
  for (std::size_t at = 0; at < old.size(); at += 512 * kKiB) {
    ssize_t n = ::pread(fd.get(), piece.data(), piece.size(), static_cast<off_t>(at));
    if (n > 0) {
      EXPECT_EQ(piece, old.substr(at, 4096)) << at;
    } else {
      EXPECT_EQ(errno, ESTALE) << at;
    }
  }
  std::string whole(fresh.size(), '?');
  UniqueFd again(::open((mount_->point() / "f").c_str(), O_RDONLY));
  EXPECT_EQ(::pread(again.get(), whole.data(), whole.size(), 0), static_cast<ssize_t>(whole.size()));
  EXPECT_EQ(whole, fresh);
}

TEST_F(MountTest, MappedFilesRead) {
  const std::string content = Noise(3 * kMiB + 100);
  mount_->Put("f", content);
  MustMount({"--read-only"});
  UniqueFd fd(::open((mount_->point() / "f").c_str(), O_RDONLY));
  void* at = ::mmap(nullptr, content.size(), PROT_READ, MAP_PRIVATE, fd.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  EXPECT_EQ(std::string_view(static_cast<char*>(at), content.size()), content);
  ::munmap(at, content.size());
  EXPECT_EQ(::open((mount_->point() / "g").c_str(), O_WRONLY | O_CREAT, 0644), -1);
  EXPECT_EQ(errno, EROFS);
}

TEST_F(MountTest, FioVerifiesWhatItWrote) {
  if (!Has("/usr/bin/fio")) GTEST_SKIP() << "fio is not installed";
  MustMount();
  Check(
      "fio --name=v --filename=fio --rw=write --bs=256k --size=48m --verify=crc32c --do_verify=1 --end_fsync=1 "
      "--create_on_open=1 --fallocate=none --overwrite=0 --output=../fio.txt && grep -q 'err= 0' ../fio.txt");
  MustUmount();
}

TEST_F(MountTest, FsyncPublishesAndTheFileGoesOn) {
  MustMount();
  UniqueFd fd(::open((mount_->point() / "f").c_str(), O_WRONLY | O_CREAT, 0644));
  ASSERT_EQ(::write(fd.get(), "one ", 4), 4);
  EXPECT_EQ(mount_->Object("f"), "<absent>");
  ASSERT_EQ(::fsync(fd.get()), 0);
  EXPECT_EQ(mount_->Object("f"), "one ");
  ASSERT_EQ(::write(fd.get(), "two", 3), 3);
  ASSERT_EQ(::close(fd.Release()), 0);
  EXPECT_EQ(mount_->Object("f"), "one two");
}

TEST_F(MountTest, WritesGoAnywhereAndAreSeenAtOnce) {
  mount_->Put("f", "0123456789");
  MustMount();
  const std::string path = (mount_->point() / "f").string();
  UniqueFd fd(::open(path.c_str(), O_RDWR)), reader(::open(path.c_str(), O_RDONLY));
  auto content = [&](const UniqueFd& from) {
    std::string bytes(100, '?');
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(from.get(), bytes.data(), bytes.size(), 0))));
    return bytes;
  };
  EXPECT_EQ(content(reader), "0123456789");
  ASSERT_EQ(::pwrite(fd.get(), "xy", 2, 3), 2);
  EXPECT_EQ(content(fd), "012xy56789");
  EXPECT_EQ(content(reader), "012xy56789");
  EXPECT_EQ(mount_->Object("f"), "0123456789") << "not published yet";
  ASSERT_EQ(::ftruncate(fd.get(), 5), 0);
  ASSERT_EQ(::ftruncate(fd.get(), 7), 0);
  EXPECT_EQ(content(reader), std::string("012xy\0\0", 7));
  ASSERT_EQ(::fsync(fd.get()), 0);
  EXPECT_EQ(mount_->Object("f"), std::string("012xy\0\0", 7));
  ASSERT_EQ(::pwrite(fd.get(), "end", 3, 9), 3);
  {
    UniqueFd appender(::open(path.c_str(), O_WRONLY | O_APPEND));
    ASSERT_EQ(::write(appender.get(), "+", 1), 1);
    ASSERT_EQ(::close(appender.Release()), 0);
  }
  EXPECT_EQ(content(reader), std::string("012xy\0\0\0\0end+", 13));
  EXPECT_EQ(mount_->Object("f"), std::string("012xy\0\0\0\0end+", 13)) << "closes publish what all have written";
  ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4), 0);
  ASSERT_EQ(::fallocate(fd.get(), 0, 0, 15), 0);
  EXPECT_EQ(content(fd), std::string("\0\0\0\0y\0\0\0\0end+\0\0", 15));
  ASSERT_EQ(::close(fd.Release()), 0);
  EXPECT_EQ(mount_->Object("f"), std::string("\0\0\0\0y\0\0\0\0end+\0\0", 15));
}

TEST_F(MountTest, MappedFilesAreWritten) {
  MustMount();
  const std::string path = (mount_->point() / "f").string();
  std::string model = Noise(300'000);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT, 0644));
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(model.size())), 0);
  auto* at = static_cast<char*>(::mmap(nullptr, model.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  ASSERT_NE(at, MAP_FAILED) << strerror(errno);
  std::ranges::copy(model, at);
  ASSERT_EQ(::msync(at, model.size(), MS_SYNC), 0);
  EXPECT_EQ(mount_->Object("f"), model) << "msync is an fsync";
  at[70'000] = 'x';
  model[70'000] = 'x';
  ::munmap(at, model.size());
  ASSERT_EQ(::close(fd.Release()), 0);
  EXPECT_EQ(mount_->Object("f"), model);
}

TEST_F(MountTest, AnUnlinkedFileStaysReadableAndWritable) {
  const std::string content = Noise(3 * kMiB);
  mount_->Put("f", content);
  MustMount();
  const std::string path = (mount_->point() / "f").string();
  UniqueFd fd(::open(path.c_str(), O_RDWR));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_EQ(mount_->Object("f"), "<absent>");
  ASSERT_EQ(::pwrite(fd.get(), "x", 1, 0), 1);
  std::string read(content.size(), '?');
  ASSERT_EQ(::pread(fd.get(), read.data(), read.size(), 0), static_cast<ssize_t>(read.size()));
  EXPECT_EQ(read, "x" + content.substr(1));
  ASSERT_EQ(::close(fd.Release()), 0);
  EXPECT_EQ(mount_->Object("f"), "<absent>");
}

TEST_F(MountTest, AFullStagingAreaSaysSo) {
  MustMount({"--staging-limit", "16MiB"});
  auto full = mount_->Shell(
      "dd if=/dev/zero of=f bs=1M count=32 seek=100 oflag=seek_bytes 2>&1; "
      "python3 -c \"import os; f=os.open('g',os.O_RDWR|os.O_CREAT)\n"
      "for i in range(40): os.pwrite(f,b'x'*1048576,2*i*1048576)\"");
  EXPECT_THAT(full.output, HasSubstr("No space left on device"));
  EXPECT_EQ((*object::Head(mount_->store(), "f"))->size, 32 * kMiB + 100) << "front to back, any size passes";
  MustUmount();
}

TEST_F(MountTest, FioVerifiesRandomWrites) {
  if (!Has("/usr/bin/fio")) GTEST_SKIP() << "fio is not installed";
  MustMount({"--write-part-size", "5MiB"});
  Check(
      "fio --name=v --filename=fio --rw=randrw --bs=4k-64k --size=24m --verify=crc32c --do_verify=1 --fsync=100 "
      "--fallocate=none --ioengine=psync --io_size=12m --output=../fio.txt && grep -q 'err= 0' ../fio.txt");
  MustUmount();
}

TEST_F(MountTest, WhatIsRefusedIsRefusedWithItsReason) {
  mount_->Put("f", "content");
  MustMount();
  EXPECT_EQ(::link((mount_->point() / "f").c_str(), (mount_->point() / "l").c_str()), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::open((mount_->point() / "bad\xFF").c_str(), O_WRONLY | O_CREAT, 0644), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::open((mount_->point() / std::string(256, 'n')).c_str(), O_WRONLY | O_CREAT, 0644), -1);
  EXPECT_EQ(errno, ENAMETOOLONG);
}

TEST_F(MountTest, AFailedUploadReachesFsyncAndClose) {
  MustMount();
  for (bool sync : {true, false}) {
    mount_->SetFaults("error=500,op=PutObject");
    UniqueFd fd(::open((mount_->point() / "f").c_str(), O_WRONLY | O_CREAT, 0644));
    ASSERT_GE(fd.get(), 0);
    EXPECT_EQ(::write(fd.get(), "x", 1), 1);
    EXPECT_EQ(sync ? ::fsync(fd.get()) : ::close(fd.Release()), -1);
    EXPECT_EQ(errno, EIO);
    EXPECT_EQ(mount_->Object("f"), "<absent>");
    if (!sync) break;
    mount_->SetFaults("");
    EXPECT_EQ(::close(fd.Release()), 0) << "nothing was lost";
    EXPECT_EQ(mount_->Object("f"), "x");
    ASSERT_EQ(::unlink((mount_->point() / "f").c_str()), 0);
  }
  EXPECT_THAT(mount_->log(), HasSubstr("publishing f"));
}

TEST_F(MountTest, AttributesAndLinksOutliveTheMount) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may give files away";
  mount_->Put("d/f", "content");
  MustMount({"--allow-other"});
  Check("chmod 750 d/f && chown 12:34 d/f && touch -d '2001-02-03 04:05:06.789Z' d/f && ln -s f d/l && readlink d/l",
        "f\n");
  Check("chmod 2700 d && (umask 077; echo x > private; mkdir own) && chmod u+s private", "");
  const char* value = "v\0w";
  ASSERT_EQ(::setxattr((mount_->point() / "d/f").c_str(), "user.k", value, 3, XATTR_CREATE), 0);
  EXPECT_EQ(::setxattr((mount_->point() / "d/f").c_str(), "user.k", value, 3, XATTR_CREATE), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(::setxattr((mount_->point() / "d/f").c_str(), "trusted.k", value, 3, 0), -1);
  EXPECT_EQ(errno, ENOTSUP);
  for (bool again : {false, true}) {
    Check("stat -c '%n %A %u:%g' d d/f d/l private own",
          "d drwx--S--- 0:0\nd/f -rwxr-x--- 12:34\nd/l lrwxrwxrwx 0:0\nprivate -rwS------ 0:0\nown drwx------ 0:0\n");
    Check("TZ=UTC0 stat -c %y d/f; cat d/l", "2001-02-03 04:05:06.789000000 +0000\ncontent");
    char buffer[8];
    EXPECT_EQ(::getxattr((mount_->point() / "d/f").c_str(), "user.k", buffer, sizeof buffer), 3);
    EXPECT_EQ(::getxattr((mount_->point() / "d/f").c_str(), "user.other", buffer, sizeof buffer), -1);
    EXPECT_EQ(errno, ENODATA);
    if (again) break;
    MustUmount();
    MustMount({"--allow-other"});
  }
  MustUmount();
}

/// The blocks of docs/semantics.md that begin with ```console: commands after "$ ", what they print below them.
TEST_F(MountTest, TheExamplesOfTheContractHold) {
  const char* source = std::getenv("MILLRACE_SOURCE");
  const std::string contract = ReadFile(fmt::format("{}/docs/semantics.md", source ? source : ".")).value_or("");
  MustMount();
  int examples = 0;
  for (std::size_t at = contract.find("```console\n"); at != std::string::npos;
       at = contract.find("```console\n", at)) {
    at += std::string_view("```console\n").size();
    const std::string block = contract.substr(at, contract.find("```", at) - at);
    std::string command, expected;
    auto run = [&] {
      if (command.empty()) return;
      ++examples;
      auto ran = mount_->Shell("export LC_ALL=C.UTF-8 QUOTING_STYLE=shell-escape; " + command);
      EXPECT_EQ(ran.output, expected) << command;
    };
    for (std::string_view line : Split(block, '\n')) {
      if (line.starts_with("$ ")) {
        run();
        command = line.substr(2);
        expected.clear();
      } else if (!line.empty()) {
        expected.append(line).push_back('\n');
      }
    }
    run();
  }
  EXPECT_GE(examples, 10);
  MustUmount();
}

TEST_F(MountTest, ARenameThatWasCutOffIsUndoneByTheNextMount) {
  for (int i = 0; i < 50; ++i) mount_->Put(fmt::format("a/{}", i), "x");
  MustMount();
  mount_->SetFaults("latency=200ms,op=CopyObject");
  std::jthread renaming([&] { ::rename((mount_->point() / "a").c_str(), (mount_->point() / "b").c_str()); });
  while (mount_->Object("b/0") != "x") ::usleep(10'000);
  ::kill(mount_->daemon(), SIGKILL);
  renaming.join();
  for (int i = 0; i < 1000 && mount_->daemon() != 0; ++i) ::usleep(10'000);
  mount_->SetFaults("");
  MustUmount();
  auto recovered = mount_->Run({"mount", "s3://bucket", "--recover"});
  EXPECT_THAT(recovered.output, HasSubstr("1 undone"));
  MustMount();
  Check("ls -d * && ls a | wc -l", "a\n50\n");
  Check("mv a b && ls b | wc -l", "50\n");
  MustUmount();
}

TEST_F(MountTest, ClosingWithoutWaitingLosesNothingToAKill) {
  MustMount({"--close", "async", "--publish-delay", "1h"});
  Check("mkdir d && for i in $(seq 50); do echo content-$i > d/$i; done && ls d | wc -l", "50\n");
  Check("cat d/7 && mv d/7 d/seven && rm d/8 && cat d/seven", "content-7\ncontent-7\n");
  Check("echo synced > d/synced && sync d/synced && head -c 20M /dev/urandom > d/large && md5sum < d/large > sum", "");
  EXPECT_EQ(mount_->Object("d/1"), "<absent>");
  EXPECT_EQ(mount_->Object("d/synced"), "synced\n");
  auto large = mount_->Shell("md5sum < d/large");
  ::kill(mount_->daemon(), SIGKILL);
  for (int i = 0; i < 1000 && mount_->daemon() != 0; ++i) ::usleep(10'000);  // bounded wait for the other process
  MustUmount();
  MustMount({"--close", "async", "--publish-delay", "1h"});
  Check("ls d | wc -l && cat d/seven && md5sum < d/large", "51\ncontent-7\n" + large.output);
  auto unmounted = mount_->Umount();
  EXPECT_EQ(unmounted.status, 0) << unmounted.output;
  EXPECT_EQ(mount_->Object("d/seven"), "content-7\n");
  EXPECT_EQ(mount_->Object("d/8"), "<absent>");
  EXPECT_EQ(mount_->Object("d/50"), "content-50\n");
}

TEST_F(MountTest, UnmountingSaysWhatIsLeftAndRecoverFinishesIt) {
  MustMount({"--close", "async", "--publish-delay", "1h", "--flush-timeout", "1s"});
  Check("echo one > a && echo two > b", "");
  mount_->SetFaults("error=503,op=PutObject");
  auto unmounted = mount_->Umount();
  EXPECT_NE(unmounted.status, 0);
  EXPECT_THAT(unmounted.output, HasSubstr("2 files (8 B) are not in the bucket; they are in "));
  auto failed = mount_->Run({"mount", "s3://bucket", "--recover"});
  EXPECT_NE(failed.status, 0);
  EXPECT_THAT(failed.output, HasSubstr("0 published, 2 left in"));
  mount_->SetFaults("");
  auto recovered = mount_->Run({"mount", "s3://bucket", "--recover"});
  EXPECT_EQ(recovered.status, 0) << recovered.output;
  EXPECT_THAT(recovered.output, HasSubstr("2 published, 0 left in"));
  EXPECT_EQ(mount_->Object("a"), "one\n");
  EXPECT_EQ(mount_->Object("b"), "two\n");
}

TEST_F(MountTest, MountpointsStrictness) {
  mount_->Put("f", "old");
  mount_->Put("d/g", "x");
  MustMount({"--strict"});
  Check("echo new > n && cat n", "new\n");
  Check("rm -f f 2>&1 || true", "rm: cannot remove 'f': Operation not permitted\n");
  Check("(echo x > f) 2>/dev/null || cat f", "old");
  MustUmount();
  MustMount({"--strict", "--allow-overwrite", "--allow-delete"});
  Check("echo x > f && rm f d/g", "");
  MustUmount();
}

TEST_F(MountTest, ModesAndOwners) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may give files away";
  mount_->Put("d/f", "x");
  MustMount({"--uid", "12", "--gid", "34", "--file-mode", "0640", "--dir-mode", "0750", "--allow-other"});
  Check("stat -c '%u %g %a' d d/f", "12 34 750\n12 34 640\n");
}

TEST_F(MountTest, APrefixIsARoot) {
  mount_->Put("a/b/f", "inside");
  MustMount({"--prefix", "a/b"});
  Check("cat f", "inside");
  Check("ls", "f\n");
  MustUmount();
}

TEST_F(MountTest, AllBucketsOfAnEndpointInOneTree) {
  mount_->Put("f", "in the first");
  ASSERT_EQ(mount_->Run({"mb", "s3://second"}).status, 0);
  auto mounted = mount_->MountUrl("s3://");
  ASSERT_EQ(mounted.status, 0) << mounted.output;
  Check("ls", "bucket\nsecond\n");
  Check("cat bucket/f", "in the first");
  Check("mkdir bucket/d && echo x > bucket/d/x && chmod 600 bucket/d/x && mv bucket/d second/e && ls -R second",
        "second:\ne\n\nsecond/e:\nx\n");
  Check("stat -c %a second/e/x", "600\n");
  Check("mv bucket/f second/ && cat second/f && ls bucket", "in the first");
  Check("echo x 2>/dev/null > file || echo refused", "refused\n");
  Check("mkdir new 2>/dev/null || rmdir second 2>/dev/null || mv bucket third 2>/dev/null || echo refused",
        "refused\n");
  MustUmount();
}

TEST_F(MountTest, TheNextMountFindsWhatTheDiskCacheHas) {
  mount_->Put("f", Noise(3'000'000));
  const std::string cache = (mount_->scratch() / "cache").string();
  for (const bool first : {true, false}) {
    MustMount({"--cache", cache});
    Check("cat f > ../copy");
    EXPECT_EQ(std::filesystem::file_size(mount_->scratch() / "copy"), 3'000'000u);
    const auto told = mount_->Run({"stats", mount_->point().string(), "--json"});
    const Json stats = ParseJson(told.output, "stats").value();
    // The kernel reads ahead with several requests at a time, in any order: one that looks like a jump passes the
    // cache.
    if (first) {
      EXPECT_GE(stats["cache"]["bytes_fetched"], 3'000'000);
    } else {
      EXPECT_LT(stats["cache"]["bytes_fetched"], 3'000'000);
    }
    EXPECT_EQ(stats["cache"]["disk_hits"] > 0, !first);
    MustUmount();
  }
  EXPECT_EQ(*ReadFile(mount_->scratch() / "copy"), mount_->Object("f"));
}

/// docs/formats/mount-hints.md, as it stands.
TEST_F(MountTest, HintsAreGivenAsTheirFormatShows) {
  if (!Has("/usr/bin/python3")) GTEST_SKIP() << "no /usr/bin/python3";
  const char* source = std::getenv("MILLRACE_SOURCE");
  if (!source) GTEST_SKIP() << "MILLRACE_SOURCE does not name the source tree";
  std::ifstream document(std::filesystem::path(source) / "docs/formats/mount-hints.md");
  std::string program;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("    ")) program += line.substr(4) + "\n";
  }
  ASSERT_THAT(program, HasSubstr("def will_open"));
  for (int i = 0; i < 40; ++i) mount_->Put(fmt::format("d/f{}", i * 37 % 40), fmt::format("content {}", i * 37 % 40));
  MustMount({"--read-only"});
  program +=
      "names = [f'f{i * 11 % 40}' for i in range(40)]\n"
      "assert will_open('d', names + ['none']) == 41\n"
      "for name in names: assert open('d/' + name).read() == 'content ' + name[1:]\n"
      "try: will_open('.', ['../d'])\n"
      "except OSError as error: print(error.errno)\n";
  std::ofstream(mount_->scratch() / "hints.py") << program;
  Check("/usr/bin/python3 ../hints.py", "22\n");
  MustUmount();
}

TEST_F(MountTest, AFileStoreOnAMountPassesHintsOn) {
  std::vector<std::string> keys;
  for (int i = 0; i < 40; ++i) {
    keys.push_back(fmt::format("{}/f{}", i % 2 ? "d/sub" : "d", i * 37 % 40));
    mount_->Put(keys.back(), Noise(10'000));
  }
  MustMount();
  auto store = *object::OpenFileStore({.root = mount_->point()});
  store->WillRead(keys);
  ASSERT_TRUE(object::GetAll(*store, keys[0], kMiB));
  std::uint64_t fetched = 0;
  for (int i = 0; i < 2000 && fetched < 40 * 10'000; ++i) {  // bounded wait for the other process
    ::usleep(5000);
    const auto told = mount_->Run({"stats", mount_->point().string(), "--json"});
    fetched = ParseJson(told.output, "stats").value()["cache"]["bytes_fetched"].get<std::uint64_t>();
  }
  EXPECT_EQ(fetched, 40 * 10'000u) << "one was opened; hints stand for the others";
  store->WillRead(std::vector<std::string>{"d/f0", "../x"});
  object::OpenFileStore({.root = mount_->scratch()}).value()->WillRead(keys);
  store.reset();
  MustUmount();
}

TEST_F(MountTest, WhatWasWrittenHereCanBeSyncedElsewhere) {
  MustMount();
  Check("mkdir -p d/sub d/empty && echo x >d/sub/f && chmod 600 d/sub/f && echo y >d/g");
  MustUmount();
  const auto there = mount_->scratch() / "there";
  auto synced = mount_->Run({"sync", "s3://bucket/", there.string() + "/"});
  EXPECT_EQ(synced.status, 0) << synced.output << "markers of folders are no files";
  EXPECT_EQ(ReadFile(there / "d/sub/f").value_or("?"), "x\n");
  EXPECT_EQ(ReadFile(there / "d/g").value_or("?"), "y\n");
}

/// Linux asks the mount to open the program before it finds that the program runs.
TEST_F(MountTest, ARefusedOpenLeavesTheFileOfARunningProgramWhole) {
  MustMount();
  std::ofstream(mount_->scratch() / "open.py") << R"(
import errno, os, subprocess
def empty():
    os.close(os.open("program", os.O_RDONLY | os.O_TRUNC))
running = subprocess.Popen(["./program", "60"])
try:
    empty()
except OSError as error:
    print(errno.errorcode[error.errno])
print(os.path.getsize("program") == os.path.getsize("/bin/sleep"))
running.kill()
running.wait()
empty()
print(os.path.getsize("program"))
)";
  Check("cp /bin/sleep program && python3 " + (mount_->scratch() / "open.py").string(), "ETXTBSY\nTrue\n0\n");
  MustUmount();
  EXPECT_EQ(mount_->Object("program"), "");
}

TEST_F(MountTest, FoldersMountToo) {
  const auto folder = mount_->scratch() / "folder";
  std::filesystem::create_directories(folder / "sub");
  std::ofstream(folder / "sub" / "first") << "x";
  auto mounted = mount_->Run({"mount", folder.string(), mount_->point().string()});
  ASSERT_EQ(mounted.status, 0) << mounted.output;
  Check("echo x > sub/f && mv sub/f g && cat g", "x\n");
  EXPECT_EQ(*ReadFile(folder / "g"), "x\n");
  MustUmount();
}

TEST_F(MountTest, ATermSignalUnmountsAndPublishesWhatIsOpen) {
  MustMount();
  UniqueFd fd(::open((mount_->point() / "f").c_str(), O_WRONLY | O_CREAT, 0644));
  ASSERT_EQ(::write(fd.get(), "so far", 6), 6);
  ASSERT_EQ(mount_->Umount().status, 1) << "it is in use";
  ::kill(mount_->daemon(), SIGTERM);
  for (int i = 0; i < 1000 && mount_->daemon() != 0; ++i) ::usleep(10'000);
  EXPECT_EQ(mount_->daemon(), 0);
  EXPECT_EQ(mount_->Object("f"), "so far");
  EXPECT_NE(::close(fd.Release()), 0);
  EXPECT_TRUE(std::filesystem::is_empty(mount_->point()));
}

TEST_F(MountTest, AKilledDaemonLeavesAMountPointThatRecovers) {
  mount_->Put("f", "x");
  for (bool umount_first : {true, false}) {
    MustMount();
    Check("cat f", "x");
    ::kill(mount_->daemon(), SIGKILL);
    for (int i = 0; i < 1000 && mount_->daemon() != 0; ++i) ::usleep(10'000);
    EXPECT_EQ(::open(mount_->point().c_str(), O_RDONLY | O_DIRECTORY), -1);
    if (umount_first) MustUmount();
  }
  MustMount();
  Check("cat f", "x");
  MustUmount();
}

TEST_F(MountTest, FoldersOfOthersAreRefusedAndStayAsTheyAre) {
  namespace fs = std::filesystem;
  auto mounted = [&](const std::string& flag, const fs::path& folder) {
    return mount_->Run({"mount", "s3://bucket", mount_->point().string(), flag, folder.string()});
  };
  auto made = [&](const std::string& name, const std::string& file) {
    fs::create_directory(mount_->scratch() / name);
    std::ofstream(mount_->scratch() / name / file) << "theirs";
    fs::permissions(mount_->scratch() / name, fs::perms(0755));
    return mount_->scratch() / name;
  };
  for (const auto& [flag, file] : {std::pair("--staging-dir", "measurements.data"), std::pair("--cache", "index.html"),
                                   std::pair("--cache", "blocks-of-wood")}) {
    const fs::path folder = made(std::string("theirs-") + file, file);
    auto refused = mounted(flag, folder);
    EXPECT_NE(refused.status, 0);
    for (const std::string& part : {folder.string(), std::string(file), std::string(flag)}) {
      EXPECT_THAT(refused.output, HasSubstr(part));
    }
    EXPECT_EQ(*ReadFile(folder / file), "theirs");
    EXPECT_EQ(fs::status(folder).permissions(), fs::perms(0755));
    fs::remove(folder / file);
    fs::create_directory_symlink(folder, mount_->scratch() / "link");
    EXPECT_THAT(mounted(flag, mount_->scratch() / "link").output, HasSubstr("symbolic link"));
    fs::remove(mount_->scratch() / "link");
    EXPECT_TRUE(fs::is_empty(folder));
  }
}

TEST_F(MountTest, AnotherUsersCacheIsNotServed) {
  namespace fs = std::filesystem;
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to another user";
  mount_->Put("f", "the bucket's");
  const fs::path cache = mount_->scratch() / "cache";
  MustMount({"--cache", cache.string()});
  Check("cat f", "the bucket's");
  MustUmount();
  ASSERT_EQ(::chown(cache.c_str(), 54321, 54321), 0);
  for (const auto& file : fs::directory_iterator(cache)) ASSERT_EQ(::chown(file.path().c_str(), 54321, 54321), 0);
  auto refused = mount_->Run({"mount", "s3://bucket", mount_->point().string(), "--cache", cache.string()});
  EXPECT_EQ(refused.status, 5) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("belongs to user 54321"));
}

TEST_F(MountTest, WhatCannotBeMountedSaysWhy) {
  auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "mount");
    return mount_->Run(std::move(arguments));
  };
  const std::string point = mount_->point().string();
  auto missing = run({"s3://bucket", point + "/none"});
  EXPECT_EQ(missing.status, 4);
  EXPECT_THAT(missing.output, HasSubstr("does not exist"));
  std::ofstream(point + "/file") << "x";
  EXPECT_THAT(run({"s3://bucket", point + "/file"}).output, HasSubstr("not a directory"));
  EXPECT_THAT(run({"s3://bucket", point}).output, HasSubstr("not empty"));
  std::filesystem::remove(point + "/file");
  EXPECT_THAT(run({"s3://no-such-bucket", point}).output, HasSubstr("does not exist"));
  mount_->SetFaults("error=403");
  auto denied = run({"s3://bucket", point});
  EXPECT_EQ(denied.status, 5) << denied.output;
  mount_->SetFaults("");
  MustMount();
  EXPECT_THAT(run({"s3://bucket", point}).output, HasSubstr("already"));
  MustUmount();
  EXPECT_THAT(mount_->Umount().output, HasSubstr("nothing is mounted"));
}

}  // namespace
}  // namespace millrace
