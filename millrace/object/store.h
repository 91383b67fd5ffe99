// The one interface to a bucket. Everything that moves bytes stands on it; s3/, file/, memory/ and fault/ implement it,
// and conformance.h says in tests what an implementation must do.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::object {

/// What a store keeps to prove an object's bytes.
struct Checksum {
  enum class Kind { kNone, kMd5, kCrc32c, kCrc64Nvme };
  Kind kind = Kind::kNone;
  std::string value;  ///< the digest's bytes, most significant first
  int parts = 0;      ///< more than 0: the digest of the digests of so many parts, as in "…-3"
  bool operator==(const Checksum&) const = default;
};

/// What S3 keeps beside an object's content, or does with it. Empty: as the bucket has it. Stores that know nothing of
/// a field ignore it.
struct Attributes {
  std::string storage_class;  ///< "STANDARD_IA"
  std::string acl;            ///< canned: "public-read"; never told by a Head
  std::string encryption;     ///< "AES256", "aws:kms"
  std::string kms_key;        ///< with "aws:kms"
  std::string cache_control, content_encoding, content_disposition;
};

/// What a listing or a Head tells about an object. A listing leaves what follows `modified` empty.
struct ObjectInfo {
  std::string key;
  std::uint64_t size = 0;
  std::string etag;  ///< opaque, without quotes; changes whenever the content does
  WallTime modified;
  std::string content_type;
  std::map<std::string, std::string> metadata;   ///< user metadata; names in lower case, without "x-amz-meta-"
  Checksum checksum;                             ///< of the whole content, where the store has one
  std::shared_ptr<const Attributes> attributes;  ///< may be null
};

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  bool operator==(const ByteRange&) const = default;
};

/// Who waits, and until when. Cancelling makes the call complete soon with kCancelled; whether a write took place is
/// then unknown, as it is after any error of a write.
struct Call {
  std::stop_token stop;
  Deadline deadline;
};

struct GetOptions {
  /// Nothing: the whole object. A range that starts at or beyond the end yields zero bytes; one that reaches beyond it
  /// yields what there is.
  std::optional<ByteRange> range;
  std::string if_match;  ///< fail with kPreconditionFailed unless the object still has this ETag; empty: any
};
struct GetResult {
  std::uint64_t bytes = 0;  ///< how many landed in the caller's buffer
  ObjectInfo info;          ///< of the whole object (size is its full size)
};

/// Takes the bytes of a Get as they arrive, for a caller who would only pass them on. Calls come one at a time, from
/// threads of the store's, and must wait for nothing but a local file.
class Sink {
 public:
  virtual ~Sink() = default;
  /// What the store told of the object before its bytes, in stores that do; size is not set. Before the first Take,
  /// again if the Get is tried again.
  virtual void Begin(const ObjectInfo& info) { (void)info; }
  /// Bytes of the object from `offset` on, without gaps; a Get that is tried again begins again. An error ends it.
  virtual Status Take(std::uint64_t offset, ByteSpan bytes) = 0;
};

/// Bytes to be written that are not in memory.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::uint64_t size() const = 0;
  /// Fills `into` with the bytes from `offset` on; the same ones each time. Must wait for nothing but a local file.
  virtual Status Read(std::uint64_t offset, MutableByteSpan into) = 0;
};

/// Bytes to be written that are in memory.
class Payload : public ByteSpan {
 public:
  Payload() = default;
  template <std::convertible_to<ByteSpan> Bytes>
  Payload(const Bytes& bytes) : ByteSpan(bytes) {}  // NOLINT(google-explicit-constructor): bytes are a payload
  /// Of bytes whose CRC-32C the caller has found out already: the store need not do so again.
  Payload(ByteSpan bytes, std::uint32_t crc32c) : ByteSpan(bytes), crc32c_(crc32c) {}
  std::optional<std::uint32_t> crc32c() const { return crc32c_; }

