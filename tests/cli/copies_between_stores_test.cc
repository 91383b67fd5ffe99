// Copies from one endpoint or account to another: the real program, two S3 endpoints in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/text.h"
#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Has a second endpoint, with other keys, a bucket of the same name, and the profile "other" for it.
class CopiesBetweenStores : public ObjectFixture {
 protected:
  void SetUp() override {
    ObjectFixture::SetUp();
    if (IsSkipped()) return;
    auto other = s3d::Server::Start(
        {.root = folder_.path() / "other", .access_key = "other", .secret_key = "another-secret", .sync = false});
    ASSERT_TRUE(other) << other.error().ToString();
    other_ = *std::move(other);
    ASSERT_TRUE(other_->CreateBucket("bucket"));
    WriteLocal("config", "[profile other]\naws_access_key_id = other\naws_secret_access_key = another-secret\n");
    program_.env()["AWS_CONFIG_FILE"] = (work() / "config").string();
  }
  /// Runs the program with the other endpoint as its only one.
  testing_support::Ran AtOther(std::vector<std::string> arguments) {
    return Millrace(std::move(arguments), {{"AWS_ENDPOINT_URL", other_->endpoint()},
                                           {"AWS_ACCESS_KEY_ID", "other"},
                                           {"AWS_SECRET_ACCESS_KEY", "another-secret"}});
  }
  /// Returns a command that reads from the other endpoint.
  std::vector<std::string> FromOther(std::vector<std::string> arguments) {
    for (const std::string& flag :
         {"--source-endpoint-url=" + other_->endpoint(), std::string("--source-profile=other")})
      arguments.push_back(flag);
    return arguments;
  }

  std::unique_ptr<s3d::Server> other_;
};

TEST_F(CopiesBetweenStores, CopiesKeepBytesTypesAndMetadata) {
  const std::string large(19 * kMiB + 5, 'x');
  WriteLocal("large", large);
  WriteLocal("small.json", "{}");
  ASSERT_EQ(
      AtOther({"cp", "large", "small.json", "s3://bucket/in/", "--metadata", "a=b", "--cache-control", "no-store"})
          .exit,
      0);
  EXPECT_EQ(Millrace(FromOther({"cp", "-r", "s3://bucket/in/", "s3://bucket/out/"})).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/"), ElementsAre("out/large", "out/small.json"));
  EXPECT_TRUE(Millrace({"cat", "s3://bucket/out/large"}).out == large);
  for (const char* key : {"large", "small.json"}) {
    const Json head = Millrace({"head", "--json", std::string("s3://bucket/out/") + key}).objects().at(0);
    EXPECT_EQ(head["metadata"]["a"], "b") << head;
    EXPECT_EQ(head["cache_control"], "no-store");
  }
  EXPECT_EQ(Millrace({"head", "--json", "s3://bucket/out/small.json"}).objects().at(0)["content_type"],
            "application/json");
  EXPECT_EQ(Millrace(FromOther({"cp", "s3://bucket/in/small.json", "-"})).out, "{}");
  EXPECT_EQ(Millrace(FromOther({"cp", "s3://bucket/in/small.json", "down"})).exit, 0);
  EXPECT_EQ(Local("down"), "{}");
}

TEST_F(CopiesBetweenStores, TheSameNameElsewhereIsAnotherPlace) {
  WriteLocal("file", "theirs");
  ASSERT_EQ(AtOther({"cp", "file", "s3://bucket/k"}).exit, 0);
  EXPECT_EQ(Millrace(FromOther({"sync", "s3://bucket/", "s3://bucket/"})).exit, 0);
  EXPECT_EQ(Millrace({"cat", "s3://bucket/k"}).out, "theirs");
  EXPECT_EQ(Millrace(FromOther({"sync", "--json", "s3://bucket/", "s3://bucket/"})).objects().back()["unchanged"], 1);
  EXPECT_EQ(Millrace(FromOther({"mv", "s3://bucket/k", "s3://bucket/moved"})).exit, 0);
  EXPECT_TRUE(AtOther({"ls", "-r", "--json", "s3://bucket/"}).objects().empty());
  EXPECT_THAT(Keys("s3://bucket/"), ElementsAre("k", "moved"));
}

TEST_F(CopiesBetweenStores, TheSameStoreByOtherFlagsCopiesOnItsServer) {
  WriteLocal("file", "ours");
  ASSERT_EQ(Millrace({"cp", "file", "s3://bucket/k"}).exit, 0);
  const testing_support::Ran onto =
      Millrace({"cp", "--source-endpoint-url", server_->endpoint(), "s3://bucket/k", "s3://bucket/k"});
  EXPECT_EQ(onto.exit, 2);
  EXPECT_THAT(onto.err, HasSubstr("source and destination are the same"));
  EXPECT_EQ(Millrace({"cp", "--source-region", "us-east-1", "s3://bucket/k", "s3://bucket/l"}).exit, 0);
  EXPECT_EQ(Millrace({"cat", "s3://bucket/l"}).out, "ours");
}

TEST_F(CopiesBetweenStores, FlagsOfASourceNeedASourceInAStore) {
  WriteLocal("file", "x");
  const testing_support::Ran ran = Millrace(FromOther({"cp", "file", "s3://bucket/k"}));
  EXPECT_EQ(ran.exit, 2);
  EXPECT_THAT(ran.err, HasSubstr("are for sources at s3://"));
}

}  // namespace
}  // namespace millrace
