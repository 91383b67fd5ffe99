#include <gtest/gtest.h>

#include "millrace/object/url.h"

namespace millrace::object {
namespace {

TEST(ParseUrl, S3) {
  EXPECT_EQ(ParseUrl("s3://bucket/some/key"), (Url{Url::Scheme::kS3, "bucket", "some/key"}));
  EXPECT_EQ(ParseUrl("s3://bucket"), (Url{Url::Scheme::kS3, "bucket", ""}));
  EXPECT_EQ(ParseUrl("s3://bucket/"), (Url{Url::Scheme::kS3, "bucket", ""}));
  EXPECT_EQ(ParseUrl("s3://bucket//odd%20key?"), (Url{Url::Scheme::kS3, "bucket", "/odd%20key?"}));
  EXPECT_EQ(ParseUrl("s3://"), (Url{Url::Scheme::kS3, "", ""}));
}

TEST(ParseUrl, Files) {
  EXPECT_EQ(ParseUrl("file:///a/b%20c"), (Url{Url::Scheme::kFile, "", "/a/b c"}));
  EXPECT_EQ(ParseUrl("/a/b%20c"), (Url{Url::Scheme::kFile, "", "/a/b%20c"}));
  EXPECT_EQ(ParseUrl("../x"), (Url{Url::Scheme::kFile, "", "../x"}));
  EXPECT_EQ(ParseUrl("s3:/x"), (Url{Url::Scheme::kFile, "", "s3:/x"}));
}

TEST(ParseUrl, ToStringParsesBack) {
  for (const char* text : {"s3://bucket/some/key", "s3://bucket/", "s3://", "/a/b c", "rel/ative", "s3://bucket//x"}) {
    auto url = ParseUrl(text);
    ASSERT_TRUE(url) << text;
    EXPECT_EQ(url->ToString(), text);
    EXPECT_EQ(ParseUrl(url->ToString()), *url);
  }
}

TEST(ParseUrl, SaysWhatIsWrong) {
  for (const char* text : {"", "s3://Bucket/x", "s3://ab/x", "s3:///key", "s3://a..b/x", "s3://-abc/x", "file://host/x",
                           "file://x", "file:///bad%2", "http://x/y", "gs://bucket/x"}) {
    auto url = ParseUrl(text);
    ASSERT_FALSE(url) << text;
    EXPECT_EQ(url.error().code(), Code::kInvalidArgument) << text;
  }
  EXPECT_NE(ParseUrl("gs://bucket/x").error().message().find("\"gs\""), std::string::npos);
  EXPECT_NE(ParseUrl("s3://Bucket/x").error().ToString().find("\"Bucket\""), std::string::npos);
}

}  // namespace
}  // namespace millrace::object
