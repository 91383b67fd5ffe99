#include "millrace/base/files/confine.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

using namespace std::string_view_literals;

TEST(ConfineTest, NamesBelowTheRootAreAccepted) {
  for (std::string_view name : {"a"sv, "a/b"sv, "a/b/"sv, "..a/b.."sv, "..."sv, "\xC3\xA9/x"sv}) {
    EXPECT_TRUE(CheckConfined(name, "", "test")) << name;
    EXPECT_TRUE(CheckConfined("p/" + std::string(name), "p/", "test")) << name;
  }
  EXPECT_TRUE(CheckConfined(std::string(kMaxConfinedBytes, 'x'), "", "test"));
}

TEST(ConfineTest, OtherNamesAreRefusedWithNameAndRecord) {
  for (std::string_view name : {""sv, "/"sv, "/a"sv, "a//b"sv, "a//"sv, "."sv, ".."sv, "../a"sv, "a/../b"sv, "a/.."sv,
                                "a/../"sv, "./a"sv, "a\0b"sv, "a\xFF"sv}) {
    auto checked = CheckConfined(name, "", "the record");
    ASSERT_FALSE(checked) << name;
    EXPECT_EQ(checked.error().code(), Code::kCorrupt);
    EXPECT_NE(checked.error().ToString().find("the record"), std::string::npos);
  }
  for (std::string_view name : {"p/"sv, "p"sv, "q/a"sv, "pp/a"sv, "p/../q"sv, "p//a"sv}) {
    EXPECT_FALSE(CheckConfined(name, "p/", "test")) << name;
  }
  EXPECT_FALSE(CheckConfined(std::string(kMaxConfinedBytes + 1, 'x'), "", "test"));
}

TEST(ConfineTest, AnySegmentsAreForKeysThatAreOnlyCompared) {
  for (std::string_view name : {"a//b"sv, "../a"sv, "a/./b"sv}) {
    EXPECT_TRUE(CheckConfined(name, "", "test", NameSegments::kAny)) << name;
    EXPECT_FALSE(CheckConfined(name, "p/", "test", NameSegments::kAny)) << name;
  }
  EXPECT_FALSE(CheckConfined("a\0b"sv, "", "test", NameSegments::kAny));
}

}  // namespace
}  // namespace millrace
