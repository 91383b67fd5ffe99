#include "millrace/serve/models/adapter_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A store whose adapters take 10 bytes, or as many as their name ends in: "big-25".
class AdapterStoreTest : public testing::Test {
 protected:
  void Open(std::uint64_t most_bytes, std::map<std::string, std::string> urls = {}) {
    store_.emplace(
        AdapterPlaces{.urls = std::move(urls), .folder_url = "mem://a/folder", .folder = {bucket_, "folder/"}},
        most_bytes, [this](const std::string& url, const ReserveMemory& reserve, const object::Call& call) {
          return LoadOne(url, reserve, call);
        });
  }
  Result<std::shared_ptr<const Adapter>> LoadOne(const std::string& url, const ReserveMemory& reserve,
                                                 const object::Call& call) {
    ++loads_;
    urls_.push_back(url);
    if (on_load_) on_load_();
    if (call.stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
    if (url.contains("bad")) return Fail(Code::kCorrupt, "{} is broken", url);
    const std::size_t dash = url.rfind('-');
    MR_TRY(reserve(dash == url.npos ? 10 : std::stoull(url.substr(dash + 1))));
    return std::make_shared<const Adapter>();
  }

  std::shared_ptr<object::Store> bucket_ = object::MakeMemoryStore();
  std::optional<AdapterStore> store_;
  std::atomic<int> loads_{0};
  std::vector<std::string> urls_;
  std::function<void()> on_load_;
};

TEST_F(AdapterStoreTest, LoadsOnceAndKeepsWhatWasUsedLast) {
  Open(30);
  const auto first = store_->Get("a", {}).value()->id();
  (void)store_->Get("b", {});
  (void)store_->Get("c", {});
  EXPECT_EQ(store_->Get("a", {}).value()->id(), first);
  EXPECT_EQ(loads_, 3);
  (void)store_->Get("d", {});  // in the place of b
  EXPECT_EQ(store_->Get("a", {}).value()->id(), first);
  (void)store_->Get("c", {});
  EXPECT_EQ(loads_, 4);
  (void)store_->Get("b", {});
  EXPECT_EQ(loads_, 5);
  EXPECT_EQ(store_->counters().evictions, 2U);
  EXPECT_EQ(store_->counters().bytes, 30U);
  EXPECT_EQ(store_->counters().loaded, 3);
}

TEST_F(AdapterStoreTest, WhatIsInUseStays) {
  Open(20);
  auto a = store_->Get("a", {}).value(), b = store_->Get("b", {}).value();
  const auto full = store_->Get("c", {});
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), Code::kThrottled);
  EXPECT_THAT(full.error().ToString(), HasSubstr("try again"));
  EXPECT_EQ(store_->counters().bytes, 20U) << "what was not loaded takes nothing";
  a.reset();
  EXPECT_TRUE(store_->Get("c", {}));
  EXPECT_EQ(store_->Get("b", {}).value(), b);
  const auto large = store_->Get("big-21", {});
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(large.error().ToString(), HasSubstr("--adapter-memory"));
}

TEST_F(AdapterStoreTest, AFailureIsToldToAllWhoWaitAndForgotten) {
  Open(30);
  std::latch loading(1), go(1);
  on_load_ = [&] {
    if (loads_ > 1) return;
    loading.count_down();
    go.wait();
  };
  Result<std::shared_ptr<const Adapter>> first = nullptr, second = nullptr;
  std::jthread loader([&] { first = store_->Get("bad", {}); });
  loading.wait();
  std::jthread waiter([&] { second = store_->Get("bad", {}); });
  go.count_down();
  loader.join();
  waiter.join();
  ASSERT_FALSE(first);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().ToString(), HasSubstr("broken"));
  const int loads = loads_;
  EXPECT_FALSE(store_->Get("bad", {}));
  EXPECT_EQ(loads_, loads + 1) << "it may have been mended meanwhile";
  EXPECT_EQ(store_->counters().failed_loads, static_cast<std::uint64_t>(loads_));
}

TEST_F(AdapterStoreTest, WhoWaitsLoadsIfTheLoaderGoesAway) {
  Open(30);
  std::latch loading(1), go(1);
  on_load_ = [&] {
    if (loads_ > 1) return;
    loading.count_down();
    go.wait();
  };
  std::stop_source gone;
  Result<std::shared_ptr<const Adapter>> first = nullptr, second = nullptr;
  std::jthread loader([&] { first = store_->Get("a", gone.get_token()); });
  loading.wait();
  std::jthread waiter([&] { second = store_->Get("a", {}); });
  gone.request_stop();
  go.count_down();
  loader.join();
  waiter.join();
  EXPECT_FALSE(first);
  EXPECT_TRUE(second);
}

TEST_F(AdapterStoreTest, NamesComeFromTheFlagsAndTheFolder) {
  Open(30, {{"named", "s3://elsewhere/x"}});
  for (const char* key : {"folder/one/adapter_config.json", "folder/two/manifest", "folder/file", "other/three/x"}) {
    ASSERT_TRUE(object::Put(*bucket_, key, AsBytes(std::string_view("x"))));
  }
  EXPECT_THAT(store_->Names({}).value(), ElementsAre("named", "one", "two"));
  EXPECT_TRUE(store_->Get("named", {}));
  EXPECT_TRUE(store_->Get("one", {}));
  EXPECT_THAT(urls_, ElementsAre("s3://elsewhere/x", "mem://a/folder/one"));
  for (const char* name : {"", ".", "..", "../secret", "one/two", "a\nb"}) {
    EXPECT_EQ(store_->Get(name, {}).error().code(), Code::kNotFound) << name;
  }
  EXPECT_EQ(loads_, 2);
}

}  // namespace
}  // namespace millrace::serve
