// The requests to a store with their options and results, how a caller cancels a call, and the store's limits.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/object/object_info.h"

namespace millrace::object {

/// The completion of a call. A store runs it exactly once.
template <class T>
using Done = std::move_only_function<void(Result<T>)>;

/// The limits of a call. It ends early by cancellation (kCancelled, soon after the stop request) or at the deadline
/// (kDeadlineExceeded). Whether a write took place is then unknown, as it is after any error of a write.
struct Call {
  std::stop_token stop;  ///< cancels
  Deadline deadline;     ///< never passes by default
};

/// Some consecutive bytes of an object.
struct ByteRange {
  std::uint64_t offset = 0;  ///< of the first byte
  std::uint64_t length = 0;  ///< bytes
  bool operator==(const ByteRange&) const = default;
};

/// The range and the conditions of a Get.
struct GetOptions {
  /// No value: the whole object. A range that starts at or after the end yields zero bytes. A range that reaches past
  /// the end yields the bytes up to the end.
  std::optional<ByteRange> range;
  std::string if_match;  ///< fail with kPreconditionFailed unless the object still has this ETag; empty: any version
  std::string version;   ///< the id of the version to read; empty: the current one
};
/// The result of a Get.
struct GetResult {
  std::uint64_t bytes = 0;  ///< written to the caller's buffer or sink
  ObjectInfo info;          ///< of the whole object: info.size is its full size
};

/// The scope of a listing.
struct ListRequest {
  std::string prefix;        ///< keys that begin with it
  std::string delimiter;     ///< "" or "/": keys that continue past it are rolled up into common_prefixes
  std::string start_after;   ///< only keys (and prefixes) greater than this
  std::string continuation;  ///< from the previous page; the other fields must be the same
  int max_keys = 1000;       ///< 1…1000 (the limit of S3), objects and prefixes together
};
/// A part of a listing.
struct ListPage {
  std::vector<ObjectInfo> objects;           ///< in the byte order of their UTF-8 keys
  std::vector<std::string> common_prefixes;  ///< in byte order; each ends with the delimiter
  std::string continuation;                  ///< empty on the last page
};

/// The scope of a listing of versions.
struct VersionsRequest {
  std::string prefix;          ///< as in ListRequest
  std::string delimiter;       ///< as in ListRequest
  std::string key_marker;      ///< next_key of the previous page
  std::string version_marker;  ///< next_version of the previous page
};
/// A part of a listing of versions.
struct VersionsPage {
  std::vector<VersionInfo> versions;         ///< in the order of keys; the versions of one key from latest to oldest
  std::vector<std::string> common_prefixes;  ///< as in ListPage
  std::string next_key;                      ///< empty on the last page
  std::string next_version;                  ///< empty on the last page
};

/// The conditions and properties of a write.
struct PutOptions {
  std::string if_match;                         ///< replace only this version
  bool if_none_match = false;                   ///< create only: kPreconditionFailed if the key exists
  std::string content_type;                     ///< empty: the store's default
  std::map<std::string, std::string> metadata;  ///< of the user; names in lower case, without "x-amz-meta-"
  Attributes attributes;                        ///< empty ones: ConnectOptions::new_objects
  /// The name of an object whose tags another one gets.
  struct TaggedObject {
    std::string bucket;  ///< empty: the store's own
    std::string key;     ///< in that bucket
  };
  std::optional<TaggedObject> tags_of;  ///< for CreateMultipart
  /// For CreateMultipart: the caller will not use CopyPart. Some stores keep a checksum of the whole object only then.
  bool uploads_only = false;
};
/// The result of a write.
struct PutResult {
  std::string etag;  ///< of the new version
};

/// The conditions and properties of a copy within a store.
struct CopyOptions {
  std::string source_bucket;    ///< empty: this store's bucket
  std::string source_if_match;  ///< copy only the version with this ETag
  std::string source_version;   ///< the id of the version to copy; empty: the current one
  bool if_none_match = false;   ///< applies to the destination: kPreconditionFailed if it exists
  /// Replaces the content type and the metadata. No value: both are copied from the source.
  std::optional<std::map<std::string, std::string>> metadata;
  std::string content_type;  ///< used only if `metadata` has a value
  Attributes attributes;     ///< of the copy
};

/// An uploaded part of a multipart upload.
struct PartInfo {
  int number = 0;          ///< 1…10,000
  std::string etag;        ///< of the part
  std::uint64_t size = 0;  ///< bytes
  std::string checksum;    ///< opaque, may be empty; CompleteMultipart sends it back to the store
};
/// A multipart upload that is neither completed nor aborted.
struct UploadInfo {
  std::string key;        ///< of the object that would be made
  std::string upload_id;  ///< what CreateMultipart yielded
  WallTime initiated;     ///< when it was created
};

/// The name of one version of an object, or of a delete marker.
struct VersionName {
  std::string key;  ///< of the object
  std::string id;   ///< VersionInfo::id; empty: the current version
  auto operator<=>(const VersionName&) const = default;
};

/// A request to make an archived object readable for a while.
struct RestoreOptions {
  int days = 1;      ///< for so long
  std::string tier;  ///< "Standard", "Bulk" or "Expedited"; empty: the service's default
};

/// A key that DeleteMany could not delete, or a version that DeleteVersions could not delete.
struct DeleteFailure {
  std::string key;      ///< it still exists
  Error error;          ///< why
  std::string version;  ///< its id; empty: of DeleteMany
};

/// The store's limits on uploads, by which callers choose the sizes of parts. The defaults are those of S3:
/// https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
struct Limits {
  std::uint64_t min_part = 5 * kMiB;  ///< for each part but the last
  std::uint64_t max_part = 5 * kGiB;  ///< the largest part
  int max_parts = 10'000;             ///< of one upload
  std::uint64_t max_put = 5 * kGiB;   ///< a larger Put or Copy needs a multipart upload
};

}  // namespace millrace::object
