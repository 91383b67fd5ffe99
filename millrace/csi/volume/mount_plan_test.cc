#include "millrace/csi/volume/mount_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::csi {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

const Secrets kKeys = {{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "very-secret"}};

VolumeUse Use() { return {.volume_id = "v", .attributes = {{"bucketName", "corpus"}}}; }

MountPlan Plan(const VolumeUse& use) {
  auto plan = PlanMount(use);
  EXPECT_TRUE(plan) << plan.error().ToString();
  return plan.value_or(MountPlan{});
}

Error Failure(const VolumeUse& use) {
  auto plan = PlanMount(use);
  EXPECT_FALSE(plan);
  return plan ? Error(Code::kInternal, "") : plan.error();
}

TEST(MountPlan, OfAStaticVolumeIsStrict) {
  const MountPlan plan = Plan(Use());
  EXPECT_EQ(plan.url, "s3://corpus");
  EXPECT_THAT(plan.flags, ElementsAre("--strict"));
  EXPECT_TRUE(plan.driver_identity);
  EXPECT_TRUE(plan.environment.empty());
}

TEST(MountPlan, OfAProvisionedVolumeIsNot) {
  VolumeUse use = Use();
  use.attributes["provisioned"] = "true";
  use.attributes["prefix"] = "volumes/a/data/";
  EXPECT_THAT(Plan(use).flags, ElementsAre("--prefix=volumes/a/data/"));
}

TEST(MountPlan, GivesFilesToTheGroup) {
  VolumeUse use = Use();
  use.group = "2000";
  EXPECT_THAT(Plan(use).flags, IsSupersetOf({"--gid=2000", "--file-mode=0660", "--dir-mode=02770"}));
  use.mount_options = {"gid=7"};
  EXPECT_THAT(Plan(use).flags, Not(Contains("--gid=2000")));
  use.group = "2000 --allow-delete";
  EXPECT_EQ(Failure(use).code(), Code::kInvalidArgument);
}

TEST(MountPlan, HidesTheDriversKeysFromAVolumeWithItsOwn) {
  VolumeUse use = Use();
  use.secrets = kKeys;
  const MountPlan plan = Plan(use);
  EXPECT_FALSE(plan.driver_identity);
  EXPECT_EQ(plan.environment.at("AWS_ACCESS_KEY_ID"), "id");
  for (const char* hidden : {"AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN",
                             "AWS_CONTAINER_CREDENTIALS_FULL_URI", "MILLRACE_PROFILE"}) {
    EXPECT_EQ(plan.environment.at(hidden), "") << hidden;
  }
  EXPECT_EQ(plan.environment.at("AWS_EC2_METADATA_DISABLED"), "true");
  for (const std::string& flag : plan.flags) EXPECT_THAT(flag, Not(HasSubstr("very-secret")));
}

TEST(MountPlan, QuotesNoSecretInErrors) {
  VolumeUse use = Use();
  use.secrets = {{"AWS_ACCESS_KEY_ID", "id"}};
  EXPECT_THAT(Failure(use).ToString(), HasSubstr("no AWS_SECRET_ACCESS_KEY"));
  use.secrets = {{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "very-secret\n"}};
  EXPECT_THAT(Failure(use).ToString(), AllOf(HasSubstr("line break"), Not(HasSubstr("very-secret"))));
  use.secrets = {{"password", "very-secret"}};
  EXPECT_THAT(Failure(use).ToString(), AllOf(HasSubstr("AWS_ACCESS_KEY_ID"), Not(HasSubstr("very-secret"))));
}

TEST(MountPlan, RefusesAnInlineVolumeWithTheDriversKeys) {
  VolumeUse use = Use();
  use.attributes["csi.storage.k8s.io/ephemeral"] = "true";
  EXPECT_EQ(Failure(use).code(), Code::kPermissionDenied);
  use.attributes["mountOptions"] = "no-sign-request";
  EXPECT_FALSE(Plan(use).driver_identity);
  use.attributes.erase("mountOptions");
  use.secrets = kKeys;
  EXPECT_FALSE(Plan(use).driver_identity);
}

TEST(MountPlan, HoldsInlineVolumesToTheDriversEndpoint) {
  VolumeUse use = Use();
  use.attributes["csi.storage.k8s.io/ephemeral"] = "true";
  use.secrets = kKeys;
  for (const char* option :
       {"endpoint-url http://169.254.169.254", "memory-budget 1TiB", "cache /x", "concurrency 1024"}) {
    use.attributes["mountOptions"] = option;
    EXPECT_EQ(Failure(use).code(), Code::kPermissionDenied) << option;
  }
  use.attributes["mountOptions"] = "allow-delete,uid=5";
  EXPECT_THAT(Plan(use).flags, IsSupersetOf({"--allow-delete", "--uid=5"}));
  use.secrets["AWS_ENDPOINT_URL"] = "http://169.254.169.254";
  EXPECT_EQ(Failure(use).code(), Code::kPermissionDenied);
}

