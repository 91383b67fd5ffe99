#include "millrace/s3d/protocol/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::s3d {
namespace {

constexpr char kTeam[] = R"({"Version": "2012-10-17", "Statement": [
  {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::b",
   "Condition": {"StringLike": {"s3:prefix": ["team/*"]}}},
  {"Effect": "Allow", "Action": ["s3:Get*", "s3:PutObject"], "Resource": "arn:aws:s3:::b/team/*"},
  {"Effect": "Deny", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::b/team/frozen/*"}]})";

class PolicyTest : public testing::Test {
 protected:
  bool Allows(const PolicyRequest& request) const { return policy_->Check(request).has_value(); }
  std::unique_ptr<Policy> policy_ = *Policy::Parse(kTeam);
};

TEST_F(PolicyTest, AllowsWhatAStatementNames) {
  EXPECT_TRUE(Allows({.operation = "GetObject", .bucket = "b", .key = "team/a"}));
  EXPECT_TRUE(Allows({.operation = "HeadObject", .bucket = "b", .key = "team/a/b"}));
  EXPECT_TRUE(Allows({.operation = "UploadPart", .bucket = "b", .key = "team/a"}));
  EXPECT_THAT(policy_->used(), testing::ElementsAre("s3:GetObject", "s3:PutObject"));
}

TEST_F(PolicyTest, DeniesEverythingElse) {
  EXPECT_FALSE(Allows({.operation = "GetObject", .bucket = "b", .key = "other/a"}));
  EXPECT_FALSE(Allows({.operation = "GetObject", .bucket = "b2", .key = "team/a"}));
  EXPECT_FALSE(Allows({.operation = "DeleteObject", .bucket = "b", .key = "team/a"}));
  EXPECT_FALSE(Allows({.operation = "PutObject", .bucket = "b", .key = "team/frozen/a"}));
  EXPECT_FALSE(Allows({.operation = "ListBuckets", .bucket = "", .key = ""}));
  EXPECT_FALSE(policy_->CheckDelete("b", "team/a"));
}

TEST_F(PolicyTest, LimitsListingsToAPrefix) {
  const std::string within = "team/x", outside = "team", nothing;
  EXPECT_TRUE(Allows({.operation = "ListObjectsV2", .bucket = "b", .prefix = &within}));
  EXPECT_FALSE(Allows({.operation = "ListObjectsV2", .bucket = "b", .prefix = &outside}));
  EXPECT_FALSE(Allows({.operation = "ListObjectsV2", .bucket = "b", .prefix = &nothing}));
  EXPECT_FALSE(Allows({.operation = "ListObjectsV2", .bucket = "b"}));
  EXPECT_TRUE(policy_->HidesAbsence("b"));
}

TEST_F(PolicyTest, ACopyReadsItsSource) {
  EXPECT_TRUE(Allows({.operation = "CopyObject", .bucket = "b", .key = "team/a", .copy_source = "/b/team/c"}));
  EXPECT_FALSE(Allows({.operation = "CopyObject", .bucket = "b", .key = "team/a", .copy_source = "b/other%2Fc"}));
}

TEST(Policy, RefusesWhatItDoesNotUnderstand) {
  for (
      const char* text :
      {"", "{}", R"({"Statement": {}})", R"({"Statement": [{"Effect": "Allow", "Action": "s3:*"}]})",
       R"({"Statement": [{"Effect": "Allow", "NotAction": "s3:GetObject", "Resource": "*"}]})",
       R"({"Statement": [{"Effect": "Maybe", "Action": "s3:*", "Resource": "*"}]})",
       R"({"Statement": [{"Effect": "Deny", "Action": "s3:*", "Resource": "*", "Condition": {"Bool": {"aws:SecureTransport": "false"}}}]})"}) {
    EXPECT_FALSE(Policy::Parse(text)) << text;
  }
}

}  // namespace
}  // namespace millrace::s3d
