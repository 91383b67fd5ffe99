#include "millrace/data/records/record_template.h"

#include <gtest/gtest.h>

namespace millrace::data {
namespace {

std::string Render(std::string_view text, std::string_view record) {
  RecordTemplate record_template = RecordTemplate::Parse(text).value();
  RecordParser parser(record_template);
  auto document = parser.Parse(record);
  return document ? std::string(*document) : fmt::format("!{}", BrokenReasonName(document.error()));
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
  EXPECT_EQ(Render("{a.b} {c}", R"({"a":{"b":"x"},"c":1})"), "x 1");
  EXPECT_EQ(Render("{a.b}", R"({"a.b":"whole","a":{"b":"inner"}})"), "whole");
  EXPECT_EQ(Render("{a.b.c}", R"({"a":{"b.c":"x"}})"), "x");
  EXPECT_EQ(Render("{a.b}", R"({"a":"text"})"), "!missing_field");
  EXPECT_EQ(Render("{a}", R"({"a":[3]})"), "!not_text");
  EXPECT_EQ(Render("{a}", R"({"a":{"b":"x"}})"), "!not_text");
  EXPECT_EQ(Render("{a}", R"({"a":null})"), "!not_text");
  EXPECT_EQ(Render("-{a}-", R"({"a":""})"), "!empty");
  EXPECT_EQ(Render("{a}", std::string(kMaxRecordBytes + 1, ' ')), "!too_long");
}

TEST(RecordTemplate, WhatNobodyAsksForNeedOnlyBeJson) {
  const std::string deep = std::string(100'000, '[') + "1" + std::string(100'000, ']');
  for (const std::string& other :
       {std::string("123456789012345678901234567890"), std::string("-1e999"), deep, std::string("NaN"),
        std::string("[Infinity, -Infinity]"), std::string(R"("\ud800")")}) {
    EXPECT_EQ(Render("{a}", R"({"b":)" + other + R"(,"a":"x"})"), "x") << other.substr(0, 40);
    EXPECT_EQ(Render("{a}", R"({"a":"x","b":{"c":)" + other + "}}"), "x") << other.substr(0, 40);
  }
  EXPECT_EQ(Render("{a}", R"({"a":"x","\udc00":{"a":"y"}, "b":1e999})"), "x") << "a name that no UTF-8 can hold";
  for (const std::string& other :
       {std::string("+1"), std::string("nan"), std::string("-NaN"), std::string("01"), std::string("1e999,"),
        std::string("\"\\x\""), std::string("\"\t\""), std::string("[1e999}"), deep.substr(1)}) {
    EXPECT_EQ(Render("{a}", R"({"a":"x","b":)" + other + "}"), "!not_json") << other.substr(0, 40);
  }
}

TEST(RecordTemplate, NumbersAreAsPythonPrintsThem) {
  const std::pair<const char*, const char*> cases[] = {
      {"3", "3"},
      {"-0", "0"},
      {"18446744073709551615", "18446744073709551615"},
      {"-123456789012345678901234567890", "-123456789012345678901234567890"},
      {"1.0", "1.0"},
      {"-0.0", "-0.0"},
      {"1E5", "100000.0"},
      {"1e16", "1e+16"},
      {"123456789012345.6", "123456789012345.6"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"1e999", "inf"},
      {"-1e999", "-inf"},
      {"1e-999", "0.0"},
      {"5e-324", "5e-324"},
      {"NaN", "nan"},
      {"-Infinity", "-inf"},
      {"true", "True"},
  };
  for (auto [json, printed] : cases) EXPECT_EQ(Render("{a}", fmt::format(R"({{"a":{}}})", json)), printed) << json;
  EXPECT_EQ(Render("{a}", R"({"a":"\ud800"})"), "!not_text");
}

TEST(RecordTemplate, OfEqualNamesTheLastCounts) {
  EXPECT_EQ(Render("{a}", R"({"a":"first","a":"last"})"), "last");
  EXPECT_EQ(Render("{a}", R"({"a":"text","a":null})"), "!not_text");
  EXPECT_EQ(Render("{a}{b}", R"({"b":1e999,"a":"first","\u0061":"last"})"), "lastinf");
}

TEST(RecordTemplate, AFieldNamedManyTimesIsNoWayAroundTheLimits) {
  std::string many;
  for (int i = 0; i < 20'000; ++i) many += "{a}";
  EXPECT_EQ(Render(many, R"({"a":"xy"})").size(), 40'000u);
  EXPECT_EQ(Render(many, R"({"a":")" + std::string(4000, 'x') + R"("})"), "!too_long") << "80 MB";
}

TEST(RecordTemplate, RejectsTemplatesThatCannotBeMeant) {
  for (std::string_view text : {"", "no field", "{", "}", "{a", "a}", "{}", "{a{b}}", "{{a}}"}) {
    auto parsed = RecordTemplate::Parse(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
  }
  EXPECT_NE(RecordTemplate::Parse("ab{c").error().message().find("column 3"), std::string::npos);
}

}  // namespace
}  // namespace millrace::data
