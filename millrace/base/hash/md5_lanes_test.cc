#include "millrace/base/hash/md5_lanes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "millrace/base/hash/random.h"

namespace millrace {
namespace {

std::string RandomBytes(std::size_t size, std::uint64_t seed) {
  std::string bytes(size, '\0');
  Random random(seed);
  for (char& c : bytes) c = static_cast<char>(random.Next());
  return bytes;
}

TEST(Md5Lanes, EveryNumberOfLanesGivesTheDigestsOfOpenSsl) {
  for (std::size_t count = 1; count <= kMd5Lanes; ++count) {
    for (std::size_t blocks : {1u, 2u, 7u}) {
      std::vector<std::string> messages;
      std::vector<Md5State> states(count);
      std::vector<Md5Lane> lanes;
      for (std::size_t i = 0; i < count; ++i) messages.push_back(RandomBytes(blocks * kMd5BlockBytes, 100 * count + i));
      for (std::size_t i = 0; i < count; ++i) lanes.push_back({&states[i], AsBytes(messages[i]).data()});
      Md5Compress(lanes, blocks);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(Md5Finish(states[i], {}, messages[i].size()), Md5(AsBytes(messages[i])))
            << count << " lanes, lane " << i;
      }
    }
  }
}

TEST(Md5Lanes, EveryInstructionSetGivesTheSameStates) {
  constexpr std::size_t kBlocks = 3;
  std::vector<std::string> messages;
  for (std::size_t i = 0; i < kMd5Lanes; ++i) messages.push_back(RandomBytes(kBlocks * kMd5BlockBytes, i));
  for (std::size_t count : {std::size_t{1}, kMd5Lanes / 2, kMd5Lanes}) {
    for (const Md5Variant& variant : Md5Variants()) {
      std::vector<Md5State> states(count);
      std::vector<Md5Lane> lanes;
      for (std::size_t i = 0; i < count; ++i) lanes.push_back({&states[i], AsBytes(messages[i]).data()});
      variant.compress(lanes, kBlocks);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(Md5Finish(states[i], {}, messages[i].size()), Md5(AsBytes(messages[i])))
            << variant.instruction_set << ", " << count << " lanes, lane " << i;
      }
    }
  }
}

TEST(Md5Lanes, TheEndOfAMessageMayHaveAnyLength) {
  for (std::size_t size = 0; size <= 3 * kMd5BlockBytes; ++size) {
    const std::string message = RandomBytes(size, size + 1);
    EXPECT_EQ(Md5Finish({}, AsBytes(message), size), Md5(AsBytes(message))) << size;
  }
}

TEST(Md5Lanes, LanesGoOnFromTheirOwnStates) {
  const std::string first = RandomBytes(640, 1), second = RandomBytes(640, 2);
  Md5State a, b;
  Md5Compress(std::vector<Md5Lane>{{&a, AsBytes(first).data()}}, 5);
  Md5Compress(std::vector<Md5Lane>{{&b, AsBytes(second).data()}, {&a, AsBytes(first).data() + 320}}, 5);
  EXPECT_EQ(Md5Finish(a, {}, 640), Md5(AsBytes(first)));
  EXPECT_EQ(Md5Finish(b, AsBytes(second).subspan(320), 640), Md5(AsBytes(second)));
}

}  // namespace
}  // namespace millrace
