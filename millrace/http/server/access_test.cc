#include "millrace/http/server/access.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "millrace/base/files/files.h"

namespace millrace::http {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kKey = "0123456789abcdef", kOther = "fedcba9876543210";

Headers Authorized(std::string value) {
  Headers headers;
  headers.Set("Authorization", std::move(value));
  return headers;
}

class KeyFile : public ::testing::Test {
 protected:
  Result<ApiKeys> Load(std::string_view content, mode_t mode = 0600) const {
    EXPECT_TRUE(WriteFileAtomic(file_, AsBytes(content)));
    EXPECT_EQ(chmod(file_.c_str(), mode), 0);
    return ApiKeys::Load(file_);
  }
  TempDir folder_ = TempDir::Create().value();
  std::filesystem::path file_ = folder_.path() / "keys";
};

TEST_F(KeyFile, HoldsOneKeyALine) {
  auto keys = Load(fmt::format("# current\n{}\n\n  {}  \r\n", kKey, kOther));
  ASSERT_TRUE(keys) << keys.error().ToString();
  EXPECT_TRUE(keys->Allow(Authorized(fmt::format("Bearer {}", kKey))));
  EXPECT_TRUE(keys->Allow(Authorized(fmt::format("bearer {}", kOther))));
  EXPECT_FALSE(keys->Allow(Authorized(fmt::format("Bearer {}x", kKey))));
  EXPECT_FALSE(keys->Allow(Authorized(fmt::format("Basic {}", kKey))));
  EXPECT_FALSE(keys->Allow(Authorized("Bearer ")));
  EXPECT_FALSE(keys->Allow(Authorized("Bearer # current")));
  EXPECT_FALSE(keys->Allow({}));
  EXPECT_TRUE(ApiKeys().Allow({}));
}

TEST_F(KeyFile, IsForItsOwnerAlone) {
  auto readable = Load(fmt::format("{}\n", kKey), 0644);
  ASSERT_FALSE(readable);
  EXPECT_EQ(readable.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(readable.error().message(), HasSubstr("chmod o= " + file_.string()));
  EXPECT_FALSE(Load(fmt::format("{}\n", kKey), 0620));
  EXPECT_TRUE(Load(fmt::format("{}\n", kKey), 0440));
}

TEST_F(KeyFile, SaysWhichLineIsNoKey) {
  EXPECT_THAT(Load("# x\nshort\n").error().message(), HasSubstr("line 2 of"));
  EXPECT_THAT(Load("has blanks between words\n").error().message(), HasSubstr("line 1 of"));
  EXPECT_THAT(Load("# nothing\n").error().message(), HasSubstr("has no key"));
  EXPECT_THAT(ApiKeys::Load(folder_.path() / "absent").error().message(), HasSubstr("absent"));
  EXPECT_THAT(ApiKeys::Load(folder_.path()).error().message(), HasSubstr("is not a file"));
}

TEST(Access, AServerWithoutKeysStaysOnLoopback) {
  constexpr std::string_view kHow = "--api-key-file FILE, or --insecure";
  for (std::string_view inside : {"127.0.0.1:80", "127.9.9.9:0", "[::1]:80", "localhost:80", "[::ffff:127.0.0.1]:1"}) {
    EXPECT_TRUE(OpenAccess(inside, {}, kHow)) << inside;
  }
  for (std::string_view outside : {"0.0.0.0:80", "[::]:80", "10.0.0.1:80", "127.evil.com:80", "localhost.evil.com:80",
                                   "[::ffff:10.0.0.1]:1", "127.1:80", ":80"}) {
    auto refused = OpenAccess(outside, {}, kHow);
    ASSERT_FALSE(refused) << outside;
    EXPECT_THAT(refused.error().message(), HasSubstr(kHow));
    EXPECT_TRUE(OpenAccess(outside, {.insecure = true}, kHow)) << outside;
  }
}

TEST(Access, FindsTheHostOfAnAuthority) {
  EXPECT_EQ(HostOfAuthority("[::1]:80"), "[::1]");
  EXPECT_EQ(HostOfAuthority("host:80"), "host");
  EXPECT_EQ(HostOfAuthority("host"), "host");
  EXPECT_EQ(HostOfAuthority("[::1]"), "[::1]");
  for (std::string_view bad : {"127.0.0.1:80@evil.com", "[::1]@evil.com", "[::1", "h:1:2"}) {
    EXPECT_FALSE(IsLoopbackHost(HostOfAuthority(bad))) << bad;
  }
}

}  // namespace
}  // namespace millrace::http