 private:
  std::optional<std::uint32_t> crc32c_;
};

struct PutOptions {
  std::string if_match;        ///< replace only this version
  bool if_none_match = false;  ///< create only; kPreconditionFailed when the key exists
  std::string content_type;
  std::map<std::string, std::string> metadata;
  Attributes attributes;
  /// Of a multipart upload: no part will come by CopyPart. Some stores keep a checksum of the whole object only then.
  bool uploads_only = false;
};
struct PutResult {
  std::string etag;
};

struct ListRequest {
  std::string prefix;
  std::string delimiter;     ///< "" or "/": keys that continue past it are rolled up into common_prefixes
  std::string start_after;   ///< only keys (and prefixes) greater than this
  std::string continuation;  ///< from the page before; the other fields must be the same
  int max_keys = 1000;       ///< 1…1000, objects and prefixes together
};
struct ListPage {
  std::vector<ObjectInfo> objects;           ///< in the order of their UTF-8 bytes
  std::vector<std::string> common_prefixes;  ///< likewise; each ends with the delimiter
  std::string continuation;                  ///< empty on the last page
};

struct CopyOptions {
  std::string source_bucket;  ///< empty: this store's bucket
  std::string source_if_match;
  bool if_none_match = false;  ///< of the destination
  /// Set: replaces content type and metadata; nothing: they are copied.
  std::optional<std::map<std::string, std::string>> metadata;
  std::string content_type;  ///< with metadata only
  Attributes attributes;
};

/// One of an object's versions, in a bucket that keeps them.
struct VersionInfo {
  ObjectInfo info;  ///< as in a listing
  std::string id;   ///< "null": written while the bucket kept none
  bool latest = false;
  bool deletion = false;  ///< nothing but a mark that the object was deleted then
};
struct VersionsRequest {
  std::string prefix, delimiter;           ///< as in ListRequest
  std::string key_marker, version_marker;  ///< next_… of the page before
};
struct VersionsPage {
  std::vector<VersionInfo> versions;  ///< by key, of one key the latest first
  std::vector<std::string> common_prefixes;
  std::string next_key, next_version;  ///< empty on the last page
};

struct PartInfo {
  int number = 0;  ///< 1…10,000
  std::string etag;
  std::uint64_t size = 0;
  std::string checksum;  ///< what the store wants repeated on completion; opaque, may be empty
};
struct UploadInfo {
  std::string key, upload_id;
  WallTime initiated;
};
struct DeleteFailure {
  std::string key;
  Error error;
};

/// Limits the store imposes; callers plan their parts by them.
struct Limits {
  std::uint64_t min_part = 5 * kMiB;  ///< of every part but the last
  std::uint64_t max_part = 5 * kGiB;
  int max_parts = 10'000;
  std::uint64_t max_put = 5 * kGiB;  ///< Put and Copy beyond it need multipart
};

template <class T>
using Done = std::move_only_function<void(Result<T>)>;

/// One bucket (or a folder standing in for one). Thread-safe.
///
/// Every call starts work and returns at once; `done` runs exactly once, on a thread of the store's or before the call
/// returns, and must not block. Spans are borrowed until then. Transient failures have been retried when `done` runs.
/// An expected absence is a value: Head and Get yield nothing for a key that does not exist. A bucket that does not
/// exist is an error (kNotFound). Keys are non-empty UTF-8 of at most 1,024 bytes; others fail with kInvalidArgument.
/// Destroying a store cancels what is in flight and runs its completions first.
/// blocking.h has the same calls in waiting form.
class Store {
 public:
  virtual ~Store() = default;

  /// "s3://bucket", "file:///folder", "memory:": for messages.
  virtual std::string Describe() const = 0;
  /// Tells the store from every other one, of other endpoints too: for what outlives the process.
  virtual std::string Identity() const { return Describe(); }
  virtual Limits limits() const { return {}; }

