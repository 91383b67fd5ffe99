#include "millrace/checkpoint/read/diff.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"

#include <gmock/gmock.h>

#include <bit>

#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::checkpoint {
namespace {

using testing::State;
using Change = TensorDiff::Change;

class DiffTest : public ::testing::Test {
 protected:
  void Save(std::uint64_t step, const State& state, int ranks = 1) {
    testing::ThreadRanks group(ranks);
    std::vector<std::unique_ptr<Writer>> writers;
    auto shares = state.Share(ranks, 1);
    for (int rank = 0; rank < ranks; ++rank) {
      Writer::Options options{.url = "s3://bucket/run", .retention = {.keep_last = 100}, .chunk_bytes = 4096};
      writers.push_back(*Writer::Open(connection_, group.Rank(rank), budget_, options));
      ASSERT_TRUE(writers.back()->Save(step, shares[rank], {}));
    }
    for (auto& writer : writers) {
      const auto saved = writer->Wait();
      ASSERT_TRUE(saved) << saved.error().ToString();
    }
  }
  std::map<std::string, TensorDiff> Diff(std::uint64_t a, std::uint64_t b, DiffOptions options = {.window = 256}) {
    auto first = Reader::Open(connection_, "s3://bucket/run", a),
         second = Reader::Open(connection_, "s3://bucket/run", b);
    EXPECT_TRUE(first && second);
    if (!first || !second) return {};
    gets_ = store_->calls(object::Operation::kGet);
    std::map<std::string, TensorDiff> diffs;
    std::string last;
    const Status done = DiffCheckpoints(**first, **second, options, [&](const TensorDiff& diff) {
      EXPECT_LT(last, diff.name);
      last = diff.name;
      diffs[diff.name] = diff;
    });
    EXPECT_TRUE(done) << done.error().ToString();
    gets_ = store_->calls(object::Operation::kGet) - gets_;
    return diffs;
  }
  static State::Tensor Floats(const std::vector<float>& values) {
    State::Tensor tensor{{DType::kF32, {static_cast<std::int64_t>(values.size())}}, {}};
    const auto bytes = std::as_bytes(std::span(values));
    tensor.bytes.assign(bytes.begin(), bytes.end());
    return tensor;
  }

  std::shared_ptr<object::FaultStore> store_ =
      object::FaultStore::Create(object::MakeMemoryStore(object::MemoryStoreOptions{}));
  testing::StoreConnection connection_{store_};
  MemoryBudget budget_{16 * kMiB};
  std::uint64_t gets_ = 0;
};

TEST_F(DiffTest, WhatTheChecksumsProveIsNotRead) {
  const State state = State::Random(1, 8, 8000);
  Save(1, state, 2);
  Save(2, state, 2);
  for (const auto& [name, diff] : Diff(1, 2)) {
    EXPECT_EQ(diff.change, Change::kSame) << name;
    EXPECT_TRUE(diff.by_checksum) << name;
  }
  EXPECT_EQ(gets_, 0u);
  Save(3, state, 3);  // the same bytes, elsewhere
  for (const auto& [name, diff] : Diff(1, 3)) EXPECT_EQ(diff.change, Change::kSame) << name;
}

TEST_F(DiffTest, FindsEveryChangeAndItsSize) {
  State state = State::Random(3, 6, 4000);
  state.tensors["model/w"] = Floats({1, -8, 3, 0.5});
  state.tensors["model/gone"] = Floats({1});
  state.tensors["model/shape"] = Floats({1, 2});
  state.tensors["model/type"] = Floats({1, 2});
  Save(1, state);
  State changed = state;
  changed.tensors["model/w"] = Floats({1, -8.5, 3, 2.5});
  changed.tensors.erase("model/gone");
  changed.tensors["model/new"] = Floats({1});
  changed.tensors["model/shape"] = Floats({1, 2, 3});
  changed.tensors["model/type"].meta.dtype = DType::kI32;
  Random random(5);
  std::map<std::string, std::uint64_t> flipped;
  for (auto& [name, tensor] : changed.tensors) {
    if (name.starts_with("model/") && !name.starts_with("model/t")) continue;
    if (tensor.bytes.empty() || random.Below(2)) continue;
    tensor.bytes[random.Below(tensor.bytes.size())] ^= std::byte{1};
    flipped[name] = 1;
  }
  Save(2, changed);
  auto diffs = Diff(1, 2, {.values = true, .window = 64});
  EXPECT_EQ(diffs["model/gone"].change, Change::kOnlyInFirst);
  EXPECT_EQ(diffs["model/new"].change, Change::kOnlyInSecond);
  EXPECT_EQ(diffs["model/shape"].change, Change::kReshaped);
  EXPECT_EQ(diffs["model/type"].change, Change::kRetyped) << "of the same shape";
  EXPECT_EQ(diffs["model/type"].second.dtype, DType::kI32);
  EXPECT_EQ(diffs["model/w"].change, Change::kChanged);
  EXPECT_EQ(diffs["model/w"].elements, 2u);
  EXPECT_EQ(diffs["model/w"].max_change, 2.0);
  EXPECT_EQ(diffs["model/w"].max_value, 8.0);
  for (const auto& [name, tensor] : state.tensors) {
    if (name.starts_with("model/") && !name.starts_with("model/t")) continue;
    EXPECT_EQ(diffs[name].change == Change::kChanged, flipped.contains(name)) << name;
    EXPECT_EQ(diffs[name].elements, flipped[name]);
  }
  EXPECT_EQ(Diff(1, 2)["model/w"].max_change, std::nullopt) << "nobody asked";
}

TEST_F(DiffTest, ReadsEveryType) {
  const auto one = [](DType dtype, std::uint64_t bits) {
    State::Tensor tensor{{dtype, {1}}, std::vector<std::byte>(8)};
    StoreLittle(tensor.bytes.data(), bits);
    tensor.bytes.resize(DTypeBytes(dtype));
    return tensor;
  };
  struct Case {
    DType dtype;
    std::uint64_t a, b;
    double change;
  };
  const Case cases[] = {{DType::kF32, std::bit_cast<std::uint32_t>(1.5f), std::bit_cast<std::uint32_t>(-1.0f), 2.5},
                        {DType::kF16, 0x3c00, 0xc000, 3},  // 1, -2
                        {DType::kF16, 0x0001, 0x0000, 0x1p-24},
                        {DType::kBF16, 0x3f80, 0x4040, 2},  // 1, 3
                        {DType::kI64, static_cast<std::uint64_t>(-5), 5, 10},
                        {DType::kI32, 0xffffffff, 1, 2},
                        {DType::kU8, 255, 0, 255},
                        {DType::kBool, 1, 0, 1}};
  State first, second;
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    first.tensors[fmt::format("t{}", i)] = one(cases[i].dtype, cases[i].a);
    second.tensors[fmt::format("t{}", i)] = one(cases[i].dtype, cases[i].b);
  }
  Save(1, first);
  Save(2, second);
  auto diffs = Diff(1, 2, {.values = true});
  for (std::size_t i = 0; i < std::size(cases); ++i)
    EXPECT_EQ(diffs[fmt::format("t{}", i)].max_change, cases[i].change) << i;
}

}  // namespace
}  // namespace millrace::checkpoint
