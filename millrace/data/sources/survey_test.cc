#include "millrace/data/sources/survey.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "millrace/base/hash/random.h"

namespace millrace::data {
namespace {

TEST(LengthHistogram, PercentilesAreWithinAStep) {
  Random random(4);
  LengthHistogram histogram;
  std::vector<std::uint64_t> lengths;
  for (int i = 0; i < 5000; ++i) {
    lengths.push_back(random.Below(std::uint64_t{1} << random.Below(40)));
    histogram.Add(lengths.back());
  }
  std::ranges::sort(lengths);
  for (double share : {0.1, 0.5, 0.9, 0.99, 1.0}) {
    auto exact = lengths[static_cast<std::size_t>(share * 5000) - 1];
    auto found = histogram.Quantile(share);
    EXPECT_GE(found, exact);
    EXPECT_LE(found, exact + exact / 16 + 1);
  }
  EXPECT_EQ(histogram.Quantile(1), lengths.back());
  std::uint64_t sum = 0;
  for (const auto& row : histogram.Bars()) sum += row.count;
  EXPECT_EQ(sum, 5000u);
}

TEST(LengthHistogram, RowsDoubleAndHaveNoGaps) {
  LengthHistogram histogram;
  for (std::uint64_t length : {3, 5, 6, 100}) histogram.Add(length);
  auto rows = histogram.Bars();
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0].from, 2u);
  EXPECT_EQ(rows[0].count, 1u);
  EXPECT_EQ(rows[1].from, 4u);
  EXPECT_EQ(rows[1].to, 7u);
  EXPECT_EQ(rows[1].count, 2u);
  EXPECT_EQ(rows[5].from, 64u);
  EXPECT_EQ(rows[5].to, 127u);
  EXPECT_DOUBLE_EQ(histogram.mean(), 28.5);
  EXPECT_THAT(histogram.ToText("tokens"), ::testing::HasSubstr("2 (50.0 %)"));
  EXPECT_THAT(histogram.ToSvg("tokens"), ::testing::EndsWith("</svg>\n"));
  EXPECT_TRUE(LengthHistogram().Bars().empty());
}

TEST(TextSurvey, TellsScriptsAndDuplicates) {
  EXPECT_EQ(ScriptOf("Hello, 世界 and more"), "Latin");
  EXPECT_EQ(ScriptOf("训练语言模型 GPU"), "Han");
  EXPECT_EQ(ScriptOf("Привет"), "Cyrillic");
  EXPECT_EQ(ScriptOf("한국어"), "Hangul");
  EXPECT_EQ(ScriptOf("12 + 3 = 15 😀"), "none");
  EXPECT_FALSE(ScriptOf("\xff\xc3").empty()) << "bytes that are no text do no harm";
  TextSurvey survey;
  for (const char* text : {"one", "two", "one", "three", "one"}) survey.Add(text);
  EXPECT_EQ(survey.documents(), 5u);
  EXPECT_EQ(survey.Duplicates(), 2u);
  EXPECT_THAT(survey.Scripts(), ::testing::ElementsAre(::testing::Pair("Latin", 5)));
}

TEST(ScriptOf, NamesAreKnown) {
  const auto names = ScriptNames();
  EXPECT_THAT(names, ::testing::IsSupersetOf({ScriptOf("mill"), ScriptOf("水车"), ScriptOf("мельница")}));
  EXPECT_EQ(ScriptOf("1.5 + 2"), "none");
}

}  // namespace
}  // namespace millrace::data