  /// Advice: these objects will be read whole, in this order. Changes no answer, only when bytes are fetched.
  virtual void WillRead(std::span<const std::string> keys) { (void)keys; }

  virtual void Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) = 0;
  /// Fails with kInvalidArgument if the requested bytes do not fit `into`. Bytes are checked against the store's
  /// checksum where it has one for them.
  virtual void Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
                   Done<std::optional<GetResult>> done) = 0;
  /// A Get of at most `limit` bytes without a buffer of the caller's. The bytes are not checked: for a whole object the
  /// result's info has the checksum to check them by. `sink` is borrowed. A store that has no better way reads into
  /// memory and calls Take once.
  virtual void GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
                     Done<std::optional<GetResult>> done);
  /// How the version `etag` was cut when it was uploaded: the size of its part `number` (from 1). Nothing where the
  /// store does not tell. kPreconditionFailed when there is another version.
  virtual void HeadPart(std::string key, std::string etag, int number, Call call,
                        Done<std::optional<std::uint64_t>> done);
  virtual void List(ListRequest request, Call call, Done<ListPage> done) = 0;
  /// kUnsupported where there are no versions.
  virtual void ListVersions(VersionsRequest request, Call call, Done<VersionsPage> done);
  /// Atomic: readers see the old object or the whole new one.
  virtual void Put(std::string key, Payload body, PutOptions options, Call call, Done<PutResult> done) = 0;
  /// Put and UploadPart of what is not in memory. `body` is borrowed and may be read more than once, first by this
  /// call. A store that has no better way reads it into memory.
  virtual void PutFrom(std::string key, Source& body, PutOptions options, Call call, Done<PutResult> done);
  virtual void UploadPartFrom(std::string key, std::string upload_id, int number, Source& body, Call call,
                              Done<PartInfo> done);
  /// Deleting what does not exist succeeds.
  virtual void Delete(std::string key, Call call, Done<void> done) = 0;
  /// Any number of keys; yields those that failed.
  virtual void DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) = 0;
  /// Server-side; fails with kNotFound when the source does not exist.
  virtual void Copy(std::string source, std::string destination, CopyOptions options, Call call,
                    Done<PutResult> done) = 0;

  virtual void CreateMultipart(std::string key, PutOptions options, Call call, Done<std::string> upload_id) = 0;
  virtual void UploadPart(std::string key, std::string upload_id, int number, Payload body, Call call,
                          Done<PartInfo> done) = 0;
  virtual void CopyPart(std::string key, std::string upload_id, int number, std::string source, ByteRange range,
                        CopyOptions options, Call call, Done<PartInfo> done) = 0;
  /// The object appears atomically. `parts` in ascending order. Of `options` only the two conditions count.
  virtual void CompleteMultipart(std::string key, std::string upload_id, std::vector<PartInfo> parts,
                                 PutOptions options, Call call, Done<PutResult> done) = 0;
  virtual void AbortMultipart(std::string key, std::string upload_id, Call call, Done<void> done) = 0;
  virtual void ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<PartInfo>> done) = 0;
  virtual void ListUploads(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) = 0;

  /// A URL that lets its holder do `method` ("GET" or "PUT") on the key for a while; kUnsupported where that has no
  /// sense.
  virtual Result<std::string> Presign(std::string_view method, std::string_view key, Duration valid_for) = 0;
};

/// Buckets of one endpoint. Thread-safe; calls block.
class Service {
 public:
  struct Bucket {
    std::string name;
    WallTime created;
  };
  virtual ~Service() = default;
  /// As a store's.
  virtual std::string Identity() const = 0;
  virtual Result<std::vector<Bucket>> ListBuckets(Call call) = 0;
  virtual Status MakeBucket(std::string_view name, Call call) = 0;
  virtual Status RemoveBucket(std::string_view name, Call call) = 0;  ///< kNotEmpty when it is not
};

}  // namespace millrace::object
