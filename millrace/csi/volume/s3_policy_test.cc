#include "millrace/csi/volume/s3_policy.h"

#include <gtest/gtest.h>

namespace millrace::csi {
namespace {

std::string Actions(const Json& policy) {
  std::string text;
  for (const Json& statement : policy["Statement"]) {
    for (const Json& action : statement["Action"]) text += action.get<std::string>() + " ";
    text += "on " + statement["Resource"].get<std::string>() + "; ";
  }
  return text;
}

TEST(S3Policy, OfAReadOnlyVolumeOnlyReads) {
  const Json policy = *MakeS3Policy({.use = PolicyUse::kReadOnlyVolume, .bucket = "corpus"});
  EXPECT_EQ(Actions(policy), "s3:ListBucket on arn:aws:s3:::corpus; s3:GetObject on arn:aws:s3:::corpus/*; ");
  EXPECT_FALSE(policy["Statement"][0].contains("Condition"));
}

TEST(S3Policy, OfAPrefixListsAndTouchesNothingElse) {
  const Json policy = *MakeS3Policy({.bucket = "corpus", .prefix = "team/"});
  EXPECT_EQ(policy["Statement"][0]["Condition"]["StringLike"]["s3:prefix"][0], "team/*");
  EXPECT_EQ(Actions(policy),
            "s3:ListBucket on arn:aws:s3:::corpus; s3:ListBucketMultipartUploads on arn:aws:s3:::corpus; "
            "s3:AbortMultipartUpload s3:DeleteObject s3:GetObject s3:ListMultipartUploadParts s3:PutObject on "
            "arn:aws:s3:::corpus/team/*; ");
}

TEST(S3Policy, NamesAccessPointsAndBucketsToMake) {
  const std::string arn = "arn:aws:s3:us-west-2:123456789012:accesspoint/team";
  EXPECT_EQ(
      (*MakeS3Policy({.use = PolicyUse::kReadOnlyVolume, .bucket = arn, .prefix = "p/"}))["Statement"][1]["Resource"],
      arn + "/object/p/*");
  const Json own = *MakeS3Policy({.use = PolicyUse::kOwnBuckets, .bucket = "millrace-"});
  EXPECT_EQ(own["Statement"][1]["Resource"], "arn:aws:s3:::millrace-*");
  EXPECT_EQ(own["Statement"][1]["Action"][0], "s3:CreateBucket");
}

TEST(S3Policy, RefusesWildcardsInNames) {
  for (const char* bucket : {"*", "b*", "", "a/b", "arn:aws:s3:::*"}) {
    EXPECT_FALSE(MakeS3Policy({.bucket = bucket})) << bucket;
  }
  EXPECT_FALSE(MakeS3Policy({.bucket = "corpus", .prefix = "/x"}));
}

}  // namespace
}  // namespace millrace::csi
