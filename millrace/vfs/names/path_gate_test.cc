#include "millrace/vfs/names/path_gate.h"

#include <gtest/gtest.h>

#include <thread>

namespace millrace::vfs {
namespace {

/// One that does not wait: what cannot go on at once fails.
std::stop_token Impatient() {
  std::stop_source stop;
  stop.request_stop();
  return stop.get_token();
}

class PathGateTest : public testing::Test {
 protected:
  bool MayEnter(const std::string& path) { return gate.Enter(path, Impatient()).has_value(); }
  bool MayClose(const std::string& path) { return gate.Close({path}, Impatient()).has_value(); }
  PathGate gate;
};

TEST_F(PathGateTest, PassesGoTogetherAndClosuresAlone) {
  {
    auto pass = gate.Enter("a/f");
    EXPECT_TRUE(MayEnter("a/f"));
    EXPECT_FALSE(MayClose("a/f"));
    EXPECT_TRUE(MayClose("a/g"));
    EXPECT_TRUE(MayClose("a/f2"));
  }
  {
    auto closure = gate.Close({"a/f", "b/f"});
    for (const char* path : {"a/f", "b/f"}) {
      EXPECT_FALSE(MayEnter(path));
      EXPECT_FALSE(MayClose(path));
    }
    EXPECT_TRUE(MayEnter("a/f/below"));
    EXPECT_TRUE(MayEnter("a/g"));
    EXPECT_FALSE(MayClose("a/"));
  }
  EXPECT_TRUE(MayEnter("a/f"));
  EXPECT_TRUE(MayClose("b/f"));
}

TEST_F(PathGateTest, ADirectoryIsClosedWithAllThatIsBelow) {
  auto closure = gate.Close({"a/b/"});
  for (const char* path : {"a/b", "a/b/", "a/b/f", "a/b/c/d"}) {
    EXPECT_FALSE(MayEnter(path));
    EXPECT_FALSE(MayClose(path));
  }
  EXPECT_FALSE(MayClose("a/"));
  EXPECT_TRUE(MayEnter("a/bc"));
  EXPECT_TRUE(MayClose("a/c/"));
}

TEST_F(PathGateTest, AClosureThatIsNotWaitedForLeavesNothingBehind) {
  auto pass = gate.Enter("f");
  EXPECT_EQ(gate.Close({"f", "g"}, Impatient()).error().code(), Code::kCancelled);
  EXPECT_TRUE(MayEnter("f"));
  EXPECT_TRUE(MayEnter("g"));
}

TEST_F(PathGateTest, OneNameMayBeClosedTwiceByOneHolder) {
  {
    auto closure = gate.Close({"f", "f"});
  }
  EXPECT_TRUE(MayEnter("f"));
}

TEST_F(PathGateTest, AClosureThatRefusesTellsWhoWaitsAndWhoComes) {
  auto closure = gate.Close({"a/", "b/"});
  ASSERT_TRUE(closure);
  Status waited;
  {
    const std::jthread waiting([&] {
      if (auto pass = gate.Enter("a/f"); !pass) waited = Fail(pass.error());
    });
    closure->Refuse("not settled");
  }
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code(), Code::kBusy);
  EXPECT_EQ(waited.error().message(), "not settled");
  for (std::string path : {"a", "a/g", "b/x/y"}) EXPECT_EQ(gate.Enter(path).error().code(), Code::kBusy) << path;
  EXPECT_EQ(gate.Close({"c", "b"}).error().code(), Code::kBusy);
  EXPECT_TRUE(MayEnter("ab"));
  *closure = PathGate::Closure();
  EXPECT_TRUE(MayEnter("a/f"));
  EXPECT_TRUE(gate.Close({"a/", "b/"}));
}

TEST_F(PathGateTest, ClosuresOfTheSameNamesDoNotWaitInACircle) {
  int counts[2] = {};
  auto work = [&](const std::vector<std::string>& names) {
    for (int i = 0; i < 2'000; ++i) {
      auto closure = gate.Close(names);
      ++counts[0], ++counts[1];
    }
  };
  std::thread one(work, std::vector<std::string>{"f", "g"}), other(work, std::vector<std::string>{"g", "f"});
  one.join(), other.join();
  EXPECT_EQ(counts[0], 4'000);
  EXPECT_EQ(counts[1], 4'000);
}

}  // namespace
}  // namespace millrace::vfs