TEST(MountPlan, RefusesRegionsThatChangeTheHost) {
  VolumeUse use = Use();
  use.attributes["region"] = "x.example.org/";
  EXPECT_EQ(Failure(use).code(), Code::kInvalidArgument);
  use.attributes.erase("region");
  use.mount_options = {"region x.example.org#"};
  EXPECT_EQ(Failure(use).code(), Code::kInvalidArgument);
}

TEST(MountPlan, MakesTheCapacityAQuota) {
  VolumeUse use = Use();
  use.attributes.insert({{"capacityBytes", "1000"}, {"prefix", "p/volumes/a/data/"}, {"provisioned", "true"}});
  EXPECT_THAT(Plan(use).flags, Not(Contains("--quota=1000")));
  use.attributes["enforceCapacity"] = "true";
  EXPECT_THAT(Plan(use).flags, IsSupersetOf({"--quota=1000", "--quota-object=p/volumes/a/volume.json"}));
  use.attributes.erase("provisioned");
  EXPECT_THAT(Plan(use).flags, Not(Contains(HasSubstr("--quota-object"))));
  use.attributes["capacityBytes"] = "lots";
  EXPECT_EQ(Failure(use).code(), Code::kInvalidArgument);
  use.attributes["enforceCapacity"] = "yes";
  EXPECT_EQ(Failure(use).code(), Code::kInvalidArgument);
}

TEST(MountPlan, EndsPrefixesAtASlash) {
  VolumeUse use = Use();
  use.attributes["prefix"] = "team";
  EXPECT_THAT(Plan(use).flags, Contains("--prefix=team/"));
}

TEST(MountPlan, JoinsPrefixesByASlash) {
  auto prefix = [](const std::string& attribute, const std::string& option) {
    VolumeUse use = Use();
    use.attributes["prefix"] = attribute;
    use.mount_options = {"prefix=" + option};
    return Plan(use).flags;
  };
  EXPECT_THAT(prefix("team/", "a/"), Contains("--prefix=team/a/"));
  EXPECT_THAT(prefix("team", "/a"), Contains("--prefix=team/a/"));
  EXPECT_THAT(prefix("team/", "/a/"), Contains("--prefix=team/a/"));
}

TEST(MountPlan, GuessesNoPrefix) {
  VolumeUse use = Use();
  use.attributes["prefix"] = "team";
  use.mount_options = {"prefix=a/"};
  const Error refused = Failure(use);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.ToString(), HasSubstr("write prefix=/a/"));
  EXPECT_THAT(refused.ToString(), HasSubstr("prefix-join=as-written for \"teama/\""));
  use.mount_options = {"prefix=a/", "prefix-join=as-written"};
  EXPECT_THAT(Plan(use).flags, Contains("--prefix=teama/"));
  use.attributes.erase("prefix");
  EXPECT_EQ(Failure(use).code(), Code::kInvalidArgument) << "there is nothing to join";
  use.mount_options = {"prefix=/a/"};
  EXPECT_THAT(Failure(use).ToString(), HasSubstr("must not begin with a slash"));
}

TEST(VolumeEnvironment, NamesNoFileAndNoProgram) {
  auto environment = *IdentityEnvironment(kKeys);
  EXPECT_TRUE(CheckVolumeEnvironment(environment));
  EXPECT_TRUE(HidesDriverIdentity(environment));
  for (const auto& [name, value] : {std::pair("AWS_CONFIG_FILE", "/tmp/credential-process"),
                                    {"AWS_WEB_IDENTITY_TOKEN_FILE", "/etc/shadow"},
                                    {"AWS_PROFILE", "x"},
                                    {"AWS_CA_BUNDLE", "/x"},
                                    {"LD_PRELOAD", "/x"},
                                    {"MILLRACE_LOG_FILE", "/x"}}) {
    auto changed = environment;
    changed[name] = value;
    EXPECT_FALSE(CheckVolumeEnvironment(changed)) << name;
  }
  environment.erase("AWS_ROLE_ARN");
  EXPECT_FALSE(HidesDriverIdentity(environment));
}

TEST(MountPlan, RefusesBucketsThatAreNone) {
  for (const char* bucket : {"", "a/b", "a?x", "../x", "A B"}) {
    VolumeUse use = Use();
    use.attributes["bucketName"] = bucket;
    EXPECT_EQ(Failure(use).code(), Code::kInvalidArgument) << bucket;
  }
}

TEST(MountPlan, NamesUnknownAttributes) {
  VolumeUse use = Use();
  use.attributes["bucketNam"] = "x";
  EXPECT_THAT(Failure(use).ToString(), HasSubstr("did you mean \"bucketName\"?"));
  use.attributes.erase("bucketNam");
  use.attributes["authenticationSource"] = "pod";
  EXPECT_THAT(Failure(use).ToString(), HasSubstr("roleArn"));
  use.attributes["roleArn"] = "arn:aws:iam::1:role/r";
  EXPECT_THAT(Failure(use).ToString(), HasSubstr("no token"));
  use.attributes["csi.storage.k8s.io/serviceAccount.tokens"] = R"({"other": {"token": "very-secret"}})";
  EXPECT_THAT(Failure(use).ToString(), AllOf(HasSubstr("sts.amazonaws.com"), Not(HasSubstr("very-secret"))));
}

}  // namespace
}  // namespace millrace::csi
