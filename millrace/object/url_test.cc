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

TEST(ParseUrl, AccessPoints) {
  const std::string arn = "arn:aws:s3:us-west-2:123456789012:accesspoint/team-a";
  EXPECT_EQ(ParseUrl("s3://" + arn + "/some/key"), (Url{Url::Scheme::kS3, arn, "some/key"}));
  EXPECT_EQ(ParseUrl("s3://" + arn), (Url{Url::Scheme::kS3, arn, ""}));
  EXPECT_EQ(ParseUrl("s3://arn:aws:s3:us-west-2:123456789012:accesspoint:team-a/"), (Url{Url::Scheme::kS3, arn, ""}));
  EXPECT_EQ(ParseUrl(ParseUrl("s3://" + arn + "//k")->ToString()), (Url{Url::Scheme::kS3, arn, "/k"}));
  EXPECT_EQ(ParseUrl("s3://team-a-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias/k")->key, "k");
}

TEST(ParseUrl, SaysWhatIsWrongWithAnAccessPoint) {
  const std::pair<const char*, const char*> cases[] = {
      {"s3://arn:aws:s3", "the form is"},
      {"s3://arn:aws:s3:::bucket/key", "s3://BUCKET"},
      {"s3://arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap/k", "several regions"},
      {"s3://arn:aws:s3-object-lambda:us-east-1:123456789012:accesspoint/name", "s3-object-lambda"},
      {"s3://arn:aws:s3:us-east-1:1234:accesspoint/name", "12 digits"},
      {"s3://arn:aws:s3:evil.example#:123456789012:accesspoint/name", "region"},
      {"s3://arn:aws:s3:us-east-1:123456789012:accesspoint/x.evil.example/k", "3 to 50"},
      {"s3://arn:else:s3:us-east-1:123456789012:accesspoint/name/k", "partition"},
  };
  for (const auto& [text, part] : cases) {
    auto url = ParseUrl(text);
    ASSERT_FALSE(url) << text;
    EXPECT_NE(url.error().ToString().find(part), std::string::npos) << url.error().ToString();
  }
}

TEST(ParseUrl, Files) {
  EXPECT_EQ(ParseUrl("file:///a/b%20c"), (Url{Url::Scheme::kFile, "", "/a/b c"}));
  EXPECT_EQ(ParseUrl("/a/b%20c"), (Url{Url::Scheme::kFile, "", "/a/b%20c"}));
  EXPECT_EQ(ParseUrl("../x"), (Url{Url::Scheme::kFile, "", "../x"}));
  EXPECT_EQ(ParseUrl("./s3:/x"), (Url{Url::Scheme::kFile, "", "./s3:/x"}));
  for (const char* slip : {"s3:/bucket/", "s3:bucket/"}) {
    EXPECT_NE(ParseUrl(slip).error().ToString().find("two slashes: s3://bucket/"), std::string::npos) << slip;
  }
}

