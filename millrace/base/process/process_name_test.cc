#include "millrace/base/process/process_name.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "millrace/base/text.h"

namespace millrace {
namespace {

/// This process's name with one of its four parts changed.
std::string With(std::size_t part, const std::string& value) {
  const std::string name = ProcessName();
  std::string changed;
  const auto parts = Split(name, ':');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    changed += fmt::format("{}{}", i == 0 ? "" : ":", i == part ? value : parts[i]);
  }
  return changed;
}

TEST(ProcessNameTest, AProcessIsAliveUnderItsOwnNameOnly) {
  EXPECT_EQ(ProcessName(), ProcessName());
  EXPECT_EQ(IsProcessAlive(ProcessName()), true);
  EXPECT_EQ(IsProcessAlive(With(3, "1")), false) << "another one had this number before";
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(IsProcessAlive(With(2, std::to_string(child))), false);
}

TEST(ProcessNameTest, OfOtherHostsAndContainersNothingIsKnown) {
  EXPECT_EQ(IsProcessAlive(With(0, "another-boot")), std::nullopt);
  EXPECT_EQ(IsProcessAlive(With(1, "4.f0000001")), std::nullopt) << "the number is another process's there";
  EXPECT_EQ(IsProcessAlive(With(1, "unknown")), std::nullopt);
  EXPECT_EQ(IsProcessAlive(With(3, "gone")), std::nullopt);
  for (const char* name : {"", "unknown", "a:1:2", ":::", "a:b:c:d"}) {
    EXPECT_EQ(IsProcessAlive(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace millrace
