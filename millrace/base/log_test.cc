#include "millrace/base/log.h"

#include <gtest/gtest.h>

#include <vector>

#include "millrace/base/json.h"

namespace millrace {
namespace {

class Lines final : public LogSink {
 public:
  void Write(std::string_view line) override { lines.emplace_back(line); }
  std::vector<std::string> lines;
};

TEST(Logger, WritesFieldsThatSplitAtSpaces) {
  auto sink = std::make_shared<Lines>();
  FakeClock clock(WallTime(std::chrono::seconds(0)));
  Logger log(sink, LogLevel::kInfo, Logger::Format::kText, clock);
  log.Debug("not shown");
  log.With({"rank", 3}).Warning("retrying", {{"key", "a b\n"}, {"attempt", 2}, {"final", false}});
  ASSERT_EQ(sink->lines.size(), 1u);
  EXPECT_EQ(sink->lines[0], "1970-01-01T00:00:00.000Z warning retrying rank=3 key=\"a b\\n\" attempt=2 final=false");
}

TEST(Logger, JsonLinesParse) {
  auto sink = std::make_shared<Lines>();
  FakeClock clock;
  Logger log(sink, LogLevel::kDebug, Logger::Format::kJson, clock);
  log.Error("failed", {{"error", Error(Code::kIo, "disk").Context("saving")}});
  Json line = *ParseJson(sink->lines.at(0), "log");
  EXPECT_EQ(line["level"], "error");
  EXPECT_EQ(line["error"], "saving: disk");
}

TEST(Logger, DefaultDiscardsAndLevelsParse) {
  Logger().Error("nowhere");
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_EQ(ParseLogLevel("warnin").error().message(), "unknown log level \"warnin\"; did you mean \"warning\"?");
}

}  // namespace
}  // namespace millrace
