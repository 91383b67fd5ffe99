// The S3 store against the embedded endpoint.
#include <gtest/gtest.h>

#include <atomic>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/http/client/client.h"
#include "millrace/object/blocking.h"
#include "millrace/object/testing/conformance.h"
#include "millrace/s3d/server.h"
#include "tests/integration/s3_bucket.h"

namespace millrace::object {
namespace {

/// The embedded endpoint, in this process, with a folder of its own.
struct Embedded {
  TempDir folder;
  std::unique_ptr<s3d::Server> server;
};
Result<std::shared_ptr<Embedded>> StartEmbedded() {
  TempDir folder = MR_TRY(TempDir::Create());
  auto server = MR_TRY(s3d::Server::Start(
      {.root = folder.path() / "root", .access_key = kTestAccessKey, .secret_key = kTestSecretKey, .sync = false}));
  return std::make_shared<Embedded>(std::move(folder), std::move(server));
}

Result<std::shared_ptr<Store>> EmbeddedStore() {
  auto embedded = MR_TRY(StartEmbedded());
  auto bucket = MR_TRY(NewBucket(embedded->server->endpoint()));
  bucket->server = std::move(embedded);
  return std::shared_ptr<Store>(bucket, bucket->store.get());
}

INSTANTIATE_TEST_SUITE_P(Embedded, StoreConformance,
                         testing::Values(ConformanceSubject{.name = "embedded", .make = EmbeddedStore}));

constexpr std::string_view kDrill =
    "error=500,rate=4%; slowdown,rate=2%; reset=request,rate=4%; reset=answer,rate=4%; reset=body,rate=4%; "
    "truncate,rate=4%";

/// Reads and writes, many times, while one request in five fails in one way or another.
TEST(S3Store, NothingIsLostOrMixedUpWhileTheServerFails) {
  auto embedded = StartEmbedded();
  ASSERT_TRUE(embedded) << embedded.error().ToString();
  auto bucket = NewBucket((*embedded)->server->endpoint(), {.max_attempts = 20});
  ASSERT_TRUE(bucket) << bucket.error().ToString();
  Store& store = *(*bucket)->store;
  ASSERT_TRUE((*embedded)->server->SetFaults(kDrill));
  constexpr int kThreads = 4, kEach = 15;
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<std::uint64_t>(t));
      for (int i = 0; i < kEach; ++i) {
        std::string key = fmt::format("{}/{}", t, i), body(random.Below(20'000) + 1, '\0');
        for (char& c : body) c = static_cast<char>(random.Next());
        auto put = Put(store, key, AsBytes(body));
        ASSERT_TRUE(put) << put.error().ToString();
        std::string into(body.size(), '?');
        auto got = Get(store, key, {.if_match = put->etag}, AsWritableBytes(into));
        ASSERT_TRUE(got) << got.error().ToString();
        EXPECT_EQ(into, body);
        std::uint64_t offset = random.Below(body.size());
        std::string part(body.size() - offset, '?');
        auto ranged = Get(store, key, {.range = ByteRange{offset, part.size()}}, AsWritableBytes(part));
        ASSERT_TRUE(ranged) << ranged.error().ToString();
        EXPECT_EQ(part, body.substr(offset));
        if (i % 2) {
          auto deleted = Delete(store, key);
          EXPECT_TRUE(deleted) << deleted.error().ToString();
        }
      }
    });
  }
  threads.clear();
  int listed = 0;
  auto status = ListAll(store, {.max_keys = 7}, [&](const ListPage& page) {
    listed += static_cast<int>(page.objects.size());
    return true;
  });
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_EQ(listed, kThreads * ((kEach + 1) / 2));
  ASSERT_TRUE((*embedded)->server->SetFaults(""));
}

TEST(S3Store, PresignedUrlsOpenWithoutKeys) {
  auto store = EmbeddedStore();
  ASSERT_TRUE(store) << store.error().ToString();
  auto url = (*store)->Presign("PUT", "a b/ü", std::chrono::minutes(5));
  ASSERT_TRUE(url) << url.error().ToString();
  http::Client client({});
  std::string body = "signed by another";
  auto put = client.Send({.method = "PUT", .url = *url, .body = AsBytes(body)});
  ASSERT_TRUE(put) << put.error().ToString();
  EXPECT_EQ(put->status, 200) << put->body;
  url = (*store)->Presign("GET", "a b/ü", std::chrono::minutes(5));
  ASSERT_TRUE(url);
  auto got = client.Send({.url = *url});
  ASSERT_TRUE(got);
  EXPECT_EQ(got->body, body);
  auto other = client.Send({.method = "PUT", .url = *url, .body = AsBytes(body)});
  ASSERT_TRUE(other);
  EXPECT_EQ(other->status, 403) << "the signature is for reading";
}

TEST(S3Service, BucketsComeAndGo) {
  auto embedded = StartEmbedded();
  ASSERT_TRUE(embedded) << embedded.error().ToString();
  auto bucket = NewBucket((*embedded)->server->endpoint());
  ASSERT_TRUE(bucket) << bucket.error().ToString();
  Service& service = (*bucket)->endpoint->service();
  auto buckets = service.ListBuckets({});
  ASSERT_TRUE(buckets) << buckets.error().ToString();
  ASSERT_EQ(buckets->size(), 1u);
  EXPECT_EQ((*buckets)[0].name, (*bucket)->name);
  ASSERT_TRUE(Put(*(*bucket)->store, "k", AsBytes("x")));
  EXPECT_EQ(service.RemoveBucket((*bucket)->name, {}).error().code(), Code::kNotEmpty);
  EXPECT_EQ(service.RemoveBucket("absent", {}).error().code(), Code::kNotFound);
  EXPECT_EQ(service.MakeBucket("../evil", {}).error().code(), Code::kInvalidArgument);
  auto absent = (*bucket)->endpoint->OpenBucket("absent");
  EXPECT_EQ(Head(*absent, "k").error().code(), Code::kNotFound) << "a bucket that does not exist is an error";
  EXPECT_EQ(absent->Identity(), (*embedded)->server->endpoint() + "/absent") << "buckets of other endpoints differ";
  auto there = Head(*(*bucket)->store, "absent");
  ASSERT_TRUE(there) << there.error().ToString();
  EXPECT_FALSE(*there);
}

}  // namespace
}  // namespace millrace::object
