#include "millrace/tracking/sidecar/sidecar.h"

#include <gmock/gmock.h>

#include "millrace/base/files/files.h"
#include "millrace/tracking/testing/collected_log.h"

namespace millrace::tracking {
namespace {

using ::testing::HasSubstr;

class SidecarTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Sidecar>> Start(const std::string& script, Duration end = std::chrono::seconds(60)) {
    return Sidecar::Start({.name = "test",
                           .argv = {"/bin/sh", "-c", script},
                           .env = {{"OUT", out_.string()}},
                           .queued = 8,
                           .end_patience = end},
                          {{"hello", 1}}, log_.logger());
  }
  std::string Written() const { return ReadFile(out_, 1 << 20).value_or(""); }

  TempDir folder_ = TempDir::Create().value();
  std::filesystem::path out_ = folder_.path() / "out";
  CollectedLog log_;
};

TEST_F(SidecarTest, GetsEventsInOrder) {
  auto sidecar = Start(R"(read hello; echo "$hello" >"$OUT"; echo 'noise'; echo '{"ready":{"x":7}}'
                          while read -r line; do printf "%s\\n" "$line" >>"$OUT"; done)")
                     .value();
  EXPECT_EQ(sidecar->ready()["x"], 7);
  sidecar->Send({{"a", 1}});
  sidecar->Send({{"b", "two\nlines"}});
  sidecar->End({{"end", true}});
  EXPECT_EQ(Written(), "{\"hello\":1}\n{\"a\":1}\n{\"b\":\"two\\nlines\"}\n{\"end\":true}\n");
  EXPECT_EQ(log_.text(), "");
}

TEST_F(SidecarTest, SaysWhyItCannotStart) {
  const auto refused = Start(R"(read hello; echo '{"error":"no key"}')");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.error().message(), "test: no key");
  const auto ended = Start("exit 3");
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), Code::kUnavailable);
  const auto absent = Sidecar::Start({.name = "test", .argv = {"no-such-python"}, .env = {}}, Json::object(), {});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(absent.error().message(), HasSubstr("log.python"));
}

TEST_F(SidecarTest, DoesNotWaitForAnAnswerForEver) {
  const auto silent = Sidecar::Start({.name = "test",
                                      .argv = {"/bin/sh", "-c", "read a; read b"},
                                      .env = {},
                                      .start_patience = std::chrono::milliseconds(50)},
                                     Json::object(), {});
  ASSERT_FALSE(silent);
  EXPECT_THAT(silent.error().message(), HasSubstr("was not ready in time"));
}

TEST_F(SidecarTest, HandsWarningsOn) {
  auto sidecar = Start(R"(read hello; echo '{"warning":"before"}'; echo '{"ready":{}}'; echo '{"warning":"after"}'
                          echo '{"info":"fine"}'; cat >/dev/null)")
                     .value();
  sidecar->End({});
  EXPECT_THAT(log_.text(), HasSubstr("before tracker=test"));
  EXPECT_THAT(log_.text(), HasSubstr("after tracker=test"));
  EXPECT_THAT(log_.text(), HasSubstr("fine tracker=test"));
}

TEST_F(SidecarTest, DropsWhatASlowProgramDoesNotTake) {
  // It reads on when the test made a file. A pipe takes 64 KiB, and the queue eight events.
  auto sidecar = Start(R"(read hello; echo '{"ready":{}}'; while [ ! -e "$OUT" ]; do :; done; cat >/dev/null)").value();
  for (int i = 0; i < 100; ++i) sidecar->Send({{"text", std::string(8000, 'x')}});
  EXPECT_EQ(log_.Count("some are dropped"), 1);
  ASSERT_TRUE(WriteFileAtomic(out_, AsBytes("go")));
  sidecar->End({});
  EXPECT_EQ(log_.Count("misses events"), 1);
  EXPECT_EQ(log_.Count("did not end in time"), 0);
}

TEST_F(SidecarTest, GoesOnWithoutAProgramThatEnds) {
  auto sidecar = Start(R"(read hello; echo '{"ready":{}}'; exit 1)").value();
  while (log_.Count("ended; the run goes on") == 0) std::this_thread::yield();
  sidecar->Send({{"a", 1}});
  sidecar->End({});
  EXPECT_EQ(log_.Count("misses events tracker=test dropped=1"), 1) << log_.text();
}

TEST_F(SidecarTest, KillsAProgramThatDoesNotEnd) {
  auto sidecar =
      Start(R"(trap '' TERM INT; read hello; echo '{"ready":{}}'; while :; do :; done)", std::chrono::milliseconds(50))
          .value();
  sidecar->End({});
  EXPECT_EQ(log_.Count("did not end in time"), 1) << log_.text();
}

TEST_F(SidecarTest, TheDestructorLeavesNoProgram) {
  auto sidecar = Start(R"(read hello; echo '{"ready":{}}'; while :; do :; done)").value();
  for (int i = 0; i < 100; ++i) sidecar->Send({{"text", std::string(8000, 'x')}});
  sidecar.reset();  // also frees the thread that waits for the pipe
}

}  // namespace
}  // namespace millrace::tracking
