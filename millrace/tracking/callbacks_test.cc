#include "millrace/tracking/callbacks.h"

#include <gmock/gmock.h>

#include "millrace/base/files/files.h"
#include "millrace/tracking/testing/collected_log.h"

namespace millrace::tracking {
namespace {

using ::testing::HasSubstr;

class CallbacksTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Callbacks>> Open(const std::string& text) {
    const std::string with_place = fmt::format("OUT = {:?}\n{}", (folder_.path() / "out").string(), text);
    EXPECT_TRUE(WriteFileAtomic(file_, AsBytes(with_place)));
    return Callbacks::Open(file_, "python3", log_.logger());
  }
  std::string Written() const { return ReadFile(folder_.path() / "out", 1 << 20).value_or(""); }

  TempDir folder_ = TempDir::Create().value();
  std::string file_ = (folder_.path() / "hooks.py").string();
  CollectedLog log_;
};

TEST_F(CallbacksTest, CallsTheFunctionsOfTheFile) {
  auto calls = Open(R"(
def write(text):
    with open(OUT, "a") as file:
        print(text, file=file)

def on_step(step):
    write(f"step {step['step']} {step['loss']}")

def on_end(end):
    write(f"end {end['ending']}")
)")
                   .value();
  EXPECT_TRUE(calls->Has("on_step"));
  EXPECT_FALSE(calls->Has("on_checkpoint"));
  calls->Call("on_step", {{"step", 1}, {"loss", 2.5}});
  calls->Call("on_checkpoint", {{"step", 1}});
  calls->Call("on_step", {{"step", 2}, {"loss", 2.25}});
  calls->End({{"ending", "complete"}});
  EXPECT_EQ(Written(), "step 1 2.5\nstep 2 2.25\nend complete\n");
  EXPECT_EQ(log_.text(), "");
}

TEST_F(CallbacksTest, AFunctionThatFailsIsToldOnce) {
  auto calls = Open(R"(
def on_step(step):
    if step["step"] < 3:
        raise ValueError("odd")
    with open(OUT, "a") as file:
        print(step["step"], file=file)
)")
                   .value();
  for (int step = 1; step <= 3; ++step) calls->Call("on_step", {{"step", step}});
  calls->End(Json::object());
  EXPECT_EQ(Written(), "3\n");
  EXPECT_EQ(log_.Count("on_step failed"), 1) << log_.text();
  EXPECT_THAT(log_.text(), HasSubstr("hooks.py, line 5: ValueError: odd"));
}

TEST_F(CallbacksTest, AFileThatFailsIsAnError) {
  const auto broken = Open("import no_such_module\n");
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(broken.error().message(), HasSubstr("hooks.py, line 2: ModuleNotFoundError"));
  EXPECT_THAT(Open("def on_stop(): pass\n").error().message(), HasSubstr("none of on_plan, on_step"));
  EXPECT_THAT(Open("import sys; sys.exit(3)\n").error().message(), HasSubstr("SystemExit: 3"));
  EXPECT_THAT(Callbacks::Open("/nonexistent/hooks.py", "python3", {}).error().message(),
              HasSubstr("FileNotFoundError"));
}

}  // namespace
}  // namespace millrace::tracking
