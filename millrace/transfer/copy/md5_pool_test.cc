#include "millrace/transfer/copy/md5_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/hash/random.h"

namespace millrace::transfer {
namespace {

std::string Letters(std::size_t size, std::uint64_t seed) {
  std::string bytes(size, '\0');
  Random random(seed);
  for (char& c : bytes) c = static_cast<char>(random.Next());
  return bytes;
}

void AppendAll(Md5Pool::Stream& stream, const std::string& message) {
  for (std::size_t at = 0; at < message.size(); at += Md5Pool::kPieceBytes) {
    const ByteSpan bytes = AsBytes(message).subspan(at, std::min(Md5Pool::kPieceBytes, message.size() - at));
    Buffer piece = stream.NewPiece();
    std::ranges::copy(bytes, piece.data());
    stream.Append(std::move(piece), bytes.size());
  }
}

TEST(Md5Pool, OneStreamAlone) {
  Md5Pool pool;
  Md5Pool::Stream stream(pool);
  for (std::size_t size : {0u, 1u, 65'535u, 65'536u, 65'537u, 300'001u}) {
    const std::string message = Letters(size, size);
    AppendAll(stream, message);
    EXPECT_EQ(stream.Finish(), Md5(AsBytes(message))) << size;
  }
}

TEST(Md5Pool, AResetForgetsWhatWasAppended) {
  Md5Pool pool;
  Md5Pool::Stream stream(pool);
  AppendAll(stream, Letters(200'000, 1));
  stream.Reset();
  AppendAll(stream, "abc");
  EXPECT_EQ(stream.Finish(), Md5(AsBytes("abc")));
}

TEST(Md5Pool, StreamsOfOneThreadDoNotWaitForEachOther) {
  Md5Pool pool;
  std::vector<std::unique_ptr<Md5Pool::Stream>> streams;
  std::vector<std::string> messages;
  for (std::size_t i = 0; i < 21; ++i) {
    streams.push_back(std::make_unique<Md5Pool::Stream>(pool));
    messages.push_back(Letters(65'536 * (i % 4) + i, i));
  }
  for (std::size_t i = 0; i < streams.size(); ++i) AppendAll(*streams[i], messages[i]);
  streams[3].reset();  // one that is given up
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (streams[i]) {
      EXPECT_EQ(streams[i]->Finish(), Md5(AsBytes(messages[i]))) << i;
    }
  }
}

TEST(Md5Pool, ThreadsShareTheWork) {
  Md5Pool pool;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      Md5Pool::Stream stream(pool);
      for (std::uint64_t round = 0; round < 4; ++round) {
        const std::string message = Letters(100'000 * (i + round) + 7, i);
        AppendAll(stream, message);
        EXPECT_EQ(stream.Finish(), Md5(AsBytes(message)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace millrace::transfer
