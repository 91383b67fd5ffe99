// What is saved on any ranks comes back on any, wholly or in parts, and damage is found.
#include <gmock/gmock.h>

#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/save_slice.h"
#include "millrace/checkpoint/testing/checkpoint_test_base.h"

namespace millrace::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kUrl;
using testing::State;

class ReaderTest : public testing::CheckpointTest {};

TEST_F(ReaderTest, WhatIsSavedComesBack) {
  State state = State::Random(1);
  auto writer = Open();
  ASSERT_TRUE(Save(*writer, 150, state, {{"loss", 2.5}}));
  EXPECT_THAT(Steps(), ElementsAre(150));
  auto reader = MustOpen();
  EXPECT_EQ(reader->name(), store_->Describe() + "/runs/a/step-00000150");
  EXPECT_EQ(reader->manifest().meta, Json({{"loss", 2.5}}));
  EXPECT_EQ(reader->manifest().step, 150u);
  state.ExpectReadBack(*reader, 1);
  auto verified = reader->Verify();
  ASSERT_TRUE(verified);
  EXPECT_EQ(verified->files, 1u);
  EXPECT_GT(verified->chunks, 1u);
}

TEST_F(ReaderTest, AUrlBesideTheCheckpointsNamesTheirs) {
  EXPECT_THAT(Reader::Open(connection_, kUrl, std::nullopt).error().message(),
              HasSubstr("has no committed checkpoint"));
  auto writer = Open();
  ASSERT_TRUE(Save(*writer, 150, State::Random(1)));
  const std::string url(kUrl), run = url.substr(0, url.find_last_of('/'));
  for (const std::string end : {"", "/"}) {
    EXPECT_EQ(Reader::Open(connection_, run + end, std::nullopt).error().message(),
              run + " has no committed checkpoint; to use those of its folder a, give " + url);
    const auto step = Reader::Open(connection_, url + "/step-00000150" + end, std::nullopt);
    EXPECT_EQ(step.error().code(), Code::kNotFound);
    EXPECT_EQ(step.error().message(),
              url + "/step-00000150 is the folder of one checkpoint; use " + url + " and its step, 150");
  }
}

TEST_F(ReaderTest, AnyRanksSaveAndAnyRanksLoad) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    State state = State::Random(seed);
    const int ranks = 1 + static_cast<int>(seed % 3);
    for (auto& result : SaveOnRanks(seed, state.Share(ranks, seed))) {
      ASSERT_TRUE(result) << result.error().ToString();
      EXPECT_EQ((*result)->step, seed);
    }
    auto reader = MustOpen(seed);
    EXPECT_EQ(reader->manifest().ranks, ranks);
    for (int readers = 1; readers <= 3; ++readers) state.ExpectReadBack(*reader, readers);
    EXPECT_TRUE(reader->Verify(3));
  }
}

TEST_F(ReaderTest, RandomSlicesReadRight) {
  State state = State::Random(5, 6, 40'000);
  SaveOnRanks(1, state.Share(3, 9));
  auto reader = MustOpen();
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<Reader::TensorRange> wanted;
    std::vector<std::vector<std::byte>> into(4);
    std::vector<ByteSpan> expected;
    for (auto& bytes : into) {
      auto tensor = std::next(state.tensors.begin(), static_cast<long>(random.Below(state.tensors.size())));
      const std::uint64_t total = tensor->second.meta.elements(), element = DTypeBytes(tensor->second.meta.dtype);
      const std::uint64_t begin = random.Below(total + 1), take = random.Below(total - begin + 1);
      bytes.resize(take * element);
      expected.push_back(ByteSpan(tensor->second.bytes).subspan(begin * element, take * element));
      wanted.push_back({tensor->first, begin, bytes});
    }
    ASSERT_TRUE(reader->ReadMany(wanted, 1 + round % 4));
    for (std::size_t i = 0; i < into.size(); ++i) ASSERT_TRUE(std::ranges::equal(into[i], expected[i]));
  }
}

TEST_F(ReaderTest, AnyBoxesLoadAsAnyBoxes) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    State state = State::Random(seed, 6, 600);
    for (auto& [name, tensor] : state.tensors) {
      if (tensor.meta.shape.empty()) continue;
      tensor.meta.shape = {3, static_cast<std::int64_t>(1 + random.Below(40)), 2, 5};
      tensor.bytes.resize(tensor.meta.bytes());
      for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random.Next());
    }
    std::vector<std::vector<std::byte>> memory;
    const int ranks = 1 + static_cast<int>(seed % 4);
    for (auto& result : SaveOnRanks(seed, state.ShareBoxes(ranks, seed, memory)))
      ASSERT_TRUE(result) << result.error().ToString();
    auto reader = MustOpen(seed);
    state.ExpectReadBack(*reader, 2);
    for (const auto& [name, tensor] : state.tensors) {
      for (const Box& box : State::Grid(tensor.meta.shape, random)) {
        const auto expected = State::BoxBytes(tensor, box);
        const std::uint64_t element = DTypeBytes(tensor.meta.dtype);
        const std::uint64_t begin = random.Below(expected.size() / element + 1);
        std::vector<std::byte> into(expected.size() - begin * element);
        ASSERT_TRUE(reader->ReadMany({{name, begin, into, box}}, 2));
        ASSERT_TRUE(std::ranges::equal(into, ByteSpan(expected).subspan(begin * element))) << name << ToString(box);
      }
    }
  }
}

