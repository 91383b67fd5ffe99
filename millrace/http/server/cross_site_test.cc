#include "millrace/http/server/cross_site.h"

#include <gtest/gtest.h>

namespace millrace::http {
namespace {

bool Passes(std::string host, std::string origin = "", std::string site = "", bool any_host = false) {
  Headers headers;
  headers.Set("Host", std::move(host));
  if (!origin.empty()) headers.Set("Origin", std::move(origin));
  if (!site.empty()) headers.Set("Sec-Fetch-Site", std::move(site));
  const RequestSite from = SiteOf(headers);
  return from == RequestSite::kOwn || (any_host && from == RequestSite::kNamedHost);
}

TEST(CrossSite, ProgramsOfThisMachinePass) {
  for (const char* host :
       {"127.0.0.1:9000", "localhost", "LOCALHOST:9000", "bucket.localhost:9000", "[::1]:9000", "10.1.2.3:9000"}) {
    EXPECT_TRUE(Passes(host)) << host;
  }
  EXPECT_TRUE(Passes("127.0.0.1:9000", "http://127.0.0.1:9000", "same-origin"));
  EXPECT_TRUE(Passes("127.0.0.1:9000", "", "none"));
}

TEST(CrossSite, PagesOfOtherSitesDoNot) {
  for (const char* origin : {"https://evil.com", "http://127.0.0.1:8000", "https://127.0.0.1:9000", "null"}) {
    EXPECT_FALSE(Passes("127.0.0.1:9000", origin)) << origin;
    EXPECT_FALSE(Passes("127.0.0.1:9000", origin, "", true)) << origin;
  }
  EXPECT_FALSE(Passes("127.0.0.1:9000", "", "cross-site"));
  EXPECT_FALSE(Passes("127.0.0.1:9000", "", "same-site"));
}

TEST(CrossSite, NamesThatMayPointAnywhereDoNot) {
  for (const char* host : {"evil.com", "127.evil.com:9000", "127.0.0.1.evil.com", "localhost.evil.com", ""}) {
    EXPECT_FALSE(Passes(host)) << host;
    EXPECT_TRUE(Passes(host, "", "", true)) << host;
  }
}

}  // namespace
}  // namespace millrace::http
