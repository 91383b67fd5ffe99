// The multipart uploads of one bucket. Internal to this module.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "millrace/object/s3/bucket_client.h"
#include "millrace/object/store.h"

namespace millrace::object::s3 {

/// The operations on multipart uploads, as Store has them. Thread-safe. Both arguments are borrowed; the operations
/// that run on `bucket` use this object until they end.
class MultipartUploads {
 public:
  MultipartUploads(BucketClient& bucket, Store& store) : bucket_(bucket), store_(store) {}

  void Create(std::string key, PutOptions options, Call call, Done<std::string> upload_id);
  void UploadPart(std::string key, std::string upload_id, int number, Payload body, Call call, Done<PartInfo> done);
  void UploadPartFrom(std::string key, std::string upload_id, int number, Source& body, Call call, Done<PartInfo> done);
  void CopyPart(std::string key, std::string upload_id, int number, std::string source, ByteRange range,
                CopyOptions options, Call call, Done<PartInfo> done);
  void Complete(std::string key, std::string upload_id, std::vector<PartInfo> parts, PutOptions options, Call call,
                Done<PutResult> done);
  void Abort(std::string key, std::string upload_id, Call call, Done<void> done);
  void ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<PartInfo>> done);
  void List(std::string prefix, Call call, Done<std::vector<UploadInfo>> done);

 private:
  /// Asks for the tags that the upload is to have, then creates it.
  void CreateTagged(std::string key, PutOptions options, Call call, Done<std::string> upload_id);
  /// `tags`: as a query string; empty for none.
  void CreateWith(std::string tags, std::string key, PutOptions options, Call call, Done<std::string> upload_id);
  void SendPart(Operation operation, std::string upload_id, int number, std::uint64_t size, Call call,
                Done<PartInfo> done);
  void ListPartsFrom(std::string key, std::string upload_id, std::string marker, std::vector<PartInfo> before,
                     Call call, Done<std::vector<PartInfo>> done);
  void ListFrom(std::string prefix, std::string key_marker, std::string id_marker, std::vector<UploadInfo> before,
                Call call, Done<std::vector<UploadInfo>> done);

  BucketClient& bucket_;
  Store& store_;                             ///< of the bucket: its limits, and its Head
  std::atomic<bool> plain_uploads_ = false;  ///< start uploads without a checksum algorithm
};

}  // namespace millrace::object::s3
