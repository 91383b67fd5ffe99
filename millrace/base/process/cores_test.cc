#include "millrace/base/process/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>

#include "millrace/base/files/files.h"

namespace millrace {
namespace {

class CoresOfQuotaTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  /// A line of mountinfo: `cgroup` of the hierarchy is seen at `point`.
  static std::string Mount(const std::string& cgroup, const std::string& point, const std::string& type) {
    return "31 23 0:28 " + cgroup + " " + point + " rw,relatime - " + type + " cgroup rw\n";
  }

  TempDir root_ = TempDir::Create().value();
};

TEST_F(CoresOfQuotaTest, NoQuotaIsNone) {
  EXPECT_EQ(CoresOfQuota(root_.path()), 0);
  Write("proc/self/cgroup", "0::/\n");
  Write("proc/self/mountinfo", Mount("/", "/sys/fs/cgroup", "cgroup2"));
  EXPECT_EQ(CoresOfQuota(root_.path()), 0);
  Write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(CoresOfQuota(root_.path()), 0);
}

TEST_F(CoresOfQuotaTest, AContainerSeesItsOwnCgroupAsTheRoot) {
  Write("proc/self/cgroup", "0::/\n");
  Write("proc/self/mountinfo", Mount("/", "/sys/fs/cgroup", "cgroup2"));
  Write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(CoresOfQuota(root_.path()), 3);
  Write("sys/fs/cgroup/cpu.max", "150000 100000\n");  // two threads would wait for each other half of the time
  EXPECT_EQ(CoresOfQuota(root_.path()), 1);
  Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(CoresOfQuota(root_.path()), 1);
}

TEST_F(CoresOfQuotaTest, TheLeastQuotaOfAllThatAreAboveCounts) {
  Write("proc/self/cgroup", "0::/a.slice/b.service\n");
  Write("proc/self/mountinfo", Mount("/", "/sys/fs/cgroup", "cgroup2"));
  Write("sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/a.slice/cpu.max", "200000 50000\n");
  EXPECT_EQ(CoresOfQuota(root_.path()), 4);
  Write("sys/fs/cgroup/a.slice/b.service/cpu.max", "600000 100000\n");
  EXPECT_EQ(CoresOfQuota(root_.path()), 4);
  Write("sys/fs/cgroup/a.slice/b.service/cpu.max", "200000 100000\n");
  EXPECT_EQ(CoresOfQuota(root_.path()), 2);
}

TEST_F(CoresOfQuotaTest, ReadsTheHierarchyOfTheCpuControllerOfVersion1) {
  Write("proc/self/cgroup", "6:memory:/docker/ab\n5:cpuset:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/\n");
  Write("proc/self/mountinfo", Mount("/", "/sys/fs/cgroup/memory", "cgroup") +
                                   Mount("/", "/sys/fs/cgroup/cpu,cpuacct", "cgroup") +
                                   Mount("/", "/sys/fs/cgroup/unified", "cgroup2"));
  Write("sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CoresOfQuota(root_.path()), 0);
  Write("sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(CoresOfQuota(root_.path()), 2);
}

TEST_F(CoresOfQuotaTest, AMountMayBeginAtTheCgroupOfTheContainer) {
  Write("proc/self/cgroup", "4:cpu,cpuacct:/docker/ab/inner\n");
  Write("proc/self/mountinfo", Mount("/docker/ab", "/sys/fs/cgroup/cpu", "cgroup"));
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CoresOfQuota(root_.path()), 2);
  Write("sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "100000\n");
  Write("sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CoresOfQuota(root_.path()), 1);
  Write("proc/self/cgroup", "4:cpu,cpuacct:/elsewhere\n");  // outside of what is mounted
  EXPECT_EQ(CoresOfQuota(root_.path()), 2);
}

/// Sets environment variables. The destructor restores them.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;
  ~ScopedVariable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

TEST(Cores, TheAffinityMaskBoundsThem) {
  const ScopedVariable unset("OMP_NUM_THREADS", nullptr);
  std::thread([] {
    cpu_set_t mask;
    ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
    EXPECT_LE(UsableCores(), CPU_COUNT(&mask));
    for (int core = CPU_SETSIZE - 1; CPU_COUNT(&mask) > 1; --core) CPU_CLR(core, &mask);
    ASSERT_EQ(::sched_setaffinity(0, sizeof mask, &mask), 0);
    EXPECT_EQ(UsableCores(), 1);
    EXPECT_EQ(ComputeThreads(), 1);
  }).join();
}

TEST(Cores, RanksDivideThem) {
  const ScopedVariable unset("OMP_NUM_THREADS", nullptr);
  EXPECT_EQ(ComputeThreads(1), UsableCores());
  EXPECT_GE(ComputeThreads(2), UsableCores() / 2);
  EXPECT_EQ(ComputeThreads(100000), 1);
}

TEST(Cores, TheUsersNumberOfThreadsCounts) {
  const ScopedVariable torchrun("TORCHELASTIC_RUN_ID", nullptr);
  const int cores = UsableCores();
  for (const auto& [value, threads] : {std::pair("7", 7), std::pair("5,2", 5), std::pair("", cores),
                                       std::pair("0", cores), std::pair("many", cores)}) {
    const ScopedVariable wanted("OMP_NUM_THREADS", value);
    EXPECT_EQ(ComputeThreads(), threads) << value;
  }
}

TEST(Cores, TheNumberThatTorchrunSetsDoesNot) {
  const ScopedVariable torchrun("TORCHELASTIC_RUN_ID", "none");
  const ScopedVariable one("OMP_NUM_THREADS", "1");
  EXPECT_EQ(ComputeThreads(), UsableCores());
  const ScopedVariable three("OMP_NUM_THREADS", "3");
  EXPECT_EQ(ComputeThreads(), 3);
}

}  // namespace
}  // namespace millrace
