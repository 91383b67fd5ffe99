#include "millrace/base/clock.h"
#include "millrace/base/text.h"
#include "millrace/s3d/operations/operation_context.h"
#include "millrace/xml/xml.h"

namespace millrace::s3d {
namespace {

constexpr std::uint64_t kMaxConfiguration = 64 * kKiB;  // a CreateBucketConfiguration has some hundred bytes

/// Returns an access control list that allows the owner everything.
std::string OwnerOnlyAcl() {
  xml::Writer xml("AccessControlPolicy");
  xml.Open("Owner").Text("ID", "millrace").Text("DisplayName", "millrace").Close("Owner");
  xml.Open("AccessControlList").Open("Grant");
  xml.Open("Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\"");
  xml.Text("ID", "millrace").Text("DisplayName", "millrace").Close("Grantee");
  xml.Text("Permission", "FULL_CONTROL").Close("Grant").Close("AccessControlList");
  return xml.Finish();
}

struct Absence {
  std::string_view parameter, code, message;
};
/// S3's answers for settings that were never made.
constexpr Absence kAbsentBucketSettings[] = {
    {"policy", "NoSuchBucketPolicy", "The bucket policy does not exist"},
    {"policyStatus", "NoSuchBucketPolicy", "The bucket policy does not exist"},
    {"tagging", "NoSuchTagSet", "The TagSet does not exist"},
    {"cors", "NoSuchCORSConfiguration", "The CORS configuration does not exist"},
    {"lifecycle", "NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist"},
    {"encryption", "ServerSideEncryptionConfigurationNotFoundError",
     "The server side encryption configuration was not found"},
    {"website", "NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration"},
    {"replication", "ReplicationConfigurationNotFoundError", "The replication configuration was not found"},
    {"object-lock", "ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket"},
    {"ownershipControls", "OwnershipControlsNotFoundError", "The bucket ownership controls were not found"},
    {"publicAccessBlock", "NoSuchPublicAccessBlockConfiguration",
     "The public access block configuration was not found"},
};

struct EmptyDocument {
  std::string_view parameter, root;
};
constexpr EmptyDocument kEmptyBucketSettings[] = {
    {"versioning", "VersioningConfiguration"},
    {"logging", "BucketLoggingStatus"},
    {"notification", "NotificationConfiguration"},
    {"accelerate", "AccelerateConfiguration"},
    {"location", "LocationConstraint"},  // empty: us-east-1
};

}  // namespace

Reply<void> ListBuckets(OperationContext& context) {
  xml::Writer xml("ListAllMyBucketsResult");
  xml.Open("Owner").Text("ID", "millrace").Text("DisplayName", "millrace").Close("Owner").Open("Buckets");
  for (const auto& [name, created] : context.storage.ListBuckets()) {
    xml.Open("Bucket").Text("Name", name).Text("CreationDate", FormatIso8601(created)).Close("Bucket");
  }
  return context.SendXml(xml.Close("Buckets").Finish());
}

Reply<void> CreateBucket(OperationContext& context) {
  // The document names a region; every region is here.
  MR_TRY(context.request.ReadAllBody(kMaxConfiguration));
  if (ToLower(context.Header("x-amz-bucket-object-lock-enabled")) == "true") {
    return Refuse("NotImplemented", "Object lock is not implemented here");
  }
  MR_TRY(context.storage.CreateBucket(context.bucket));
  http::Headers headers = context.CommonHeaders();
  headers.Set("Location", "/" + context.bucket);
  return context.SendEmpty(200, std::move(headers));
}

Reply<void> DeleteBucket(OperationContext& context) {
  MR_TRY(context.storage.DeleteBucket(context.bucket));
  return context.SendEmpty(204);
}

Reply<void> HeadBucket(OperationContext& context) {
  MR_TRY(context.storage.HeadBucket(context.bucket));
  http::Headers headers = context.CommonHeaders();
  headers.Set("x-amz-bucket-region", "us-east-1");
  return context.SendEmpty(200, std::move(headers));
}

Reply<void> GetBucketSetting(OperationContext& context) {
  MR_TRY(context.storage.HeadBucket(context.bucket));
  for (const Absence& absence : kAbsentBucketSettings) {
    if (context.Asks(absence.parameter)) return Refuse(absence.code, std::string(absence.message));
  }
  for (const EmptyDocument& document : kEmptyBucketSettings) {
    if (context.Asks(document.parameter)) return context.SendXml(xml::Writer(document.root).Finish());
  }
  if (context.Asks("acl")) return context.SendXml(OwnerOnlyAcl());
  xml::Writer payment("RequestPaymentConfiguration");
  return context.SendXml(payment.Text("Payer", "BucketOwner").Finish());
}

Reply<void> GetObjectSetting(OperationContext& context) {
  MR_TRY(context.storage.Get(context.bucket, context.key));
  if (context.Asks("acl")) return context.SendXml(OwnerOnlyAcl());
  if (context.Asks("tagging")) {
    xml::Writer xml("Tagging");
    return context.SendXml(xml.Open("TagSet").Close("TagSet").Finish());
  }
  return Refuse("NoSuchObjectLockConfiguration", "The specified object does not have a ObjectLock configuration");
}

}  // namespace millrace::s3d
