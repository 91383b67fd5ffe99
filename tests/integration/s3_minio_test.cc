// The S3 store against MinIO, where there is one.
#include <gtest/gtest.h>

#include "millrace/object/conformance.h"
#include "tests/integration/minio.h"
#include "tests/integration/s3_bucket.h"

namespace millrace::object {
namespace {

using peers::Minio;

/// One server for the whole program: starting one takes longer than most cases.
Result<std::string> MinioUrl() {
  static Result<std::unique_ptr<Minio>> minio = Minio::Start(kTestAccessKey, kTestSecretKey);
  if (!minio) return Fail(minio.error());
  return (*minio)->url();
}

Result<std::shared_ptr<Store>> MinioStore() {
  auto bucket = MR_TRY(NewBucket(MR_TRY(MinioUrl())));
  return std::shared_ptr<Store>(bucket, bucket->store.get());
}

// MinIO keeps objects in a file system, and lists uploads of one key at a time.
INSTANTIATE_TEST_SUITE_P(Minio, StoreConformance,
                         testing::Values(ConformanceSubject{.name = "minio",
                                                            .make = MinioStore,
                                                            .object_beside_folder = false,
                                                            .free_segments = false,
                                                            .uploads_by_prefix = false}));

}  // namespace
}  // namespace millrace::object
