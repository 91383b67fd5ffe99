// The read-only half of the interface to a bucket. Code that only reads takes a ReadStore, and a source that cannot be
// written to implements nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "millrace/object/body.h"
#include "millrace/object/object_info.h"
#include "millrace/object/requests.h"

namespace millrace::object {

/// Reads and lists the objects of one bucket, or of something that stands in for a bucket. Thread-safe.
///
/// Every call starts work and returns at once. `done` runs exactly once, on a thread of the store or before the call
/// returns, and must not block. The caller keeps spans and sinks alive until then. The store has already retried
/// transient failures when `done` runs.
/// An absent object is a value: Head and Get yield nullopt for a key that does not exist. An absent bucket is an error
/// (kNotFound). Keys are non-empty UTF-8 of at most 1,024 bytes; others fail with kInvalidArgument.
/// Destroying a store cancels the calls in flight and runs their completions first.
/// blocking.h has the same calls in waiting form.
class ReadStore {
 public:
  virtual ~ReadStore() = default;

  /// "s3://bucket", "file:///folder", "memory:": for messages.
  virtual std::string Describe() const = 0;
  /// A name that no other store has, not even one at another endpoint: for data that outlives the process.
  virtual std::string Identity() const { return Describe(); }

  /// Advice: these objects will be read whole, in this order. It may change when bytes are fetched, but no result.
  virtual void WillRead(std::span<const std::string> keys) { (void)keys; }

  /// The metadata of an object.
  virtual void Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) = 0;
  /// The metadata of one version of an object, by VersionInfo::id. Errors: kUnsupported if the store keeps no versions.
  virtual void HeadVersion(std::string key, std::string version, Call call, Done<std::optional<ObjectInfo>> done);
  /// The bytes of an object, or a range of them. Checks them against the store's checksum if the store has one for
  /// them. Errors: kInvalidArgument if the requested bytes do not fit `into`.
  virtual void Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
                   Done<std::optional<GetResult>> done) = 0;
  /// Delivers at most `limit` bytes to `sink`, which is borrowed. Does not check the bytes: for a whole object, the
  /// result's info has the checksum that the caller can check them by. The default implementation reads into memory
  /// and calls Take once.
  virtual void GetTo(std::string key, GetOptions options, std::uint64_t limit, Sink& sink, Call call,
                     Done<std::optional<GetResult>> done);
  /// The size of part `number` (from 1) of the upload that made the version `etag`; nullopt if the store does not know
  /// it. Errors: kPreconditionFailed if the object has another version now.
  virtual void HeadPart(std::string key, std::string etag, int number, Call call,
                        Done<std::optional<std::uint64_t>> done);
  /// One page of a listing.
  virtual void List(ListRequest request, Call call, Done<ListPage> done) = 0;
  /// One page of a listing of all versions. Errors: kUnsupported if the store keeps no versions.
  virtual void ListVersions(VersionsRequest request, Call call, Done<VersionsPage> done);
};

}  // namespace millrace::object
