#include "apps/common/help.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "apps/common/flag_checks.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(WrapText, BreaksAtBlanks) {
  EXPECT_EQ(WrapText("one two three", 0, 7), "one two\nthree");
  EXPECT_EQ(WrapText("one two three", 2, 9), "one two\n  three");
  EXPECT_EQ(WrapText("s3://a-long-name is whole", 0, 6), "s3://a-long-name\nis\nwhole");
  EXPECT_EQ(WrapText("‹é› ‹é›", 0, 7), "‹é› ‹é›") << "characters count, not bytes";
  EXPECT_EQ(WrapText("", 4, 10), "");
}

TEST(WrapExample, StaysAWorkingCommand) {
  EXPECT_EQ(WrapExample("  millrace ls", 20), "  millrace ls");
  EXPECT_EQ(WrapExample("  millrace ls s3://bucket/   # all of it", 30), "  # all of it\n  millrace ls s3://bucket/");
  EXPECT_EQ(WrapExample("  millrace cp first second third", 20),
            "  millrace cp \\\n      first second \\\n      third");
  EXPECT_EQ(WrapExample("  millrace cat '{a} {b} {c}' more", 24),
            "  millrace cat \\\n      '{a} {b} {c}' \\\n      more")
      << "a text in quotes stays whole";
}

class HelpText : public testing::Test {
 protected:
  HelpText() : app_("Do something with places.", "millrace") {
    ::setenv("COLUMNS", "80", 1);
    UseHelp(app_);
  }
  ~HelpText() override { ::unsetenv("COLUMNS"); }

  CLI::App app_;
  std::string text_ = "auto";
  std::vector<std::string> places_;
  int number_ = 4;
};

TEST_F(HelpText, NamesValuesInWordsOfPeople) {
  app_.add_option("--threads", number_, "Threads that work")->check(Between(1, 16))->capture_default_str();
  app_.add_option("--endpoint-url", text_, "Where it is");
  app_.add_option("--mode", text_, "How")->check(OneOf({"fast", "safe"}));
  bool eod = true;
  app_.add_flag("--eod,!--no-eod", eod, "An end behind each document");
  app_.add_option("places", places_, "What is copied, and where to")->type_name("SOURCE... DESTINATION")->required();
  const std::string help = app_.help();
  EXPECT_THAT(help, HasSubstr("Usage: millrace [OPTIONS] SOURCE... DESTINATION\n"));
  EXPECT_THAT(help, HasSubstr("      --threads N           Threads that work (default: 4)\n"));
  EXPECT_THAT(help, HasSubstr("      --endpoint-url URL    Where it is\n"));
  EXPECT_THAT(help, HasSubstr("      --mode MODE           How: fast, safe\n"));
  EXPECT_THAT(help, HasSubstr("      --[no-]eod            An end behind each document\n"));
  for (const char* raw : {"INT", "TEXT", "REQUIRED", "{", "(2x)"}) EXPECT_THAT(help, Not(HasSubstr(raw)));
}

TEST_F(HelpText, AnArgumentThatIsAlsoAFlagIsRequiredOnce) {
  app_.add_option("--model,model", text_, "The model's URL")->required();
  const std::string help = app_.help();
  EXPECT_THAT(help, HasSubstr("Usage: millrace [OPTIONS] MODEL\n"));
  EXPECT_THAT(help, HasSubstr("  MODEL                     The model's URL\n"));
  EXPECT_THAT(help, HasSubstr("      --model MODEL         The same as the argument MODEL\n"));
  EXPECT_THAT(help, Not(HasSubstr("required")));
}

TEST_F(HelpText, FitsTheTerminal) {
  app_.add_option("--max-wait", text_, "Longest wait of a request for its turn, such as 30s; then it gets status 429");
  app_.add_subcommand("go", "Begin to do something with all of the places that were named before")
      ->group("Commands for places");
  app_.footer(
      "Examples:\n  millrace go --max-wait 30s s3://bucket/a-folder s3://bucket/another   # with a comment\n"
      "Effects:\n  slow, late, never        wait as long as it takes somebody else to do it, and a second longer");
  for (const char* columns : {"40", "60", "80", "200"}) {
    ::setenv("COLUMNS", columns, 1);
    const std::string help = app_.help();
    for (const std::string_view line : Split(help, '\n')) {
      EXPECT_LE(line.size(), static_cast<std::size_t>(std::min(std::atoi(columns), 100))) << line;
    }
    EXPECT_THAT(help, HasSubstr("Commands for places:\n"));
    EXPECT_THAT(help.substr(help.find("Effects:")), Not(HasSubstr("\\"))) << "no command of a shell";
  }
}

}  // namespace
}  // namespace millrace::cli
