// The S3 store against real servers: MinIO where there is one.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "millrace/base/random.h"
#include "millrace/http/client.h"
#include "millrace/object/blocking.h"
#include "millrace/object/conformance.h"
#include "millrace/object/s3/endpoint.h"
#include "tests/integration/minio.h"

namespace millrace::object {
namespace {

using millrace::peers::Minio;

/// The tests' identity goes where a user's would.
void UseTestKeys() {
  setenv("AWS_ACCESS_KEY_ID", Minio::kAccessKey, 1);
  setenv("AWS_SECRET_ACCESS_KEY", Minio::kSecretKey, 1);
  for (const char* name : {"AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL",
                           "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE", "HTTP_PROXY", "http_proxy"}) {
    unsetenv(name);
  }
}

/// One server for the whole program: starting one takes longer than most cases.
Result<std::string> MinioUrl() {
  static Result<std::unique_ptr<Minio>> minio = Minio::Start();
  if (!minio) return Fail(minio.error());
  return (*minio)->url();
}

/// A bucket of its own, emptied and removed with the last reference.
struct Bucket {
  std::unique_ptr<s3::Endpoint> endpoint;
  std::shared_ptr<Store> store;
  std::string name;
  ~Bucket() {
    if (!store) return;
    std::vector<std::string> keys;
    (void)ListAll(*store, {}, [&](const ListPage& page) {
      for (const ObjectInfo& object : page.objects) keys.push_back(object.key);
      return true;
    });
    (void)DeleteMany(*store, keys);
    (void)endpoint->service().RemoveBucket(name, {});
    store.reset();
  }
};

Result<std::shared_ptr<Bucket>> NewBucket(const std::string& url, ConnectOptions options = {}) {
  UseTestKeys();
  options.endpoint_url = url;
  auto bucket = std::make_shared<Bucket>();
  bucket->name = fmt::format("test-{:016x}", SystemEntropy());
  bucket->endpoint = MR_TRY(s3::Endpoint::Open(std::move(options)));
  MR_TRY(bucket->endpoint->service().MakeBucket(bucket->name, {}));
  bucket->store = bucket->endpoint->OpenBucket(bucket->name);
  return bucket;
}

/// A Store pointer that keeps its bucket.
Result<std::shared_ptr<Store>> NewStore(Result<std::string> url) {
  if (!url) return Fail(url.error());
  auto bucket = MR_TRY(NewBucket(*url));
  return std::shared_ptr<Store>(bucket, bucket->store.get());
}

// MinIO keeps objects in a file system, and lists uploads of one key at a time.
INSTANTIATE_TEST_SUITE_P(Minio, StoreConformance,
                         testing::Values(ConformanceSubject{.name = "minio",
                                                            .make = [] { return NewStore(MinioUrl()); },
                                                            .object_beside_folder = false,
                                                            .free_segments = false,
                                                            .uploads_by_prefix = false}));

}  // namespace
}  // namespace millrace::object
