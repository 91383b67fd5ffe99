// The list of the operations of S3 that this program calls, and the right that each needs.
// Source: "Actions, resources, and condition keys for Amazon S3", AWS Service Authorization Reference.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace millrace::object::s3 {

/// The resources that a right is given for.
enum class RightScope : unsigned char {
  kService,  ///< all buckets
  kListing,  ///< a bucket; a policy can limit it to a prefix by the condition s3:prefix
  kBucket,   ///< a bucket
  kObjects,  ///< objects of a bucket
};

/// An operation and the action that a policy must allow for it. Copies need s3:GetObject for their source, too.
struct OperationRight {
  std::string_view operation, action;
  RightScope scope;
};

inline constexpr auto kOperationRights = std::to_array<OperationRight>({
    {"AbortMultipartUpload", "s3:AbortMultipartUpload", RightScope::kObjects},
    {"CompleteMultipartUpload", "s3:PutObject", RightScope::kObjects},
    {"CopyObject", "s3:PutObject", RightScope::kObjects},
    {"CreateBucket", "s3:CreateBucket", RightScope::kBucket},
    {"CreateMultipartUpload", "s3:PutObject", RightScope::kObjects},
    {"DeleteBucket", "s3:DeleteBucket", RightScope::kBucket},
    {"DeleteObject", "s3:DeleteObject", RightScope::kObjects},
    {"DeleteObjects", "s3:DeleteObject", RightScope::kObjects},
    {"GetObject", "s3:GetObject", RightScope::kObjects},
    {"GetObjectTagging", "s3:GetObjectTagging", RightScope::kObjects},
    {"HeadObject", "s3:GetObject", RightScope::kObjects},
    {"ListBuckets", "s3:ListAllMyBuckets", RightScope::kService},
    {"ListMultipartUploads", "s3:ListBucketMultipartUploads", RightScope::kBucket},
    {"ListObjectVersions", "s3:ListBucketVersions", RightScope::kListing},
    {"ListObjectsV2", "s3:ListBucket", RightScope::kListing},
    {"ListParts", "s3:ListMultipartUploadParts", RightScope::kObjects},
    {"PutObject", "s3:PutObject", RightScope::kObjects},
    {"RestoreObject", "s3:RestoreObject", RightScope::kObjects},
    {"UploadPart", "s3:PutObject", RightScope::kObjects},
    {"UploadPartCopy", "s3:PutObject", RightScope::kObjects},
});

/// The name of an operation. A name that is not in the list does not compile, so the list has all that are called.
class OperationName {
 public:
  consteval OperationName(const char* name) : right_(Find(name)) {}  // NOLINT: conversion is the point
  constexpr std::string_view text() const { return right_->operation; }
  constexpr const OperationRight& right() const { return *right_; }

 private:
  static consteval const OperationRight* Find(std::string_view name) {
    const auto* const found = std::ranges::find(kOperationRights, name, &OperationRight::operation);
    if (found == kOperationRights.end()) throw "add the operation to kOperationRights";
    return found;
  }
  const OperationRight* right_;
};

}  // namespace millrace::object::s3
