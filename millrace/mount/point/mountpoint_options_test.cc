#include "millrace/mount/point/mountpoint_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::mount {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Translate(const std::vector<std::string>& arguments) {
  auto line = TranslateMountpointOptions(arguments);
  EXPECT_TRUE(line) << line.error().ToString();
  return line ? line->arguments : std::vector<std::string>();
}

TEST(MountpointOptions, HaveTheFlagsOfAMount) {
  EXPECT_THAT(Translate({"mount", "bucket", "/mnt", "--force-path-style", "--max-threads", "8", "--requester-pays",
                         "--negative-metadata-ttl=5", "-d"}),
              ElementsAre("mount", "bucket", "/mnt", "--path-style", "--threads=8", "--request-payer",
                          "--negative-ttl=5000ms", "--log-level=debug"));
}

TEST(MountpointOptions, HaveMountpointsUnits) {
  EXPECT_THAT(Translate({"--metadata-ttl", "60", "--max-cache-size", "512", "--maximum-throughput-gbps", "10"}),
              ElementsAre("--metadata-ttl=60000ms", "--max-cache-size=512MiB", "--bandwidth=1250000KB"));
  EXPECT_THAT(Translate({"--metadata-ttl", "minimal", "--metadata-ttl=indefinite"}),
              ElementsAre("--metadata-ttl=none", "--metadata-ttl=forever"));
}

TEST(MountpointOptions, LeaveUnitsOfOurs) {
  EXPECT_THAT(Translate({"--metadata-ttl=2m", "--max-cache-size", "100GiB", "--max-cache-size", "1073741824"}),
              ElementsAre("--metadata-ttl=2m", "--max-cache-size=100GiB", "--max-cache-size=1073741824"));
}

TEST(MountpointOptions, LeaveOtherWords) {
  EXPECT_THAT(Translate({"--close=async", "--staging-dir", "/s", "--", "--debug-crt"}),
              ElementsAre("--close=async", "--staging-dir", "/s", "--", "--debug-crt"));
  EXPECT_THAT(Translate({"mount", "--max-threads"}), ElementsAre("mount", "--max-threads"));
}

TEST(MountpointOptions, SayWhatHasNoEffect) {
  auto line = TranslateMountpointOptions(std::vector<std::string>{"--log-metrics", "--upload-checksums", "off", "b"});
  ASSERT_TRUE(line);
  EXPECT_THAT(line->arguments, ElementsAre("b"));
  EXPECT_THAT(line->notes, ElementsAre(HasSubstr("millrace stats")));
}

TEST(MountpointOptions, SayWhatToUseInstead) {
  auto line = TranslateMountpointOptions(std::vector<std::string>{"--cache-xz", "bucket--use1-az1--x-s3"});
  ASSERT_FALSE(line);
  EXPECT_THAT(line.error().ToString(), HasSubstr("--cache"));
  EXPECT_FALSE(TranslateMountpointOptions(std::vector<std::string>{"--max-threads", "many"}));
}

TEST(MountpointOptions, AreInOrder) {
  EXPECT_TRUE(std::ranges::is_sorted(MountpointOptions(), {}, &MountpointOption::name));
}

}  // namespace
}  // namespace millrace::mount
