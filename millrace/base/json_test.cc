#include "millrace/base/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

namespace millrace {
namespace {

TEST(Json, ErrorsNameThePlace) {
  auto bad = ParseJson("{\n  \"a\": 1,\n  \"b\": nope\n}", "manifest");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(bad.error().message().starts_with("manifest: not valid JSON at line 3 column 9"))
      << bad.error().message();
}

TEST(Json, DepthIsBounded) {
  std::string deep(100'000, '[');
  auto parsed = ParseJson(deep, "x");
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message().find("nested deeper"), std::string::npos);
  EXPECT_TRUE(ParseJson("[[[1]]]", "x", {.depth = 3}));
  EXPECT_FALSE(ParseJson("[[[[1]]]]", "x", {.depth = 3}));
}

/// Parses an object of `keys` keys. Returns the CPU time of this thread that it took, in seconds.
double ParseKeys(int keys) {
  std::string text = "{";
  for (int i = 0; i < keys; ++i) text += fmt::format("{}\"key {}\":{}", i == 0 ? "" : ",", i, i);
  text += "}";
  const auto used = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = used();
  auto parsed = ParseJson(text, "x");
  const double after = used();
  EXPECT_TRUE(parsed);
  EXPECT_EQ(parsed->size(), keys);
  EXPECT_EQ(parsed->back(), keys - 1);
  return after - before;
}

// A parser that looks each key up among the earlier ones takes 100 times as long for ten times as many keys.
TEST(Json, ManyKeysTakeLinearTime) {
  const double few = std::min({ParseKeys(20'000), ParseKeys(20'000), ParseKeys(20'000)});
  EXPECT_LT(ParseKeys(200'000), 40 * few);
}

TEST(Json, TheLastOfDuplicateKeysCounts) {
  constexpr std::string_view kText = R"({"b":1,"a":{"x":1,"x":[2]},"b":{"c":3},"":4,"b":5,"":6})";
  EXPECT_EQ(DumpJson(*ParseJson(kText, "x")), R"({"b":5,"a":{"x":[2]},"":6})");
  EXPECT_EQ(ParseJsonTree(kText, "x")->dump(), R"({"":6,"a":{"x":[2]},"b":5})");
}

TEST(Json, BytesAndValuesAreBounded) {
  EXPECT_TRUE(ParseJson("[1,2,[3]]", "x", {.bytes = 9, .values = 5}));
  EXPECT_EQ(ParseJson("[1,2,[3]]", "x", {.bytes = 8}).error().message(), "x: 9 bytes of JSON; at most 8 are allowed");
  EXPECT_EQ(ParseJson("[1,2,[3]]", "x", {.values = 4}).error().message(), "x: more than 4 values");
  EXPECT_EQ(ParseJson(R"({"a":1,"a":2,"a":3})", "x", {.values = 3}).error().message(), "x: more than 3 values");
  EXPECT_EQ(ParseJson("[1e999]", "x").error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(ParseJson("[1] 2", "x"));
  EXPECT_FALSE(ParseJson("", "x"));
}

// Whatever nlohmann's own builder makes of a text, this one makes too.
TEST(Json, AgreesWithTheLibrarysOwnBuilder) {
  for (std::string_view text : {"0", "-1", "18446744073709551615", "1.5e3", "null", "true", R"("é\u00e9\n")", "[]",
                                "{}", R"([[],{},[{"a":[]}],{"a":{"b":[1,2,{"c":null}]}}])", " [ 1 , 2 ] "}) {
    EXPECT_EQ(*ParseJson(text, "x"), Json::parse(text)) << text;
    EXPECT_EQ(*ParseJsonTree(text, "x"), nlohmann::json::parse(text)) << text;
  }
}

TEST(Json, KeepsTheOrderOfKeysAndSurvivesBrokenUtf8) {
  EXPECT_EQ(DumpJson(*ParseJson(R"({"b":1,"a":2})", "x")), R"({"b":1,"a":2})");
  EXPECT_EQ(DumpJson(Json("\xff")), "\"\xef\xbf\xbd\"");
  EXPECT_FALSE(ParseJson("\"\xff\"", "x"));
}

TEST(Json, TypedAccessSaysWhatItFound) {
  Json object = *ParseJson(R"({"s":"x","n":-1,"d":0.5,"big":18446744073709551615})", "x");
  EXPECT_EQ(*JsonString(object, "s"), "x");
  EXPECT_EQ(*JsonInt(object, "n"), -1);
  EXPECT_EQ(*JsonNumber(object, "d"), 0.5);
  EXPECT_EQ(*JsonUint(object, "big"), ~std::uint64_t{0});
  EXPECT_FALSE(JsonInt(object, "big"));
  EXPECT_EQ(JsonUint(object, "n").error().message(), "\"n\" should be a non-negative integer, found number");
  EXPECT_EQ(JsonString(object, "absent").error().message(), "\"absent\" should be a string, found nothing");
  EXPECT_EQ(JsonFind(Json(3), "a"), nullptr);
}

}  // namespace
}  // namespace millrace
