#include "millrace/s3d/operations/conditions.h"

#include <gtest/gtest.h>

namespace millrace::s3d {
namespace {

std::string RangeOf(std::string_view text, std::uint64_t size) {
  auto range = ParseRange(text, size);
  if (!range) return range.error().code;
  return *range ? fmt::format("{}+{}", (*range)->offset, (*range)->length) : "whole";
}

TEST(ParseRange, TakesWhatNamesOneRun) {
  EXPECT_EQ(RangeOf("bytes=0-9", 100), "0+10");
  EXPECT_EQ(RangeOf("bytes=10-", 100), "10+90");
  EXPECT_EQ(RangeOf("bytes=90-200", 100), "90+10");
  EXPECT_EQ(RangeOf("bytes=-10", 100), "90+10");
  EXPECT_EQ(RangeOf("bytes=-200", 100), "0+100");
  EXPECT_EQ(RangeOf("bytes=99-99", 100), "99+1");
}

TEST(ParseRange, RefusesWhatNamesNothing) {
  EXPECT_EQ(RangeOf("bytes=100-", 100), "InvalidRange");
  EXPECT_EQ(RangeOf("bytes=0-", 0), "InvalidRange");
  EXPECT_EQ(RangeOf("bytes=-0", 100), "InvalidRange");
  EXPECT_EQ(RangeOf("bytes=-5", 0), "InvalidRange");
}

TEST(ParseRange, IgnoresWhatItDoesNotUnderstand) {
  for (std::string_view text : {"", "bytes", "bytes=", "bytes=-", "bytes=5-1", "bytes=a-b", "items=0-1",
                                "bytes=0-1,3-4", "bytes=99999999999999999999-"}) {
    EXPECT_EQ(RangeOf(text, 100), "whole") << text;
  }
}

TEST(CheckRead, FollowsTheOrderOfPrecedence) {
  Object object;
  object.etag = "abc";
  object.modified = *ParseHttpDate("Sat, 31 Jan 2026 12:00:00 GMT") + std::chrono::milliseconds(300);
  auto verdict = [&](std::initializer_list<std::pair<std::string_view, std::string_view>> fields) {
    http::Headers headers;
    for (auto [name, value] : fields) headers.Set(name, std::string(value));
    return CheckRead(headers, "", object);
  };
  constexpr std::string_view kBefore = "Sat, 31 Jan 2026 11:59:59 GMT", kSame = "Sat, 31 Jan 2026 12:00:00 GMT";
  using enum ReadVerdict;
  EXPECT_EQ(verdict({}), kServe);
  EXPECT_EQ(verdict({{"If-Match", "\"abc\""}}), kServe);
  EXPECT_EQ(verdict({{"If-Match", "\"x\", \"abc\""}}), kServe);
  EXPECT_EQ(verdict({{"If-Match", "abc"}}), kServe);
  EXPECT_EQ(verdict({{"If-Match", "*"}}), kServe);
  EXPECT_EQ(verdict({{"If-Match", "\"x\""}}), kFailed);
  EXPECT_EQ(verdict({{"If-None-Match", "\"abc\""}}), kNotModified);
  EXPECT_EQ(verdict({{"If-None-Match", "W/\"abc\""}}), kNotModified);
  EXPECT_EQ(verdict({{"If-None-Match", "\"x\""}}), kServe);
  EXPECT_EQ(verdict({{"If-Modified-Since", kSame}}), kNotModified);
  EXPECT_EQ(verdict({{"If-Modified-Since", kBefore}}), kServe);
  EXPECT_EQ(verdict({{"If-Unmodified-Since", kSame}}), kServe);
  EXPECT_EQ(verdict({{"If-Unmodified-Since", kBefore}}), kFailed);
  EXPECT_EQ(verdict({{"If-Match", "\"abc\""}, {"If-Unmodified-Since", kBefore}}), kServe);
  EXPECT_EQ(verdict({{"If-None-Match", "\"x\""}, {"If-Modified-Since", kSame}}), kServe);
}

}  // namespace
}  // namespace millrace::s3d
