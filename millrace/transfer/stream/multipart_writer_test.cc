#include "millrace/transfer/stream/multipart_writer.h"

#include <gtest/gtest.h>

#include <thread>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/random.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::transfer {
namespace {

using object::FaultStore;
using object::Operation;

std::string Noise(std::size_t size, std::uint64_t seed = 1) {
  std::string text(size, '\0');
  Random random(seed);
  for (char& c : text) c = static_cast<char>(random.Next());
  return text;
}

class MultipartWriterTest : public testing::Test {
 protected:
  std::string Content(const std::string& key) {
    auto content = object::GetAll(*store_, key, kGiB);
    return content && *content ? (*content)->bytes : "<absent>";
  }
  std::size_t Uploads() { return object::ListUploads(*store_, "")->size(); }

  std::shared_ptr<FaultStore> store_ = FaultStore::Create(
      object::MakeMemoryStore({.limits = {.min_part = 1000, .max_part = 1'000'000, .max_parts = 40}}));
  MemoryBudget budget_{20'000};
  MultipartWriter::Options options_{.part_bytes = 1000, .parallel_parts = 3};
};

TEST_F(MultipartWriterTest, EverySizeArrivesWhole) {
  Random random(5);
  for (std::size_t size : {0u, 1u, 999u, 1000u, 1001u, 2000u, 2001u, 9'999u, 30'000u}) {
    for (std::uint64_t expected : {std::uint64_t{0}, std::uint64_t{size}, std::uint64_t{1500}}) {
      std::string content = Noise(size, size);
      options_.expected_bytes = expected;
      MultipartWriter writer(*store_, budget_, "k", options_);
      for (std::size_t at = 0; at < size;) {
        std::size_t n = std::min<std::size_t>(size - at, random.Below(1700) + 1);
        ASSERT_TRUE(writer.Write(AsBytes(content).subspan(at, n)));
        at += n;
      }
      EXPECT_EQ(writer.bytes_written(), size);
      auto finished = writer.Finish();
      ASSERT_TRUE(finished) << size << ": " << finished.error().ToString();
      EXPECT_EQ(finished->size, size);
      EXPECT_EQ(finished->crc32c, Crc32c(AsBytes(content)));
      EXPECT_EQ(Content("k"), content);
      EXPECT_EQ((*object::Head(*store_, "k"))->etag, finished->etag);
    }
  }
  EXPECT_EQ(budget_.used(), 0u);
  EXPECT_LE(budget_.peak(), budget_.total());
  EXPECT_EQ(Uploads(), 0u);
}

TEST_F(MultipartWriterTest, SmallObjectsAreOnePut) {
  MultipartWriter writer(*store_, budget_, "k", options_);
  ASSERT_TRUE(writer.Write(AsBytes(Noise(1000))));
  ASSERT_TRUE(writer.Finish());
  EXPECT_EQ(store_->calls(Operation::kPut), 1u);
  EXPECT_EQ(store_->calls(Operation::kCreateMultipart), 0u);
}

TEST_F(MultipartWriterTest, PartsGrowSoThatTheirNumberStaysInBounds) {
  MemoryBudget budget(10'000'000);
  std::string content = Noise(500'000);
  MultipartWriter writer(*store_, budget, "k", options_);  // 40 parts of 1000 bytes would end at 40,000
  ASSERT_TRUE(writer.Write(AsBytes(content)));
  auto finished = writer.Finish();
  ASSERT_TRUE(finished) << finished.error().ToString();
  EXPECT_EQ(Content("k"), content);
  EXPECT_LE(store_->calls(Operation::kUploadPart), 40u);
}

TEST_F(MultipartWriterTest, KnownSizesChooseTheirParts) {
  MemoryBudget budget(10'000'000);
  options_.expected_bytes = 200'000;
  std::string content = Noise(200'000);
  MultipartWriter writer(*store_, budget, "k", options_);
  ASSERT_TRUE(writer.Write(AsBytes(content)));
  ASSERT_TRUE(writer.Finish());
  EXPECT_EQ(Content("k"), content);
  EXPECT_EQ(store_->calls(Operation::kUploadPart), 40u);
}

TEST_F(MultipartWriterTest, ATooLongStreamSaysWhatToDo) {
  std::string content = Noise(2'000'000);
  MultipartWriter writer(*store_, budget_, "k", options_);  // parts stay within half of 20,000 bytes
  Status written = writer.Write(AsBytes(content));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), Code::kResourceExhausted);
  EXPECT_NE(written.error().message().find("larger parts"), std::string::npos);
}

TEST_F(MultipartWriterTest, NothingShowsAndNothingStaysWithoutFinish) {
  {
    MultipartWriter writer(*store_, budget_, "k", options_);
    ASSERT_TRUE(writer.Write(AsBytes(Noise(9000))));
    EXPECT_EQ(Content("k"), "<absent>");
    EXPECT_EQ(Uploads(), 1u);
  }
  EXPECT_EQ(Content("k"), "<absent>");
  EXPECT_EQ(Uploads(), 0u);
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(MultipartWriterTest, AFailedPartFailsEveryLaterCall) {
  store_->Add({.operation = Operation::kUploadPart, .skip = 1, .fault = {.code = Code::kPermissionDenied}});
  MultipartWriter writer(*store_, budget_, "k", options_);
  Status written;
  for (int i = 0; i < 20 && written; ++i) written = writer.Write(AsBytes(Noise(1000)));
  auto finished = writer.Finish();
  ASSERT_FALSE(finished);
  EXPECT_EQ(finished.error().code(), Code::kPermissionDenied);
  EXPECT_NE(finished.error().ToString().find("part 2 of k"), std::string::npos) << finished.error().ToString();
  writer.Abort();
  EXPECT_EQ(Uploads(), 0u);
}

TEST_F(MultipartWriterTest, ConditionsApplyOnPublishing) {
  ASSERT_TRUE(object::Put(*store_, "k", AsBytes("first")));
  options_.put.if_none_match = true;
  for (std::size_t size : {10u, 5000u}) {
    MultipartWriter writer(*store_, budget_, "k", options_);
    ASSERT_TRUE(writer.Write(AsBytes(Noise(size))));
    auto finished = writer.Finish();
    ASSERT_FALSE(finished);
    EXPECT_EQ(finished.error().code(), Code::kPreconditionFailed);
  }
  EXPECT_EQ(Content("k"), "first");
  EXPECT_EQ(Uploads(), 0u);
}

TEST_F(MultipartWriterTest, StopsWaitingWhenCancelled) {
  FakeClock clock;
  auto slow = FaultStore::Create(object::MakeMemoryStore({.limits = {.min_part = 1000}}), 1, clock);
  slow->Add({.operation = Operation::kUploadPart, .times = -1, .fault = {.latency = std::chrono::hours(1)}});
  std::stop_source stop;
  MultipartWriter writer(*slow, budget_, "k", options_);
  std::jthread canceller([&] {
    clock.AwaitSleepers(3);
    stop.request_stop();
  });
  Status written = writer.Write(AsBytes(Noise(15'000)), {.stop = stop.get_token()});
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), Code::kCancelled);
}

TEST_F(MultipartWriterTest, ManyWritersShareOneBudget) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      std::string content = Noise(12'345, static_cast<std::uint64_t>(t));
      MultipartWriter writer(*store_, budget_, "k" + std::to_string(t), options_);
      ASSERT_TRUE(writer.Write(AsBytes(content)));
      ASSERT_TRUE(writer.Finish());
      EXPECT_EQ(Content("k" + std::to_string(t)), content);
    });
  }
  threads.clear();
  EXPECT_LE(budget_.peak(), budget_.total());
}

}  // namespace
}  // namespace millrace::transfer
