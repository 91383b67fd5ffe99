// The arguments of an S3 operation: one request, its response and the storage. Declares all operations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/http/server/server.h"
#include "millrace/s3d/protocol/s3_error.h"
#include "millrace/s3d/protocol/signature.h"
#include "millrace/s3d/storage/model.h"
#include "millrace/s3d/storage/storage.h"

namespace millrace::s3d {

class Policy;

/// One request and its response. Borrows everything. Lives as long as the handler's call. One thread.
struct OperationContext {
  http::ServerRequest& request;
  http::ServerResponse& response;
  Storage& storage;
  const Authenticated& who;
  const QueryParameters& query;
  const std::string& bucket;
  const std::string& key;
  const std::string& request_id;
  std::uint64_t min_part_bytes;
  bool unconditional = false;      ///< Fault::unconditional
  const Policy* policy = nullptr;  ///< null: everything is allowed

  /// Returns whether the query has the parameter.
  bool Asks(std::string_view parameter) const;
  /// Returns the decoded value of a query parameter, or "" if it is absent.
  std::string_view Parameter(std::string_view name) const;
  /// Returns a query parameter as a number, or `absent`.
  /// Errors: InvalidArgument if it is no number from `least` to `most`.
  Reply<std::uint64_t> Number(std::string_view name, std::uint64_t absent, std::uint64_t least,
                              std::uint64_t most) const;
  /// Returns the condition of a write on the object that it replaces.
  Reply<WriteCondition> Condition() const;
  std::string_view Header(std::string_view name) const { return request.headers().Get(name); }

  /// Returns the headers that every answer has.
  http::Headers CommonHeaders() const;
  Reply<void> SendXml(std::string_view document, http::Headers headers);
  Reply<void> SendXml(std::string_view document) { return SendXml(document, CommonHeaders()); }
  Reply<void> SendEmpty(int status, http::Headers headers);
  Reply<void> SendEmpty(int status) { return SendEmpty(status, CommonHeaders()); }
};

/// An operation sends its answer through the context. If it fails, the dispatcher sends the <Error> document.
using Operation = Reply<void> (*)(OperationContext&);

// service_operations.cc
Reply<void> ListBuckets(OperationContext& context);
Reply<void> CreateBucket(OperationContext& context);
Reply<void> DeleteBucket(OperationContext& context);
Reply<void> HeadBucket(OperationContext& context);
/// Answers location, versioning, acl, policy, … like a bucket without any configuration.
Reply<void> GetBucketSetting(OperationContext& context);
Reply<void> GetObjectSetting(OperationContext& context);

// list_operations.cc
Reply<void> ListObjects(OperationContext& context);
Reply<void> ListObjectsV2(OperationContext& context);
Reply<void> ListObjectVersions(OperationContext& context);
Reply<void> ListMultipartUploads(OperationContext& context);
Reply<void> ListParts(OperationContext& context);

// object_operations.cc
Reply<void> GetObject(OperationContext& context);  ///< and HeadObject
Reply<void> PutObject(OperationContext& context);
Reply<void> CopyObject(OperationContext& context);
Reply<void> DeleteObject(OperationContext& context);
Reply<void> DeleteObjects(OperationContext& context);

// multipart_operations.cc
Reply<void> CreateMultipartUpload(OperationContext& context);
Reply<void> UploadPart(OperationContext& context);
Reply<void> UploadPartCopy(OperationContext& context);
Reply<void> CompleteMultipartUpload(OperationContext& context);
Reply<void> AbortMultipartUpload(OperationContext& context);

// Shared by object and multipart operations (object_operations.cc):
inline constexpr std::uint64_t kMaxPut = 5 * kGiB;  // S3's limit of a PUT
/// Returns the request's header fields that are stored with an object.
/// Errors: NotImplemented on a field that asks for something that this endpoint does not do.
Reply<Attributes> StoredAttributes(const http::Headers& headers);
/// Returns the object that x-amz-copy-source names, after its conditions were checked.
Reply<ObjectPtr> CopySource(OperationContext& context);
std::string Quote(std::string_view etag);

}  // namespace millrace::s3d
