// The S3 store against MinIO, where there is one.
#include <gtest/gtest.h>

#include "millrace/object/testing/conformance.h"
#include "tests/integration/peers.h"
#include "tests/integration/s3_bucket.h"

namespace millrace::object {
namespace {

/// One server for the whole program: starting one takes longer than most cases.
Result<std::string> MinioUrl() {
  static Result<std::unique_ptr<peers::Server>> minio =
      peers::Server::StartMinio({.access_key = kTestAccessKey, .secret_key = kTestSecretKey});
  if (!minio) return Fail(minio.error());
  return (*minio)->url();
}

Result<std::shared_ptr<Store>> MinioStore() {
  auto bucket = MR_TRY(NewBucket(MR_TRY(MinioUrl())));
  return std::shared_ptr<Store>(bucket, bucket->store.get());
}

// MinIO keeps objects in a file system (its listings leave out what is beside "folder/"), and lists uploads of one key
// at a time.
INSTANTIATE_TEST_SUITE_P(Minio, StoreConformance,
                         testing::Values(ConformanceSubject{
                             .name = "minio",
                             .make = MinioStore,
                             .lacks = {Capability::kObjectBesideFolder, Capability::kFreeSegments,
                                       Capability::kUploadsByPrefix}}));

/// Writes and reads one object, and lists it.
void ExpectWorks(Store& store) {
  std::string key = "a b/ü+", body(100'000, 'x');
  auto put = Put(store, key, AsBytes(body));
  ASSERT_TRUE(put) << put.error().ToString();
  auto got = GetAll(store, key, body.size());
  ASSERT_TRUE(got && *got) << got.error().ToString();
  EXPECT_EQ((*got)->bytes, body);
  auto page = List(store, {.prefix = "a b/"});
  ASSERT_TRUE(page) << page.error().ToString();
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_EQ(page->objects[0].key, key);
}

TEST(S3Minio, BucketsAsHostNames) {
  auto url = MinioUrl();
  if (!url) GTEST_SKIP() << url.error().ToString();
  auto bucket = NewBucket(*url, {.path_style = false});
  ASSERT_TRUE(bucket) << bucket.error().ToString();
  ExpectWorks(*(*bucket)->store);
}

TEST(S3Minio, TlsWithAnAuthorityOfOnesOwn) {
  auto minio = peers::Server::StartMinio({.access_key = kTestAccessKey, .secret_key = kTestSecretKey, .tls = true});
  if (!minio) GTEST_SKIP() << minio.error().ToString();
  auto stranger = NewBucket((*minio)->url());
  ASSERT_FALSE(stranger) << "a certificate that nobody vouches for";
  EXPECT_EQ(stranger.error().code(), Code::kInvalidArgument);
  EXPECT_NE(stranger.error().ToString().find("--ca-bundle"), std::string::npos) << stranger.error().ToString();
  auto bucket = NewBucket((*minio)->url(), {.ca_bundle = (*minio)->certificate()});
  ASSERT_TRUE(bucket) << bucket.error().ToString();
  ExpectWorks(*(*bucket)->store);
}

}  // namespace
}  // namespace millrace::object
