// The journal's records and their bytes (docs/formats/s3d.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/s3d/storage/model.h"

namespace millrace::s3d {

/// One change. The type decides which fields are used; the others are empty.
struct Record {
  enum class Type : std::uint8_t {
    kCreateBucket = 1,    ///< bucket, time
    kDeleteBucket = 2,    ///< bucket
    kPutObject = 3,       ///< bucket, key, object
    kDeleteObject = 4,    ///< bucket, key
    kCreateUpload = 5,    ///< bucket, key, upload_id, upload (its parts follow as records of their own)
    kPutPart = 6,         ///< bucket, key, upload_id, part_number, part
    kAbortUpload = 7,     ///< bucket, key, upload_id
    kCompleteUpload = 8,  ///< bucket, key, upload_id, object: removes the upload and puts the object
  };
  Type type = Type::kCreateBucket;
  std::string bucket, key, upload_id;
  WallTime time;
  ObjectPtr object;
  Upload upload;
  int part_number = 0;
  StoredPart part;
};

std::string EncodeRecord(const Record& record);

/// Returns the blob of a number.
using BlobResolver = std::function<std::shared_ptr<Blob>(std::uint64_t id)>;
/// Errors: kCorrupt on bytes that EncodeRecord() does not write.
Result<Record> DecodeRecord(std::string_view bytes, const BlobResolver& resolve);

}  // namespace millrace::s3d
