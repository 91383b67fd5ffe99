#include "apps/common/flag_checks.h"

#include <gmock/gmock.h>

#include <cstdint>

#include "apps/common/help.h"
#include "apps/common/parse.h"

namespace millrace::cli {
namespace {

using testing::ElementsAre;

/// Returns what is wrong with a command line: one flag, and a value for it.
std::string Mistake(CLI::App& app, std::vector<std::string> words) {
  std::ranges::reverse(words);  // CLI11 takes them last first
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return DescribeMistake(app, error);
  }
  return "";
}

std::string MistakeOf(CLI::Validator check, const std::string& value) {
  CLI::App app;
  std::string text;
  app.add_option("--size", text)->check(std::move(check));
  return Mistake(app, {"--size", value});
}

TEST(FlagChecks, RangesAreSaidInWords) {
  EXPECT_EQ(MistakeOf(Between(1, 16), "16"), "");
  EXPECT_EQ(MistakeOf(Between(1, 16), "17"), "--size: \"17\" is not a whole number from 1 to 16");
  EXPECT_EQ(MistakeOf(Between(1, 16), "4.5"), "--size: \"4.5\" is not a whole number from 1 to 16");
  EXPECT_EQ(MistakeOf(AtLeast(1), "0"), "--size: \"0\" is not a whole number of at least 1");
  EXPECT_EQ(MistakeOf(AtLeast(1), "99999999999"), "--size: \"99999999999\" is not a whole number of at least 1");
  EXPECT_EQ(MistakeOf(AtLeast(std::uint64_t{1}), "99999999999"), "");
  EXPECT_EQ(MistakeOf(Between(0.5, 1.0), "2"), "--size: \"2\" is not a number from 0.5 to 1");
  EXPECT_EQ(MistakeOf(AtLeast(0.0), "-1"), "--size: \"-1\" is not a number of at least 0");
  EXPECT_EQ(MistakeOf(AtLeast(std::numeric_limits<double>::min()), "0"), "--size: \"0\" is not a number above 0");
}

TEST(FlagChecks, WordsAreListed) {
  EXPECT_EQ(MistakeOf(OneOf({"auto", "on", "off"}), "on"), "");
  EXPECT_EQ(MistakeOf(OneOf({"auto", "on", "off"}), "of"), "--size: \"of\" is none of auto, on, off");
  CLI::App app;
  std::string text;
  EXPECT_THAT(ChoicesOf(*app.add_option("--mode", text)->check(OneOf({"min", "max"}))), ElementsAre("min", "max"));
  EXPECT_THAT(ChoicesOf(*app.add_option("--name", text)), ElementsAre());
}

TEST(Mistakes, AreSaidInWords) {
  CLI::App app;
  int count = 0;
  std::vector<std::string> places;
  std::string name;
  app.add_option("--count", count);
  app.add_option("--name", name)->required();
  app.add_option("PLACE", places)->type_name("SOURCE DESTINATION")->required()->expected(2);
  CLI::Option* one = app.add_flag("--one");
  app.add_flag("--other")->excludes(one);
  EXPECT_EQ(Mistake(app, {"--count", "abc", "--name", "n", "a", "b"}), "--count: \"abc\" is not a number");
  EXPECT_EQ(Mistake(app, {"--name", "n", "a", "b", "--count"}), "--count needs N");
  EXPECT_EQ(Mistake(app, {"a", "b"}), "--name is missing");
  EXPECT_EQ(Mistake(app, {"--name", "n"}), "SOURCE DESTINATION is missing");
  EXPECT_EQ(Mistake(app, {"--name", "n", "a"}), "expected SOURCE DESTINATION");
  EXPECT_EQ(Mistake(app, {"--name", "n", "a", "b", "--one", "--other"}), "--one and --other do not go together");
  EXPECT_EQ(Mistake(app, {"--nam", "n", "a", "b"}), "unknown flag \"--nam\"; did you mean \"--name\"?");
  EXPECT_EQ(Mistake(app, {"--name", "n", "a", "b", "--numworkers=3"}), "unknown \"--numworkers=3\": use --concurrency");
}

}  // namespace
}  // namespace millrace::cli