TEST(ParseUrl, RepositoriesOfTheHub) {
  auto hub = [](const char* repository, const char* path) { return Url{Url::Scheme::kHub, repository, path}; };
  const std::pair<const char*, Url> cases[] = {
      {"hf://o/m", hub("o/m", "")},
      {"hf://o/m/", hub("o/m", "")},
      {"hf://models/o/m.v1/a/b", hub("o/m.v1", "a/b")},
      {"hf://datasets/o/d/data/*.parquet", hub("datasets/o/d", "data/*.parquet")},
      {"hf://spaces/o/s/app.py", hub("spaces/o/s", "app.py")},
      {"hf://o/m@v1.0/a", hub("o/m@v1.0", "a")},
      {"hf://o/m@feature%2Fx/a", hub("o/m@feature%2Fx", "a")},
      {"hf://datasets/o/d@refs/convert/parquet/a/b", hub("datasets/o/d@refs/convert/parquet", "a/b")},
      {"hf://datasets/o/d@refs%2Fconvert%2Fparquet/a", hub("datasets/o/d@refs%2Fconvert%2Fparquet", "a")},
      {"hf://o/m@refs/pr/3", hub("o/m@refs/pr/3", "")},
      {"hf://o/m/a@b/c", hub("o/m", "a@b/c")},
      // Models and data sets without an owner.
      {"hf://gpt2", hub("gpt2@main", "")},
      {"hf://gpt2/", hub("gpt2@main", "")},
      {"hf://gpt2/config.json", hub("gpt2@main", "config.json")},
      {"hf://gpt2/*.json", hub("gpt2@main", "*.json")},
      {"hf://gpt2@main/onnx/config.json", hub("gpt2@main", "onnx/config.json")},
      {"hf://gpt2/a.json@b", hub("gpt2/a.json@b", "")},
      {"hf://datasets/squad@main/plain_text/", hub("datasets/squad@main", "plain_text/")},
  };
  for (const auto& [text, expected] : cases) {
    auto url = ParseUrl(text);
    ASSERT_TRUE(url) << text << ": " << url.error().ToString();
    EXPECT_EQ(*url, expected) << text << " is " << url->bucket << " and " << url->key;
  }
}

TEST(ParseUrl, SaysWhatIsWrongWithARepository) {
  const std::pair<const char*, const char*> cases[] = {
      {"hf://", "no repository is named"},
      {"hf://datasets", "no repository is named"},
      {"hf://dataset/o/d", "hf://datasets/"},
      {"hf://buckets/o/b", "buckets of the hub"},
      {"hf://o/m@/a", "branch, a tag or a commit"},
      {"hf://o/m@a%0Ab/c", "branch, a tag or a commit"},
      {"hf://-o/m", "\"-o\""},
      {"hf://a--b/m", "\"a--b\""},
      {"hf://o m/m/x", "\"o m\""},
      {"hf:///m", "no repository is named"},
  };
  for (const auto& [text, says] : cases) {
    auto url = ParseUrl(text);
    ASSERT_FALSE(url) << text;
    EXPECT_EQ(url.error().code(), Code::kInvalidArgument) << text;
    EXPECT_TRUE(url.error().message().contains(says)) << url.error().message();
  }
}

TEST(ParseUrl, ToStringParsesBack) {
  for (const char* text : {"s3://bucket/some/key", "s3://bucket/", "s3://", "/a/b c", "rel/ative", "s3://bucket//x",
                           "hf://o/m/a", "hf://datasets/o/d@x%2Fy/", "hf://gpt2@main/onnx/model.onnx"}) {
    auto url = ParseUrl(text);
    ASSERT_TRUE(url) << text;
    EXPECT_EQ(url->ToString(), text);
    EXPECT_EQ(ParseUrl(url->ToString()), *url);
  }
}

TEST(ParseUrl, SaysWhatIsWrong) {
  for (const char* text : {"", "s3:///key", "s3://a b/x", "s3://../x", "s3://b\u00fccher/x", "s3://a:b/x",
                           "file://host/x", "file://x", "file:///bad%2", "http://x/y", "gs://bucket/x"}) {
    auto url = ParseUrl(text);
    ASSERT_FALSE(url) << text;
    EXPECT_EQ(url.error().code(), Code::kInvalidArgument) << text;
  }
  EXPECT_NE(ParseUrl("gs://bucket/x").error().message().find("\"gs\""), std::string::npos);
  EXPECT_NE(ParseUrl("s3://a:b/x").error().ToString().find("\"a:b\""), std::string::npos);
}

TEST(BucketName, OfANewBucketFollowsTheRulesOfToday) {
  for (const char* old : {"my_bucket", "Bucket", "ab", "a..b", "-abc"}) {
    EXPECT_TRUE(ParseUrl(fmt::format("s3://{}/x", old))) << "the store decides whether it has " << old;
    EXPECT_FALSE(CheckNewBucketName(old)) << old;
  }
  EXPECT_TRUE(CheckNewBucketName("a-new.bucket"));
}

}  // namespace
}  // namespace millrace::object
