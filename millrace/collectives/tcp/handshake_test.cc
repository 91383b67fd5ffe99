#include "millrace/collectives/tcp/handshake.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>

#include "millrace/base/process/subprocess.h"

namespace millrace::collectives {
namespace {

RankKey KeyFrom(std::string_view secret, std::string_view start = "attempt 1") {
  return RankKey::Derive(SecretBytes(AsBytes(secret)), start);
}

std::pair<UniqueFd, UniqueFd> SocketPair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string ReadSome(int fd, std::size_t most = 4096) {
  std::string text(most, '\0');
  const ssize_t got = ::recv(fd, text.data(), text.size(), MSG_DONTWAIT);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

void Say(int fd, std::string_view text) {
  ASSERT_EQ(::send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

using State = ServerHandshake::State;

TEST(Handshake, ProofsDependOnTheSecretTheStartAndTheRole) {
  const auto proof = KeyFrom("a secret").Prove("role", AsBytes("message"));
  EXPECT_EQ(proof, KeyFrom("a secret").Prove("role", AsBytes("message")));
  EXPECT_NE(proof, KeyFrom("another secret").Prove("role", AsBytes("message")));
  EXPECT_NE(proof, KeyFrom("a secret", "attempt 2").Prove("role", AsBytes("message")));
  EXPECT_NE(proof, KeyFrom("a secret").Prove("role 2", AsBytes("message")));
  EXPECT_NE(proof, KeyFrom("a secret").Prove("role", AsBytes("message 2")));
}

TEST(Handshake, AStrangerGetsNoMoreThanANonce) {
  const RankKey key = KeyFrom("a secret");
  auto [mine, theirs] = SocketPair();
  ServerHandshake server;
  EXPECT_EQ(server.Advance(mine.get(), key), State::kWaits);
  Say(theirs.get(), "MRRANK1\n" + std::string(32, 'n'));
  EXPECT_EQ(server.Advance(mine.get(), key), State::kWaits);
  const std::string nonce = ReadSome(theirs.get());
  EXPECT_EQ(nonce.size(), 32u);
  Say(theirs.get(), std::string(64, 'x'));
  EXPECT_EQ(server.Advance(mine.get(), key), State::kFailed);
  EXPECT_EQ(ReadSome(theirs.get()), "n" + std::string(32, '\0')) << "and no proof of this end";
}

TEST(Handshake, OtherProtocolsEndAtTheFirstMessage) {
  auto [mine, theirs] = SocketPair();
  ServerHandshake server;
  Say(theirs.get(), "GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: b\r\nAccept: */*\r\n\r\n");
  EXPECT_EQ(server.Advance(mine.get(), KeyFrom("a secret")), State::kFailed);
  EXPECT_EQ(ReadSome(theirs.get()), "");
}

TEST(Handshake, BytesMayComeOneByOne) {
  const RankKey key = KeyFrom("a secret");
  auto [mine, theirs] = SocketPair();
  ServerHandshake server;
  for (const char byte : "MRRANK1\n" + std::string(32, 'n')) {
    Say(theirs.get(), std::string(1, byte));
    EXPECT_EQ(server.Advance(mine.get(), key), State::kWaits);
  }
  EXPECT_EQ(ReadSome(theirs.get()).size(), 32u);
}

TEST(Handshake, WhatWasHeardCannotBeUsedAgain) {
  const RankKey key = KeyFrom("a secret");
  // Both ends of a good handshake, as one who reads the network hears them.
  auto [mine, theirs] = SocketPair();
  const std::string greeting = "MRRANK1\n" + std::string(32, 'n');
  ServerHandshake server;
  Say(theirs.get(), greeting);
  ASSERT_EQ(server.Advance(mine.get(), key), State::kWaits);
  const std::string nonces = std::string(32, 'n') + ReadSome(theirs.get());
  const std::string request(32, 'r');
  const auto proof = key.Prove("millrace rank, the end that connects\n", AsBytes(nonces + request));
  const std::string heard = request + std::string(AsText(proof));
  Say(theirs.get(), heard);
  ASSERT_EQ(server.Advance(mine.get(), key), State::kProved);
  EXPECT_EQ(AsText(server.request()), request);
  const std::string verdict = ReadSome(theirs.get());
  EXPECT_EQ(verdict.front(), 'y');

  auto [again_mine, again_theirs] = SocketPair();
  ServerHandshake again;
  Say(again_theirs.get(), greeting);
  ASSERT_EQ(again.Advance(again_mine.get(), key), State::kWaits);
  (void)ReadSome(again_theirs.get());
  Say(again_theirs.get(), heard);
  EXPECT_EQ(again.Advance(again_mine.get(), key), State::kFailed);
  // Nor does the other end's proof serve as one's own.
  EXPECT_NE(verdict.substr(1), AsText(proof));
}

TEST(SecretBytes, AreInNoCoreFile) {
  const SecretBytes secret(AsBytes("of sixteen bytes"));
  const SecretBytes copy = secret;
  EXPECT_EQ(AsText(copy.span()), "of sixteen bytes");
  const std::string maps = ReadFile("/proc/self/smaps").value();
  const std::string address = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(secret.span().data()));
  const std::size_t mapping = maps.find(address);
  ASSERT_NE(mapping, std::string::npos) << "a page of its own";
  const std::size_t flags = maps.find("VmFlags:", mapping);
  EXPECT_NE(maps.substr(flags, maps.find('\n', flags) - flags).find(" dd"), std::string::npos) << "do not dump";
  EXPECT_TRUE(SecretBytes().empty());
}

}  // namespace
}  // namespace millrace::collectives
