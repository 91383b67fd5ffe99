#include "millrace/csi/volume/mount_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::csi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

MountOptions Parse(const std::vector<std::string>& options) {
  auto words = ParseMountOptions(options);
  EXPECT_TRUE(words) << words.error().ToString();
  return words.value_or(MountOptions{});
}

std::string Refusal(const std::string& option) {
  auto words = ParseMountOptions(std::vector<std::string>{option});
  EXPECT_FALSE(words) << option;
  return words ? "" : words.error().ToString();
}

TEST(MountOptions, AreThoseOfTheArticle) {
  EXPECT_THAT(Parse({"allow-delete", "region us-west-2"}).flags, ElementsAre("--allow-delete", "--region=us-west-2"));
}

TEST(MountOptions, TakeValuesBehindSpacesAndEqualSigns) {
  for (const char* option : {"uid 1000", "uid=1000", "--uid=1000", "--uid 1000", " uid  1000 "}) {
    EXPECT_THAT(Parse({option}).flags, ElementsAre("--uid=1000")) << option;
  }
}

TEST(MountOptions, ConvertUnitsOfMountpoint) {
  EXPECT_THAT(Parse({"metadata-ttl 60", "negative-metadata-ttl minimal", "max-cache-size 512",
                     "maximum-throughput-gbps 10", "max-threads 1", "sse aws:kms"})
                  .flags,
              ElementsAre("--metadata-ttl=60000ms", "--negative-ttl=none", "--max-cache-size=512MiB",
                          "--bandwidth=1250000KB", "--threads=2", "--sse=aws:kms"));
  EXPECT_THAT(Parse({"metadata-ttl indefinite"}).flags, ElementsAre("--metadata-ttl=forever"));
}

TEST(MountOptions, TellPrefixAndReadOnlyApart) {
  const MountOptions words = Parse({"prefix team/a/", "read-only", "cache /tmp/any", "gid 5", "aws-max-attempts 3"});
  EXPECT_EQ(words.prefix, "team/a/");
  EXPECT_TRUE(words.read_only && words.disk_cache && words.sets_group);
  EXPECT_EQ(words.environment.at("AWS_MAX_ATTEMPTS"), "3");
}

TEST(MountOptions, RefuseWhatAVolumeMayNotSet) {
  EXPECT_THAT(Refusal("alow-delete"), HasSubstr("did you mean \"allow-delete\"?"));
  EXPECT_THAT(Refusal("region"), HasSubstr("needs a value"));
  EXPECT_THAT(Refusal("allow-delete yes"), HasSubstr("takes no value"));
  EXPECT_THAT(Refusal("profile admin"), HasSubstr("secret"));
  EXPECT_THAT(Refusal("log-directory /etc"), HasSubstr("the driver chooses it"));
  EXPECT_THAT(Refusal("prefix-join with-slash"), HasSubstr("as-written"));
  EXPECT_THAT(Refusal("otlp-endpoint http://x"), HasSubstr("--metrics-listen"));
}

TEST(MountOptions, AreTheOnlyFlagsOfVolumes) {
  EXPECT_TRUE(IsVolumeFlag("--strict"));
  EXPECT_TRUE(IsVolumeFlag("--prefix=a/"));
  EXPECT_TRUE(IsVolumeFlag("--uid=1"));
  for (const char* flag : {"--log-file=/etc/passwd", "--staging-dir=/", "--cache=/", "--metrics-listen=:1", "--uid", "",
                           "--log-directory=/", "--ca-bundle=/x", "--profile=x", "--foreground", "--log-level=off",
                           "--strict=x", "s3://other"}) {
    EXPECT_FALSE(IsVolumeFlag(flag)) << flag;
  }
}

}  // namespace
}  // namespace millrace::csi
