#include "millrace/csi/volume/s3_policy.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/object/access_point.h"
#include "millrace/object/s3/requests/operation_name.h"
#include "millrace/object/url.h"

namespace millrace::csi {
namespace {

using object::s3::OperationName;
using object::s3::RightScope;

constexpr std::array<OperationName, 3> kReading = {"GetObject", "HeadObject", "ListObjectsV2"};
/// ListMultipartUploads and ListParts find the uploads that a killed mount left.
constexpr std::array<OperationName, 11> kWriting = {"AbortMultipartUpload",
                                                    "CompleteMultipartUpload",
                                                    "CopyObject",
                                                    "CreateMultipartUpload",
                                                    "DeleteObject",
                                                    "DeleteObjects",
                                                    "ListMultipartUploads",
                                                    "ListParts",
                                                    "PutObject",
                                                    "UploadPart",
                                                    "UploadPartCopy"};
constexpr std::array<OperationName, 2> kBuckets = {"CreateBucket", "DeleteBucket"};

std::vector<OperationName> OperationsOf(PolicyUse use) {
  std::vector<OperationName> operations(kReading.begin(), kReading.end());
  if (use != PolicyUse::kReadOnlyVolume) operations.insert(operations.end(), kWriting.begin(), kWriting.end());
  if (use == PolicyUse::kOwnBuckets) operations.insert(operations.end(), kBuckets.begin(), kBuckets.end());
  return operations;
}

/// The actions of a scope, in order and once each.
Json ActionsOf(std::span<const OperationName> operations, RightScope scope) {
  std::set<std::string_view> actions;
  for (const OperationName& operation : operations) {
    if (operation.right().scope == scope) actions.insert(operation.right().action);
  }
  Json list = Json::array();
  for (const std::string_view action : actions) list.push_back(action);
  return list;
}

}  // namespace

Result<Json> MakeS3Policy(const PolicyRequest& request) {
  const bool own_buckets = request.use == PolicyUse::kOwnBuckets;
  const std::string name = own_buckets ? request.bucket + "x" : request.bucket;  // a beginning may end with a hyphen
  const object::Url url = MR_TRY(object::ParseUrl("s3://" + name));
  if (url.bucket.empty() || url.bucket != name)
    return Fail(Code::kInvalidArgument, "\"{}\" is not the name of a bucket", request.bucket);
  if (request.prefix.starts_with('/')) {
    return Fail(Code::kInvalidArgument, "the prefix must not begin with a slash, as \"{}\" does", request.prefix);
  }
  const bool arn = object::IsArn(request.bucket);
  std::string bucket = arn ? request.bucket : "arn:aws:s3:::" + request.bucket;
  if (own_buckets) bucket += "*";
  const std::string objects = bucket + (arn ? "/object/" : "/") + request.prefix + "*";

  const std::vector<OperationName> operations = OperationsOf(request.use);
  Json listing = {{"Sid", "List"},
                  {"Effect", "Allow"},
                  {"Action", ActionsOf(operations, RightScope::kListing)},
                  {"Resource", bucket}};
  if (!request.prefix.empty()) {
    listing["Condition"]["StringLike"]["s3:prefix"] = Json::array({request.prefix + "*"});
  }
  Json statements = Json::array({std::move(listing)});
  const auto add = [&](std::string_view sid, RightScope scope, const std::string& resource) {
    Json actions = ActionsOf(operations, scope);
    if (actions.empty()) return;
    Json statement = {{"Sid", sid}, {"Effect", "Allow"}, {"Action", std::move(actions)}, {"Resource", resource}};
    statements.push_back(std::move(statement));
  };
  add("Bucket", RightScope::kBucket, bucket);
  add("Objects", RightScope::kObjects, objects);
  return Json{{"Version", "2012-10-17"}, {"Statement", std::move(statements)}};
}

}  // namespace millrace::csi
