// A record of the S3 endpoint's journal is either refused or says the same when it is written again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "millrace/base/files/files.h"
#include "millrace/s3d/storage/record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  static const TempDir folder = *TempDir::Create();
  static const auto blobs = *s3d::BlobStore::Open(*s3d::OpenRootFolder(folder.path()));
  auto resolve = [](std::uint64_t id) { return std::make_shared<s3d::Blob>(*blobs, id); };
  auto record = s3d::DecodeRecord({reinterpret_cast<const char*>(data), size}, resolve);
  if (!record) return 0;
  std::string bytes = s3d::EncodeRecord(*record);
  auto again = s3d::DecodeRecord(bytes, resolve);
  if (!again || s3d::EncodeRecord(*again) != bytes) std::abort();
  return 0;
}
