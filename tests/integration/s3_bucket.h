// Buckets on real S3 servers, for tests.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/object/blocking.h"
#include "millrace/object/s3/endpoint.h"

namespace millrace::object {

inline constexpr const char* kTestAccessKey = "test";
inline constexpr const char* kTestSecretKey = "testtest1";

/// The tests' identity goes where a user's would.
inline void UseTestKeys() {
  setenv("AWS_ACCESS_KEY_ID", kTestAccessKey, 1);
  setenv("AWS_SECRET_ACCESS_KEY", kTestSecretKey, 1);
  for (const char* name : {"AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL",
                           "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE", "HTTP_PROXY", "http_proxy"}) {
    unsetenv(name);
  }
}

/// A bucket of its own, emptied and removed with the last reference.
struct Bucket {
  std::shared_ptr<void> server;  ///< what must live as long
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

inline Result<std::shared_ptr<Bucket>> NewBucket(const std::string& url, ConnectOptions options = {}) {
  UseTestKeys();
  options.endpoint_url = url;
  auto bucket = std::make_shared<Bucket>();
  bucket->name = fmt::format("test-{:016x}", SystemEntropy());
  bucket->endpoint = MR_TRY(s3::Endpoint::Open(std::move(options)));
  MR_TRY(bucket->endpoint->service().MakeBucket(bucket->name, {}));
  bucket->store = bucket->endpoint->OpenBucket(bucket->name);
  return bucket;
}

}  // namespace millrace::object
