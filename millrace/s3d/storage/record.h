// The journal's records and their bytes (docs/formats/s3d.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/s3d/storage/model.h"

namespace millrace::s3d {

/// One change of what exists. Which fields count depends on the type; the rest stays empty.
struct Record {
  enum class Type : std::uint8_t {
    kCreateBucket = 1,    ///< bucket, time
    kDeleteBucket = 2,    ///< bucket
    kPutObject = 3,       ///< bucket, key, object
    kDeleteObject = 4,    ///< bucket, key
    kCreateUpload = 5,    ///< bucket, key, upload_id, upload (its parts follow as records of their own)
    kPutPart = 6,         ///< bucket, key, upload_id, part_number, part
    kAbortUpload = 7,     ///< bucket, key, upload_id
    kCompleteUpload = 8,  ///< bucket, key, upload_id, object: the upload ends and the object is there
  };
  Type type = Type::kCreateBucket;
  std::string bucket, key, upload_id;
  WallTime time;
  ObjectPtr object;
  Upload upload;
  int part_number = 0;
  Part part;
};

std::string EncodeRecord(const Record& record);

/// Turns the number of a blob into the blob.
using BlobResolver = std::function<std::shared_ptr<Blob>(std::uint64_t id)>;
/// Fails with kCorrupt on anything that EncodeRecord does not write.
Result<Record> DecodeRecord(std::string_view bytes, const BlobResolver& resolve);

}  // namespace millrace::s3d
