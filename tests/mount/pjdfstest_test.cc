// pjdfstest (the POSIX conformance suite, Rust version) on a real mount. Skips where it is not installed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "millrace/base/text.h"
#include "tests/mount/mount_program.h"

namespace millrace {
namespace {

/// $MILLRACE_PEERS/bin/pjdfstest, or the one in PATH.
std::string FindProgram() {
  std::string path = std::getenv("PATH") ? std::getenv("PATH") : "";
  if (const char* peers = std::getenv("MILLRACE_PEERS")) path = std::string(peers) + "/bin:" + path;
  for (std::string_view folder : Split(path, ':')) {
    std::string program = std::string(folder) + "/pjdfstest";
    if (::access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

/// The patterns of pjdfstest_exclusions.txt.
std::vector<std::string> Exclusions() {
  const char* source = std::getenv("MILLRACE_SOURCE");
  const auto read = ReadFile(fmt::format("{}/tests/mount/pjdfstest_exclusions.txt", source ? source : "."));
  EXPECT_TRUE(read) << read.error().ToString();
  const std::string text = read.value_or("");
  std::vector<std::string> patterns;
  for (std::string_view line : Split(text, '\n')) {
    if (!line.empty() && line.front() != '#') patterns.emplace_back(line.substr(0, line.find(' ')));
  }
  return patterns;
}

bool Matches(std::string_view pattern, std::string_view name) {
  if (pattern.starts_with('*')) return name.ends_with(pattern.substr(1));
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return name == pattern;
}

/// The cases of one system call.
class PjdfstestTest : public testing::TestWithParam<const char*> {};

TEST_P(PjdfstestTest, PassesWhatApplies) {
  if (Status available = MountProgram::Available(); !available) GTEST_SKIP() << available.error().ToString();
  if (::geteuid() != 0) GTEST_SKIP() << "pjdfstest acts as several users: it needs root";
  const std::string program = FindProgram();
  if (program.empty()) GTEST_SKIP() << "there is no pjdfstest in $MILLRACE_PEERS/bin or PATH";
  MountProgram mount;
  std::filesystem::permissions(mount.scratch(), std::filesystem::perms(0755));  // it acts as others, too
  auto mounted = mount.Mount({"--allow-other"});
  ASSERT_EQ(mounted.status, 0) << mounted.output;
  const auto settings = mount.scratch() / "pjdfstest.toml";
  std::ofstream(settings) << "[features]\nutime_now = {}\nutimensat = {}\n"
                             "[settings]\nnaptime = 0.01\nallow_remount = false\n"
                             "[dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";
  // Through /proc, because the name of a socket must be short wherever the temporary folder is.
  auto ran = mount.Shell(fmt::format("mkdir work && chmod 777 work && {} -c {} -p /proc/self/cwd/work {}::", program,
                                     settings.string(), GetParam()));
  const std::vector<std::string> exclusions = Exclusions();
  int passed = 0, excluded = 0;
  for (std::string_view line : Split(ran.output, '\n')) {
    const std::string_view name = line.substr(0, line.find(' '));
    if (!name.starts_with(fmt::format("{}::", GetParam()))) continue;
    const std::string_view result = Trim(line.substr(name.size()));
    const bool is_excluded =
        std::ranges::any_of(exclusions, [&](const auto& pattern) { return Matches(pattern, name); });
    if (result == "ok") ++passed;
    if (result != "FAILED") continue;
    ++excluded;
    const std::size_t reason = static_cast<std::size_t>(line.data() - ran.output.data()) + line.size();
    EXPECT_TRUE(is_excluded) << name << ran.output.substr(reason, ran.output.find("Backtrace", reason) - reason);
  }
  EXPECT_GT(passed, 0) << ran.output;
  RecordProperty("passed", passed);
  RecordProperty("excluded", excluded);
}

INSTANTIATE_TEST_SUITE_P(Calls, PjdfstestTest,
                         testing::Values("chmod", "chown", "ftruncate", "link", "mkdir", "mkfifo", "mknod", "open",
                                         "rename", "rmdir", "symlink", "truncate", "unlink", "utimensat"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace millrace
