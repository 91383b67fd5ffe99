#include "millrace/data/record_template.h"

#include <gtest/gtest.h>

#include "millrace/data/sources.h"

namespace millrace::data {
namespace {

std::string Render(std::string_view text, std::string_view record) {
  RecordTemplate record_template = RecordTemplate::Parse(text).value();
  RecordParser parser(record_template);
  auto document = parser.Parse(record);
  return document ? std::string(*document) : fmt::format("!{}", BrokenName(document.error()));
}

TEST(RecordTemplate, FillsFields) {
  EXPECT_EQ(Render("{title}\n\t\t{text}\n\n", R"({"id":"1","title":"T","text":"line\nnext"})"),
            "T\n\t\tline\nnext\n\n");
  EXPECT_EQ(Render("{text}", R"(  {"text":"数据 \ud83e\udd99"}  )"), "数据 🦙");
  EXPECT_EQ(Render("{{{a}}}{a}", R"({"a":"x"})"), "{x}x");
  EXPECT_EQ(Render("{a}", "\xEF\xBB\xBF{\"a\":\"x\"}\r"), "x");
  EXPECT_EQ(Render("{a}{b}", R"({"a":"","b":"x"})"), "x") << "one field may be empty";
}

TEST(RecordTemplate, SaysWhyARecordIsUnusable) {
  EXPECT_EQ(Render("{a}", R"({"a":"x)"), "!not_json");
  EXPECT_EQ(Render("{a}", R"({"a":"x"} trailing)"), "!not_json");
  EXPECT_EQ(Render("{a}", R"(["a"])"), "!not_json");
  EXPECT_EQ(Render("{a}", R"("a")"), "!not_json");
  EXPECT_EQ(Render("{a}", "{\"a\":\"\xFF\"}"), "!not_utf8");
  EXPECT_EQ(Render("{a}", "{\"a\":\"\xED\xA0\x80\"}"), "!not_utf8");
  EXPECT_EQ(Render("{a}{b}", R"({"a":"x"})"), "!missing_field");
  EXPECT_EQ(Render("{a}", R"({"a":3})"), "!not_text");
  EXPECT_EQ(Render("{a}", R"({"a":null})"), "!not_text");
  EXPECT_EQ(Render("-{a}-", R"({"a":""})"), "!empty");
  EXPECT_EQ(Render("{a}", std::string(kMaxRecordBytes + 1, ' ')), "!too_long");
}

TEST(RecordTemplate, DeepNestingIsBrokenNotFatal) {
  std::string deep = "{\"a\":\"x\",\"b\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(Render("{a}", deep), "!not_json");
}

TEST(RecordTemplate, RejectsTemplatesThatCannotBeMeant) {
  for (std::string_view text : {"", "no field", "{", "}", "{a", "a}", "{}", "{a{b}}", "{{a}}"}) {
    auto parsed = RecordTemplate::Parse(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
  }
  EXPECT_NE(RecordTemplate::Parse("ab{c").error().message().find("column 3"), std::string::npos);
}

TEST(Glob, MatchesAsShellsDoButAcrossSlashes) {
  EXPECT_TRUE(GlobMatches("a/*.jsonl", "a/b.jsonl"));
  EXPECT_TRUE(GlobMatches("a/*.jsonl", "a/b/c.jsonl"));
  EXPECT_FALSE(GlobMatches("a/*.jsonl", "a/b.json"));
  EXPECT_TRUE(GlobMatches("*", ""));
  EXPECT_TRUE(GlobMatches("a?c*", "abc"));
  EXPECT_FALSE(GlobMatches("a?c", "ac"));
  EXPECT_TRUE(GlobMatches("*a*b*", "xxaxxbxx"));
  EXPECT_FALSE(GlobMatches("*a*b", "ba"));
  EXPECT_FALSE(GlobMatches(std::string(40, '*') + "b", std::string(5000, 'a'))) << "and in reasonable time";
}

}  // namespace
}  // namespace millrace::data
