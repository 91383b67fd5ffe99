#include "millrace/collectives/rendezvous/rank_store.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "millrace/collectives/rendezvous/store_protocol.h"
#include "millrace/collectives/testing/run_ranks.h"

namespace millrace::collectives {
namespace {

class RankStoreTest : public testing::Test {
 protected:
  static std::unique_ptr<StoreServer> Serve(const RankKey& key, StoreServer::Limits limits = {}) {
    return StoreServer::Open(SocketAddress::Parse("127.0.0.1", 0).value(), key, limits).value();
  }
  RankStore Connect() { return RankStore::Connect(server_->address(), key_, Soon()).value(); }
  /// Connects as a rank would, to say something that no rank says.
  UniqueFd Proved() {
    return ConnectProved(server_->address(), key_, kStoreRequest, NobodyListens::kFails, Soon(), {}).value();
  }
  static bool IsEnded(const UniqueFd& fd) {
    std::byte byte;
    const Status got = ReceiveAll(fd.get(), {&byte, 1}, Soon(), {});
    return !got && got.error().ToString().find("ended") != std::string::npos;
  }

  const RankKey key_ = RankKey::Derive(SecretBytes(AsBytes("a secret of tests")), "start");
  std::unique_ptr<StoreServer> server_ = Serve(key_);
};

TEST_F(RankStoreTest, KeepsTexts) {
  RankStore a = Connect(), b = Connect();
  ASSERT_TRUE(a.Set("key", "text", Soon()));
  EXPECT_EQ(b.Get("key", Soon()).value(), "text");
  ASSERT_TRUE(b.Set("key", "another", Soon()));
  ASSERT_TRUE(b.Set("empty", "", Soon()));
  EXPECT_EQ(b.Get("key", Soon()).value(), "another");
  EXPECT_EQ(b.Get("empty", Soon()).value(), "");
  const std::string longest(kMaxStoreText, 'x');
  ASSERT_TRUE(a.Set(std::string(100'000, 'k'), longest, Soon()));
  EXPECT_EQ(a.Get(std::string(100'000, 'k'), Soon()).value(), longest);
  EXPECT_EQ(a.Set("key", longest + "x", Soon()).error().code(), Code::kInvalidArgument);
}

TEST_F(RankStoreTest, GetWaitsForTheKey) {
  std::vector<std::jthread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] { EXPECT_EQ(Connect().Get("late", Soon()).value(), "here"); });
  }
  RankStore store = Connect();
  ASSERT_TRUE(store.Set("other", "text", Soon()));
  ASSERT_TRUE(store.Set("late", "here", Soon()));
}

TEST_F(RankStoreTest, WaitsEnd) {
  RankStore store = Connect();
  const auto never = store.Get("never", SystemClock().Now() + std::chrono::milliseconds(5));
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code(), Code::kUnavailable);
  RankStore other = Connect();
  std::jthread waiter([&] {
    const auto lost = other.Get("never", Soon());
    ASSERT_FALSE(lost);
    EXPECT_EQ(lost.error().code(), Code::kUnavailable);
    EXPECT_NE(lost.error().ToString().find("the store of rank 0: "), std::string::npos) << lost.error().ToString();
  });
  server_.reset();
}

TEST_F(RankStoreTest, AwaitsAStoreThatIsNotThereYet) {
  const SocketAddress at = server_->address();
  server_.reset();
  std::jthread client([&] { EXPECT_TRUE(RankStore::Connect(at, key_, Soon())); });
  server_ = StoreServer::Open(at, key_).value();
  client.join();
}

TEST_F(RankStoreTest, StrangersGetNothing) {
  const RankKey other = RankKey::Derive(SecretBytes(AsBytes("another secret of tests")), "start");
  const auto refused = RankStore::Connect(server_->address(), other, Soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
}

TEST_F(RankStoreTest, NobodyWaitsForAStranger) {
  // One that says nothing, and some that stop in the middle.
  std::vector<UniqueFd> strangers;
  for (const std::string_view said : {"", "M", "MRRANK1\n"}) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd.get(), server_->address().data(), server_->address().size()), 0);
    ASSERT_EQ(::send(fd.get(), said.data(), said.size(), MSG_NOSIGNAL), static_cast<ssize_t>(said.size()));
    strangers.push_back(std::move(fd));
  }
  RankStore store = Connect();
  ASSERT_TRUE(store.Set("key", "text", Soon()));
  EXPECT_EQ(store.Get("key", Soon()).value(), "text");
}

TEST_F(RankStoreTest, SilentRanksHoldUpNoOther) {
  const UniqueFd silent = Proved();
  const StoreHead head{.order = StoreOrder::kSet, .size = 100, .key = {}};
  ASSERT_EQ(::send(silent.get(), &head, sizeof head, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof head));
  RankStore store = Connect();
  ASSERT_TRUE(store.Set("key", "text", Soon()));
  EXPECT_EQ(store.Get("key", Soon()).value(), "text");
}

TEST_F(RankStoreTest, LengthsAreBounded) {
  StoreHead head{.order = StoreOrder::kSet, .size = kMaxStoreText + 1, .key = {}};
  const UniqueFd too_long = Proved(), no_order = Proved(), get_with_text = Proved();
  ASSERT_TRUE(SendAll(too_long.get(), std::as_bytes(std::span(&head, 1)), Soon(), {}));
  EXPECT_TRUE(IsEnded(too_long));
  head = {.order = static_cast<StoreOrder>(9), .key = {}};
  ASSERT_TRUE(SendAll(no_order.get(), std::as_bytes(std::span(&head, 1)), Soon(), {}));
  EXPECT_TRUE(IsEnded(no_order));
  head = {.order = StoreOrder::kGet, .size = 1, .key = {}};
  ASSERT_TRUE(SendAll(get_with_text.get(), std::as_bytes(std::span(&head, 1)), Soon(), {}));
  EXPECT_TRUE(IsEnded(get_with_text));
}

TEST_F(RankStoreTest, EntriesAreBounded) {
  server_ = Serve(key_, {.entries = 2});
  RankStore store = Connect();
  ASSERT_TRUE(store.Set("1", "a", Soon()));
  ASSERT_TRUE(store.Set("2", "b", Soon()));
  ASSERT_TRUE(store.Set("2", "c", Soon()));
  EXPECT_EQ(store.Get("2", Soon()).value(), "c");
  (void)store.Set("3", "d", Soon());
  EXPECT_FALSE(store.Get("1", Soon()));
}

}  // namespace
}  // namespace millrace::collectives
