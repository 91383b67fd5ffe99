#include "millrace/mount/point/control.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

namespace millrace::mount {
namespace {

TEST(OpenAnsweringProcess, HoldsOnlyTheProcessThatAnswers) {
  const pid_t self = ::getpid();
  EXPECT_TRUE(OpenAnsweringProcess(self, [&] { return self; }));
  // The daemon died after its first answer, and a stranger has its number: nobody answers, or the next daemon.
  EXPECT_FALSE(OpenAnsweringProcess(self, [] { return -1; }));
  EXPECT_FALSE(OpenAnsweringProcess(self, [&] { return self + 1; }));
  EXPECT_FALSE(OpenAnsweringProcess(0, [] { return 0; }));
}

}  // namespace
}  // namespace millrace::mount
