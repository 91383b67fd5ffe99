// One S3 request on its way through an operation.
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

/// What an operation works with. Lives as long as the handler's call; one thread.
struct Exchange {
  http::ServerRequest& request;
  http::ServerResponse& response;
  Storage& storage;
  const Authenticated& who;
  const QueryParameters& query;
  const std::string& bucket;
  const std::string& key;
  const std::string& request_id;
  std::uint64_t min_part_bytes;
  bool unconditional = false;  ///< the fault of that name

  bool Asks(std::string_view parameter) const;
  /// The decoded value of a query parameter; "" when absent.
  std::string_view Parameter(std::string_view name) const;
  /// A number within bounds; `absent` when the parameter is not there. Fails with InvalidArgument.
  Reply<std::uint64_t> Number(std::string_view name, std::uint64_t absent, std::uint64_t least,
                              std::uint64_t most) const;
  /// What a write asks of the object that it replaces.
  Reply<WriteCondition> Condition() const;
  std::string_view Header(std::string_view name) const { return request.headers().Get(name); }

  /// The headers every answer carries.
  http::Headers CommonHeaders() const;
  Reply<void> SendXml(std::string_view document, http::Headers headers);
  Reply<void> SendXml(std::string_view document) { return SendXml(document, CommonHeaders()); }
  Reply<void> SendEmpty(int status, http::Headers headers);
  Reply<void> SendEmpty(int status) { return SendEmpty(status, CommonHeaders()); }
};

/// An operation answers through its exchange, or fails: the dispatcher then sends the <Error> document.
using Operation = Reply<void> (*)(Exchange&);

// service_operations.cc
Reply<void> ListBuckets(Exchange& exchange);
Reply<void> CreateBucket(Exchange& exchange);
Reply<void> DeleteBucket(Exchange& exchange);
Reply<void> HeadBucket(Exchange& exchange);
/// location, versioning, acl, policy, … as of a bucket where none was ever set up.
Reply<void> GetBucketSetting(Exchange& exchange);
Reply<void> GetObjectSetting(Exchange& exchange);

// list_operations.cc
Reply<void> ListObjects(Exchange& exchange);
Reply<void> ListObjectsV2(Exchange& exchange);
Reply<void> ListObjectVersions(Exchange& exchange);
Reply<void> ListMultipartUploads(Exchange& exchange);
Reply<void> ListParts(Exchange& exchange);

// object_operations.cc
Reply<void> GetObject(Exchange& exchange);  ///< and HeadObject
Reply<void> PutObject(Exchange& exchange);
Reply<void> CopyObject(Exchange& exchange);
Reply<void> DeleteObject(Exchange& exchange);
Reply<void> DeleteObjects(Exchange& exchange);

// multipart_operations.cc
Reply<void> CreateMultipartUpload(Exchange& exchange);
Reply<void> UploadPart(Exchange& exchange);
Reply<void> UploadPartCopy(Exchange& exchange);
Reply<void> CompleteMultipartUpload(Exchange& exchange);
Reply<void> AbortMultipartUpload(Exchange& exchange);

// Shared by object and multipart operations (object_operations.cc):
inline constexpr std::uint64_t kMaxPut = 5 * kGiB;
/// The request's header fields that are stored with an object. Fails on those that promise what is not done here.
Reply<Attributes> StoredAttributes(const http::Headers& headers);
/// The object that x-amz-copy-source names, its conditions checked.
Reply<ObjectPtr> CopySource(Exchange& exchange);
std::string Quote(std::string_view etag);

}  // namespace millrace::s3d