TEST_F(ReaderTest, AShardIsReadWithoutItsNeighbours) {
  State state;
  state.tensors["model/w"] = {{DType::kF32, {64, 4096}}, std::vector<std::byte>(1 << 20)};
  std::vector<std::vector<SaveSlice>> shares;
  std::vector<std::vector<std::byte>> columns(8);
  for (std::uint64_t rank = 0; rank < 8; ++rank) {
    const Box box{{0, rank * 512}, {64, 512}};
    columns[rank] = State::BoxBytes(state.tensors["model/w"], box);
    shares.push_back({{"model/w", {DType::kF32, {64, 4096}}, 0, columns[rank], box}});
  }
  for (auto& result : SaveOnRanks(1, shares)) ASSERT_TRUE(result);
  auto reader = MustOpen(1);
  const auto before = store_->calls(object::Operation::kGet);
  std::vector<std::byte> half(1 << 19);
  ASSERT_TRUE(reader->ReadMany({{"model/w", 0, half, {{0, 2048}, {64, 2048}}}}, 4));
  EXPECT_EQ(store_->calls(object::Operation::kGet) - before, 4u) << "one request for each rank whose columns these are";
}

TEST_F(ReaderTest, RefusesWrongRequests) {
  State state;
  state.tensors["model/x"] = {{DType::kF32, {4}}, std::vector<std::byte>(16)};
  ASSERT_TRUE(Save(*Open(), 1, state));
  auto reader = MustOpen();
  std::byte into[20];
  EXPECT_EQ(reader->Read("model/y", 0, MutableByteSpan(into, 4)).error().code(), Code::kNotFound);
  EXPECT_EQ(reader->Read("model/x", 0, MutableByteSpan(into, 20)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(reader->Read("model/x", 5, MutableByteSpan(into, 0)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(reader->Read("model/x", ~0ull, MutableByteSpan(into, 4)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(reader->Read("model/x", 0, MutableByteSpan(into, 3)).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(reader->Read("model/x", 4, MutableByteSpan(into, 0)));
  EXPECT_EQ(Reader::Open(connection_, kUrl, 2).error().code(), Code::kNotFound);
  EXPECT_EQ(Reader::Open(connection_, "s3://bucket/elsewhere").error().code(), Code::kNotFound);
}

TEST_F(ReaderTest, EveryDamageIsFoundAndNamed) {
  State state = State::Random(4, 4, 2000);
  SaveOnRanks(3, state.Share(2, 4));
  Random random(11);
  for (const std::string& key : Keys("runs/a/step-00000003/")) {
    const std::string good = object::GetAll(*store_, key, 1 * kMiB)->value().bytes;
    for (int round = 0; round < 60; ++round) {
      std::string bad = good;
      const std::size_t at = round == 0 ? 0 : round == 1 ? bad.size() - 1 : random.Below(bad.size());
      bad[at] = static_cast<char>(bad[at] ^ (1 << random.Below(8)));
      ASSERT_TRUE(object::Put(*store_, key, AsBytes(bad)));
      auto verified = MustOpen()->Verify();
      ASSERT_FALSE(verified);
      EXPECT_EQ(verified.error().code(), Code::kCorrupt);
      EXPECT_THAT(verified.error().ToString(), HasSubstr(key.substr(key.rfind("rank-"))));
      EXPECT_THAT(verified.error().ToString(), HasSubstr(fmt::format("bytes {} to", at / 4096 * 4096)));
    }
    for (std::size_t size : {std::size_t{0}, good.size() / 2, good.size() - 1, good.size() + 1}) {
      std::string bad = good;
      bad.resize(size);
      ASSERT_TRUE(object::Put(*store_, key, AsBytes(bad)));
      EXPECT_EQ(MustOpen()->Verify().error().code(), Code::kCorrupt) << size;
    }
    ASSERT_TRUE(object::Delete(*store_, key));
    EXPECT_EQ(MustOpen()->Verify().error().code(), Code::kNotFound);
    ASSERT_TRUE(object::Put(*store_, key, AsBytes(good)));
  }
  EXPECT_TRUE(MustOpen()->Verify());
}

}  // namespace
}  // namespace millrace::checkpoint
