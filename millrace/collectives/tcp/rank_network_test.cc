#include "millrace/collectives/tcp/rank_network.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include "millrace/collectives/testing/run_ranks.h"

namespace millrace::collectives {
namespace {

RankKey NetworkKey(std::string_view secret) { return RankKey::Derive(SecretBytes(AsBytes(secret)), "start"); }

std::unique_ptr<RankNetwork> Open(const std::string& master, std::string_view secret = "a secret of tests") {
  auto network = RankNetwork::Open(master, 29'500, NetworkKey(secret), /*is_master=*/true);
  EXPECT_TRUE(network) << network.error().ToString();
  return network ? *std::move(network) : nullptr;
}

int PortIn(const std::string& address) { return std::stoi(address.substr(address.find(' ') + 1)); }

/// Returns what a stranger reads that says `text`: nothing, if it is turned away.
std::string Answer(int port, const std::string& text) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress to = SocketAddress::Parse("127.0.0.1", port).value();
  EXPECT_EQ(::connect(fd.get(), to.data(), to.size()), 0);
  EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  char read[16];
  const ssize_t got = ::recv(fd.get(), read, sizeof read, 0);
  return got > 0 ? std::string(read, static_cast<std::size_t>(got)) : std::string();
}

TEST(RankNetwork, ConnectionsAreFoundByTheirNames) {
  const auto a = Open("127.0.0.1"), b = Open("127.0.0.1");
  const ConnectionName names[] = {{"g", 1, 0}, {"g", 1, 1}, {"g", 2, 0}, {"h", 1, 0}};
  for (const ConnectionName& name : names) {
    auto made = b->Connect(a->Address(), true, name, Soon(), {});
    ASSERT_TRUE(made) << made.error().ToString();
    const std::string text = name.group + std::to_string(name.from) + std::to_string(name.channel);
    EXPECT_EQ(::send(made->get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  for (const ConnectionName& name : {names[3], names[1], names[0], names[2]}) {
    const auto taken = a->Accept(name, Soon(), {});
    ASSERT_TRUE(taken) << taken.error().ToString();
    std::string text(3, ' ');
    while (::recv(taken->get(), text.data(), text.size(), MSG_WAITALL) < 0 && errno == EAGAIN)
      std::this_thread::yield();
    EXPECT_EQ(text, name.group + std::to_string(name.from) + std::to_string(name.channel));
  }
}

/// Returns whether this machine takes connections on a port of one of its addresses.
bool Takes(const char* host, int port) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress to = SocketAddress::Parse(host, port).value();
  return ::connect(fd.get(), to.data(), to.size()) == 0;
}

TEST(RankNetwork, ListensOnLoopbackOnlyIfTheMasterIsWrittenSo) {
  const auto alone = Open("127.0.0.1"), open = Open("127.0.0.2");
  EXPECT_TRUE(Takes("127.0.0.1", PortIn(alone->Address())));
  EXPECT_FALSE(Takes("127.0.0.3", PortIn(alone->Address())));
  EXPECT_TRUE(Takes("127.0.0.3", PortIn(open->Address())));
}

TEST(RankNetwork, AMasterIsReachedAsItIsKnownHere) {
  // As on a machine whose name resolves to 127.0.1.1 there, and to something else on other machines.
  const auto a = Open("127.0.0.1"), b = Open("127.0.0.1");
  const std::string unreachable = "203.0.113.1 " + std::to_string(PortIn(a->Address()));
  EXPECT_TRUE(b->Connect(unreachable, true, {"g", 1, 0}, Soon(), {}));
  EXPECT_TRUE(b->Connect("127.0.1.1 " + std::to_string(PortIn(a->Address())), false, {"g", 2, 0}, Soon(), {}));
}

TEST(RankNetwork, StrangersAreTurnedAway) {
  const auto network = Open("127.0.0.1"), stranger = Open("127.0.0.1", "another secret of tests");
  const int port = PortIn(network->Address());
  EXPECT_EQ(Answer(port, "GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: b\r\nAccept: everything\r\n\r\n"), "");
  const auto made = stranger->Connect(network->Address(), true, {"g", 1, 0}, Soon(), {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kPermissionDenied);
  EXPECT_FALSE(network->Accept({"g", 1, 0}, SystemClock().Now(), {})) << "it was not let in";
}

TEST(RankNetwork, AClosedGroupTakesNoConnections) {
  const auto a = Open("127.0.0.1"), b = Open("127.0.0.1");
  a->Close("g");
  const auto made = b->Connect(a->Address(), true, {"g", 1, 0}, Soon(), {});
  ASSERT_TRUE(made);
  char byte;
  ssize_t got = -1;
  while ((got = ::recv(made->get(), &byte, 1, 0)) < 0 && errno == EAGAIN) std::this_thread::yield();
  EXPECT_LE(got, 0);
}

TEST(RankNetwork, WaitsEnd) {
  const auto network = Open("127.0.0.1");
  const auto late = network->Accept({"g", 1, 0}, SystemClock().Now() + std::chrono::milliseconds(1), {});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kUnavailable);
  std::stop_source stop;
  std::jthread stopper([&] { stop.request_stop(); });
  const auto stopped = network->Accept({"g", 1, 0}, Soon(), stop.get_token());
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code(), Code::kCancelled);
  const int port = PortIn(Open("127.0.0.1")->Address());  // of a network that is gone
  const auto refused = network->Connect("127.0.0.1 " + std::to_string(port), true, {"g", 1, 0}, Soon(), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
}

TEST(RankNetwork, WrongAddressesAreErrors) {
  EXPECT_FALSE(RankNetwork::Open("no.such.host.invalid", 1, NetworkKey("a secret of tests"), true));
  const auto network = Open("127.0.0.1");
  EXPECT_FALSE(network->Connect("nonsense", false, {"g", 1, 0}, Soon(), {}));
}

}  // namespace
}  // namespace millrace::collectives
