#include "millrace/base/json.h"

#include <gtest/gtest.h>

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
  EXPECT_TRUE(ParseJson("[[[1]]]", "x", 3));
  EXPECT_FALSE(ParseJson("[[[[1]]]]", "x", 3));
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
