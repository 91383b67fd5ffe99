#include <gtest/gtest.h>

#include "millrace/http/headers.h"

namespace millrace::http {
namespace {

TEST(Headers, NamesCompareWithoutCase) {
  Headers headers;
  headers.Set("Content-Length", "3");
  EXPECT_EQ(headers.Get("content-length"), "3");
  EXPECT_TRUE(headers.Has("CONTENT-LENGTH"));
  EXPECT_FALSE(headers.Has("Content-Lengt"));
  EXPECT_EQ(headers.Get("ETag"), "");
}

TEST(Headers, AddKeepsAllAndGetYieldsTheFirst) {
  Headers headers;
  headers.Add("Via", "a");
  headers.Add("via", "b");
  EXPECT_EQ(headers.size(), 2u);
  EXPECT_EQ(headers.Get("VIA"), "a");
}

TEST(Headers, SetLeavesOneInTheFirstOnesPlace) {
  Headers headers;
  headers.Add("Via", "a");
  headers.Add("Host", "h");
  headers.Add("VIA", "b");
  headers.Set("via", "c");
  ASSERT_EQ(headers.size(), 2u);
  EXPECT_EQ(headers.begin()->second, "c");
  EXPECT_EQ(headers.Get("host"), "h");
}

TEST(Headers, RemoveTakesEveryOne) {
  Headers headers;
  headers.Add("Via", "a");
  headers.Add("via", "b");
  headers.Remove("VIA");
  EXPECT_EQ(headers.size(), 0u);
}

}  // namespace
}  // namespace millrace::http
