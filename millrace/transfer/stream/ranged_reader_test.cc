#include "millrace/transfer/stream/ranged_reader.h"

#include <gtest/gtest.h>

#include <thread>

#include "millrace/base/hash/random.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::transfer {
namespace {

using object::FaultStore;
using object::Operation;

class RangedReaderTest : public testing::Test {
 protected:
  object::ObjectInfo MustPut(std::size_t size) {
    content_.resize(size);
    Random random(size);
    for (char& c : content_) c = static_cast<char>(random.Next());
    EXPECT_TRUE(object::Put(*store_, "k", AsBytes(content_)));
    return **object::Head(*store_, "k");
  }
  Result<std::string> ReadAll(RangedReader& reader, object::Call call = {}) {
    std::string all;
    for (;;) {
      ByteSpan piece = MR_TRY(reader.Next(call));
      if (piece.empty()) return all;
      all += AsText(piece);
    }
  }

  std::shared_ptr<FaultStore> store_ = FaultStore::Create(object::MakeMemoryStore());
  MemoryBudget budget_{16'000};
  std::string content_;
};

TEST_F(RangedReaderTest, ReadsWholesAndRanges) {
  for (std::size_t size : {0u, 1u, 999u, 1000u, 1001u, 25'500u}) {
    object::ObjectInfo info = MustPut(size);
    RangedReader whole(*store_, budget_, info, {.part_bytes = 1000, .parallel_parts = 4});
    EXPECT_EQ(ReadAll(whole).value_or("<error>"), content_) << size;
    RangedReader range(*store_, budget_, info,
                       {.part_bytes = 700, .parallel_parts = 4, .range = object::ByteRange{500, 9000}});
    EXPECT_EQ(ReadAll(range).value_or("<error>"), size <= 500 ? "" : content_.substr(500, 9000)) << size;
  }
  EXPECT_LE(budget_.peak(), budget_.total());
}

TEST_F(RangedReaderTest, UnorderedPiecesSayWhereTheyBelong) {
  object::ObjectInfo info = MustPut(25'500);
  FakeClock clock;
  auto slow = FaultStore::Create(store_, 1, clock);
  slow->Add({.operation = Operation::kGet, .fault = {.latency = std::chrono::hours(1)}});  // the first part
  RangedReader reader(*slow, budget_, info, {.part_bytes = 1000, .parallel_parts = 4, .in_order = false});
  std::string content(25'500, '?');
  for (std::size_t got = 0; got < content.size();) {
    auto piece = reader.Next();
    ASSERT_TRUE(piece);
    EXPECT_TRUE(got > 0 || reader.offset() > 0);
    content.replace(reader.offset(), piece->size(), AsText(*piece));
    got += piece->size();
    if (got != 24'500) continue;
    clock.AwaitSleepers(1);
    clock.Advance(std::chrono::hours(1));
  }
  EXPECT_EQ(content, content_);
  EXPECT_TRUE(reader.Next()->empty());
}

TEST_F(RangedReaderTest, PartsShrinkToASmallBudget) {
  object::ObjectInfo info = MustPut(100'000);
  MemoryBudget small(3000);
  RangedReader reader(*store_, small, info, {.part_bytes = 50'000, .parallel_parts = 8});
  EXPECT_EQ(ReadAll(reader).value_or("<error>"), content_);
  EXPECT_LE(small.peak(), 3000u);
}

TEST_F(RangedReaderTest, AnotherVersionIsStale) {
  object::ObjectInfo info = MustPut(10'000);
  RangedReader reader(*store_, budget_, info, {.part_bytes = 1000, .parallel_parts = 2});
  ASSERT_TRUE(reader.Next());
  MustPut(10'001);
  auto rest = ReadAll(reader);
  ASSERT_FALSE(rest);
  EXPECT_EQ(rest.error().code(), Code::kStale);
  info = MustPut(5000);
  ASSERT_TRUE(object::Delete(*store_, "k"));
  RangedReader gone(*store_, budget_, info, {});
  EXPECT_EQ(gone.Next().error().code(), Code::kStale);
}

TEST_F(RangedReaderTest, AFailureReachesTheReaderInOrder) {
  object::ObjectInfo info = MustPut(5000);
  store_->Add({.operation = Operation::kGet, .skip = 2, .fault = {.code = Code::kUnavailable}});
  RangedReader reader(*store_, budget_, info, {.part_bytes = 1000, .parallel_parts = 5});
  EXPECT_EQ(AsText(*reader.Next()), content_.substr(0, 1000));
  EXPECT_EQ(AsText(*reader.Next()), content_.substr(1000, 1000));
  EXPECT_EQ(reader.Next().error().code(), Code::kUnavailable);
}

TEST_F(RangedReaderTest, StopsWaitingWhenCancelled) {
  FakeClock clock;
  auto slow = FaultStore::Create(store_, 1, clock);
  object::ObjectInfo info = MustPut(5000);
  slow->Add({.operation = Operation::kGet, .times = -1, .fault = {.latency = std::chrono::hours(1)}});
  std::stop_source stop;
  RangedReader reader(*slow, budget_, info, {.part_bytes = 1000});
  std::jthread canceller([&] {
    clock.AwaitSleepers(1);
    stop.request_stop();
  });
  EXPECT_EQ(reader.Next({.stop = stop.get_token()}).error().code(), Code::kCancelled);
}

TEST_F(RangedReaderTest, ReadIntoFillsCallersMemory) {
  object::ObjectInfo info = MustPut(10'000);
  std::string into(7000, '?');
  ASSERT_TRUE(ReadInto(*store_, info, 1234, AsWritableBytes(into), 3, 1000));
  EXPECT_EQ(into, content_.substr(1234, 7000));
  EXPECT_TRUE(ReadInto(*store_, info, 10'000, {}, 3, 1000));
  EXPECT_EQ(ReadInto(*store_, info, 5000, AsWritableBytes(into)).error().code(), Code::kInvalidArgument);
  store_->Add({.operation = Operation::kGet, .skip = 3, .fault = {.code = Code::kPermissionDenied}});
  EXPECT_EQ(ReadInto(*store_, info, 0, AsWritableBytes(into), 2, 1000).error().code(), Code::kPermissionDenied);
  MustPut(10'002);
  EXPECT_EQ(ReadInto(*store_, info, 0, AsWritableBytes(into), 2, 1000).error().code(), Code::kStale);
}

}  // namespace
}  // namespace millrace::transfer
