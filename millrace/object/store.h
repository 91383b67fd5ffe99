// The interface to a bucket through which every module reads and writes objects. s3/ and the stores of local/ implement
// it. testing/conformance.h tests what an implementation must do; testing/fault_store.h wraps one and fails on order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/object/read_store.h"

namespace millrace::object {

/// One bucket, or a folder that stands in for a bucket. Thread-safe. ReadStore says what holds for every call. Spans
/// and sources of writes, too, are borrowed until `done` runs.
class Store : public ReadStore {
 public:
  virtual Limits limits() const { return {}; }  ///< on uploads

  /// Atomic: readers see the old object or the whole new one.
  virtual void Put(std::string key, Payload body, PutOptions options, Call call, Done<PutResult> done) = 0;
  /// Put of content that is not in memory. `body` is borrowed. It may be read more than once, and the
  /// first time before the call returns. The default implementation reads it into memory.
  virtual void PutFrom(std::string key, Source& body, PutOptions options, Call call, Done<PutResult> done);
  /// As PutFrom, for a part.
  virtual void UploadPartFrom(std::string key, std::string upload_id, int number, Source& body, Call call,
                              Done<PartInfo> done);
  /// Succeeds if the key does not exist.
  virtual void Delete(std::string key, Call call, Done<void> done) = 0;
  /// Deletes any number of keys. Yields the keys that could not be deleted.
  virtual void DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) = 0;
  /// Deletes any number of versions and delete markers for good. Yields those that could not be deleted.
  /// Errors: kUnsupported if the store keeps no versions.
  virtual void DeleteVersions(std::vector<VersionName> versions, Call call, Done<std::vector<DeleteFailure>> done);
  /// Asks for a readable copy of an archived object, which is there minutes or hours later. Yields false if that was
  /// asked for before and has not ended. Errors: kUnsupported if the store archives nothing.
  virtual void Restore(std::string key, RestoreOptions options, Call call, Done<bool> done);
  /// Copies on the server. Errors: kNotFound if the source does not exist.
  virtual void Copy(std::string source, std::string destination, CopyOptions options, Call call,
                    Done<PutResult> done) = 0;

  /// Begins an upload in parts. Yields its id. Nothing is visible before CompleteMultipart.
  virtual void CreateMultipart(std::string key, PutOptions options, Call call, Done<std::string> upload_id) = 0;
  /// Uploads part `number`, from 1. A later upload of the same number replaces it.
  virtual void UploadPart(std::string key, std::string upload_id, int number, Payload body, Call call,
                          Done<PartInfo> done) = 0;
  /// Makes a part of bytes of an object, on the server.
  virtual void CopyPart(std::string key, std::string upload_id, int number, std::string source, ByteRange range,
                        CopyOptions options, Call call, Done<PartInfo> done) = 0;
  /// The object appears atomically. `parts` is in ascending order of their numbers. Uses only the two conditions of
  /// `options`.
  virtual void CompleteMultipart(std::string key, std::string upload_id, std::vector<PartInfo> parts,
                                 PutOptions options, Call call, Done<PutResult> done) = 0;
  /// Drops an upload and its parts. Succeeds if there is no such upload.
  virtual void AbortMultipart(std::string key, std::string upload_id, Call call, Done<void> done) = 0;
  /// The parts of an upload, in order of their numbers. Errors: kNotFound if there is no such upload.
  virtual void ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<PartInfo>> done) = 0;
  /// The uploads that are neither completed nor aborted.
  virtual void ListUploads(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) = 0;

  /// A URL that permits its holder `method` ("GET" or "PUT") on the key until `valid_for` is over.
  /// Errors: kUnsupported if the store has no such URLs.
  virtual Result<std::string> Presign(std::string_view method, std::string_view key, Duration valid_for) = 0;
};

}  // namespace millrace::object
