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

/// An operation sends its answer through the exchange. If it fails, the dispatcher sends the <Error> document.
using Operation = Reply<void> (*)(Exchange&);

// service_operations.cc
Reply<void> ListBuckets(Exchange& exchange);
Reply<void> CreateBucket(Exchange& exchange);
Reply<void> DeleteBucket(Exchange& exchange);
Reply<void> HeadBucket(Exchange& exchange);
/// Answers location, versioning, acl, policy, … like a bucket without any configuration.
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
inline constexpr std::uint64_t kMaxPut = 5 * kGiB;  // S3's limit of a PUT
/// Returns the request's header fields that are stored with an object.
/// Errors: NotImplemented on a field that asks for something that this endpoint does not do.
Reply<Attributes> StoredAttributes(const http::Headers& headers);
/// Returns the object that x-amz-copy-source names, after its conditions were checked.
Reply<ObjectPtr> CopySource(Exchange& exchange);
std::string Quote(std::string_view etag);

}  // namespace millrace::s3d
