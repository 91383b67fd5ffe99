#include "millrace/vfs/write/writer.h"

#include <gtest/gtest.h>

#include <set>

#include "millrace/base/hash/random.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::vfs {
namespace {

using object::Operation;

std::string Noise(std::size_t size, std::uint64_t seed) {
  std::string text(size, '\0');
  Random random(seed);
  for (char& c : text) c = static_cast<char>(random.Next());
  return text;
}

TEST(PartLayoutTest, PartsFollowEachOtherAndGrow) {
  const PartLayout layout(8, 64, 100);
  std::uint64_t at = 0;
  for (int number = 1; number <= 100; ++number) {
    const Interval range = layout.Range(number);
    EXPECT_EQ(range.begin, at);
    EXPECT_EQ(range.size(), std::min(64u, 8u << ((number - 1) / 10))) << number;
    EXPECT_EQ(layout.IndexOf(range.begin), number);
    EXPECT_EQ(layout.IndexOf(range.end - 1), number);
    at = range.end;
  }
  EXPECT_EQ(layout.max_size(), at);
  EXPECT_GT(PartLayout(8 * kMiB, 5 * kGiB, 10'000).max_size(), 5 * 1024 * kGiB) << "what S3 can hold";
}

/// A writer over a memory store that can be made to fail; parts of 256 bytes at first.
class WriterTest : public testing::Test {
 protected:
  static constexpr object::Limits kLimits{.min_part = 64, .max_part = 4096, .max_parts = 60, .max_put = 4096};

  explicit WriterTest(std::shared_ptr<object::Store> memory = nullptr) {
    if (memory) {
      inner = std::move(memory);
      store = object::FaultStore::Create(inner, 1, clock);
    }
    auto opened = cache::BlockCache::Open(
        *store, budget, {.block_bytes = 4 * kKiB, .max_fetch_bytes = 8 * kKiB, .memory_bytes = 64 * kKiB});
    EXPECT_TRUE(opened) << opened.error().ToString();
    cache = *std::move(opened);
  }
  std::unique_ptr<StagingArea> Area(std::uint64_t limit) {
    return *StagingArea::Open({.directory = folder.path(), .limit_bytes = limit, .target = "memory:"});
  }
  std::unique_ptr<Writer> Make(Writer::Start start) {
    return std::make_unique<Writer>(Writer::Environment{.store = *store,
                                                        .cache = *cache,
                                                        .budget = budget,
                                                        .staging = *staging,
                                                        .uploads = uploads,
                                                        .clock = clock,
                                                        .part_bytes = 256,
                                                        .parallel_parts = 3},
                                    std::move(start));
  }
  cache::ObjectVersion PutObject(const std::string& content) {
    auto put = object::Put(*inner, "f", AsBytes(content), {.metadata = {{"mode", "33188"}}});
    return {"f", put->etag, content.size()};
  }
  std::string Object() {
    auto content = object::GetAll(*inner, "f", kMiB);
    return content && *content ? (*content)->bytes : "<absent>";
  }
  Result<std::string> Read(Writer& writer, std::uint64_t offset, std::size_t size) {
    std::string bytes(size, '?');
    auto read_stored = [&](const cache::ObjectVersion& version, std::uint64_t at, MutableByteSpan into) {
      return cache->Read(version, at, into);
    };
    bytes.resize(MR_TRY(writer.Read(offset, AsWritableBytes(bytes), read_stored, {})));
    return bytes;
  }

  FakeClock clock;
  TempDir folder = *TempDir::Create();
  MemoryBudget budget{4 * kMiB};
  std::shared_ptr<object::Store> inner = object::MakeMemoryStore({.limits = kLimits, .clock = &clock});
  std::shared_ptr<object::FaultStore> store = object::FaultStore::Create(inner, 1, clock);
  std::unique_ptr<cache::BlockCache> cache;
  std::unique_ptr<StagingArea> staging = Area(kMiB);
  object::WorkQueue uploads{"upload", 3};
};

TEST_F(WriterTest, PartsLeaveWhileTheFileIsWritten) {
  const std::string content = Noise(3000, 1);
  auto writer = Make({.key = "f"});
  for (std::size_t at = 0; at < content.size(); at += 100) {
    ASSERT_TRUE(writer->Write(at, AsBytes(content.substr(at, 100)), {}));
  }
  EXPECT_EQ(Object(), "<absent>");
  ASSERT_TRUE(writer->Publish({}));
  EXPECT_EQ(Object(), content);
  EXPECT_EQ(store->calls(Operation::kUploadPart), 9u) << "each once";
  EXPECT_EQ(store->calls(Operation::kPut), 0u);
  ASSERT_TRUE(writer->Publish({}));
  EXPECT_EQ(store->calls(Operation::kCompleteMultipart), 1u) << "there is nothing new";
}

TEST_F(WriterTest, OnlyPartsThatChangedAreSentAgain) {
  std::string content = Noise(2560, 1);
  auto writer = Make({.key = "f"});
  ASSERT_TRUE(writer->Write(0, AsBytes(content), {}));
  ASSERT_TRUE(writer->Publish({}));
  const auto sent = store->calls(Operation::kUploadPart);
  ASSERT_TRUE(writer->Write(1000, AsBytes("new"), {}));
  content.replace(1000, 3, "new");
  ASSERT_TRUE(writer->Publish({}));
  EXPECT_EQ(Object(), content);
  EXPECT_EQ(store->calls(Operation::kUploadPart), sent + 1);
  EXPECT_EQ(store->calls(Operation::kCopyPart), 2u);
  EXPECT_EQ(store->calls(Operation::kGet), 0u) << "what was written is still here";
}

TEST_F(WriterTest, MetadataStaysUnlessItIsReplaced) {
  auto metadata = [&] { return (*object::Head(*inner, "f"))->metadata; };
  for (std::size_t size : {100, 2000}) {
    auto writer = Make({.key = "f", .base = PutObject(Noise(size, 1))});
    ASSERT_TRUE(writer->Write(50, AsBytes("x"), {}));
    ASSERT_TRUE(writer->Publish({}));
    EXPECT_EQ(metadata().at("mode"), "33188");
    writer->SetMetadata({{"mtime", "1"}});
    EXPECT_TRUE(writer->unpublished());
    ASSERT_TRUE(writer->Publish({}));
    EXPECT_EQ(metadata(), (std::map<std::string, std::string>{{"mtime", "1"}}));
    ASSERT_TRUE(writer->Write(size, AsBytes(Noise(2000, 2)), {}));  // begins an upload
    writer->SetMetadata({{"mtime", "2"}});
    ASSERT_TRUE(writer->Publish({}));
    EXPECT_EQ(metadata().at("mtime"), "2");
    EXPECT_EQ(Object().size(), size + 2000);
    writer.reset();
    EXPECT_TRUE(object::ListUploads(*inner, "")->empty());
  }
}

TEST_F(WriterTest, AFullStagingAreaRefusesOrMakesRoom) {
  staging = Area(1000);
  auto random = Make({.key = "g"});
  ASSERT_TRUE(random->Write(5000, AsBytes(Noise(900, 1)), {}));
  auto refused = random->Write(1000, AsBytes(Noise(200, 1)), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kNoSpace);
  EXPECT_EQ(random->size(), 5900u);
  random.reset();
  auto sequential = Make({.key = "f"});
  const std::string content = Noise(4500, 2);  // parts of up to 512 bytes
  for (std::size_t at = 0; at < content.size(); at += 100) {
    Status written = sequential->Write(at, AsBytes(content.substr(at, 100)), {});
    ASSERT_TRUE(written) << at << written.error().ToString();
  }
  EXPECT_EQ(Object(), "<absent>");
  EXPECT_EQ(*Read(*sequential, 0, 100), content.substr(0, 100)) << "what only the store has is published to be read";
  ASSERT_TRUE(sequential->Publish({}));
  EXPECT_EQ(Object(), content);
}

TEST_F(WriterTest, AFailedPublishLosesNothing) {
  for (auto operation :
       {Operation::kPut, Operation::kCreateMultipart, Operation::kUploadPart, Operation::kCompleteMultipart}) {
    const std::string content = Noise(operation == Operation::kPut ? 200 : 2000, 3);
    const std::string before = Object();
    auto writer = Make({.key = "f"});
    store->Add({.operation = operation, .times = -1, .fault = {.code = Code::kUnavailable}});
    ASSERT_TRUE(writer->Write(0, AsBytes(content), {}));
    EXPECT_FALSE(writer->Publish({}));
    EXPECT_FALSE(writer->Publish({}));
    EXPECT_EQ(Object(), before);
    EXPECT_EQ(*Read(*writer, 0, 5000), content);
    store->Clear();
    ASSERT_TRUE(writer->Publish({})) << object::OperationName(operation);
    EXPECT_EQ(Object(), content);
  }
}

/// A writer over a store whose ETags are MD5s, as S3's are.
class Md5WriterTest : public WriterTest {
 protected:
  Md5WriterTest()
      : WriterTest(object::MakeMemoryStore({.limits = kLimits, .md5_etags = true, .clock = &SystemClock()})) {}
};

TEST_F(Md5WriterTest, AReplacementWhoseAnswerWasLostIsFound) {
  for (auto operation : {Operation::kPut, Operation::kCompleteMultipart}) {
    const std::string content = Noise(operation == Operation::kPut ? 200 : 2000, 3);
    auto writer = Make({.key = "f", .base = PutObject(content)});
    ASSERT_TRUE(writer->Write(content.size(), AsBytes("tail"), {}));
    store->Add({.operation = operation, .fault = {.code = Code::kUnavailable, .after_effect = true}});
    const Status published = writer->Publish({});
    EXPECT_TRUE(published) << object::OperationName(operation) << ": " << published.error().ToString();
    EXPECT_EQ(Object(), content + "tail");
    store->Clear();
  }
}

TEST_F(WriterTest, AnUploadThatTheStoreGaveUpIsBegunAgain) {
  const std::string content = Noise(2000, 3);
  auto writer = Make({.key = "f"});
  ASSERT_TRUE(writer->Write(0, AsBytes(content), {}));
  while (object::ListUploads(*inner, "")->empty()) std::this_thread::yield();
  const auto begun = *object::ListUploads(*inner, "");
  for (const auto& upload : begun) {
    ASSERT_TRUE(object::AbortMultipart(*inner, upload.key, upload.upload_id));
  }
  ASSERT_TRUE(writer->Publish({}));
  EXPECT_EQ(Object(), content);
}

TEST_F(WriterTest, AVersionReplacedByOthersIsNotReplaced) {
  auto writer = Make({.key = "f", .base = PutObject(Noise(2000, 1))});
  ASSERT_TRUE(writer->Write(10, AsBytes("x"), {}));
  PutObject("theirs");
  EXPECT_EQ(writer->Publish({}).error().code(), Code::kStale);
  EXPECT_EQ(Object(), "theirs");
  auto fresh = Make({.key = "f", .unpublished = true, .exclusive = true});
  EXPECT_EQ(fresh->Publish({}).error().code(), Code::kAlreadyExists);
}

/// Thousands of random operations on a writer and on plain bytes, while the store fails now and then.
class WriterModelTest : public WriterTest, public testing::WithParamInterface<int> {
 protected:
  void Fail(Random& random) {
    store->Clear();
    if (random.Below(2) == 0) return;
    const Operation operations[] = {Operation::kPut,        Operation::kCreateMultipart,
                                    Operation::kUploadPart, Operation::kCopyPart,
                                    Operation::kGet,        Operation::kCompleteMultipart};
    const Operation operation = operations[random.Below(std::size(operations))];
    // An upload whose number was lost on the way cannot be removed.
    const bool after_effect = operation != Operation::kCreateMultipart && random.Below(2) == 0;
    store->Add({.operation = operation,
                .times = -1,
                .probability = 0.5,
                .fault = {.code = Code::kUnavailable, .after_effect = after_effect}});
  }
};

TEST_P(WriterModelTest, IsAFile) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  Random random(seed);
  staging = Area(seed % 3 == 0 ? 3000 : kMiB);
  constexpr std::uint64_t kLongest = 12'000;
  for (int file = 0; file < 8; ++file) {
    store->Clear();
    std::string model = random.Below(3) == 0 ? "" : Noise(random.Below(kLongest / 2), random.Next());
    cache::ObjectVersion base{"f", "", model.size()};
    {
      // Whatever the limits of one Put are.
      auto first = Make({.key = "f", .unpublished = true});
      for (std::size_t at = 0; at < model.size(); at += 500) {
        ASSERT_TRUE(first->Write(at, AsBytes(model.substr(at, 500)), {}));
      }
      ASSERT_TRUE(first->Publish({}));
      base = *first->stored();
    }
    std::set<std::string> may_be_stored = {model};
    auto writer = Make({.key = "f", .base = base, .on_published = [&](const Metadata& now, WallTime) {
                          EXPECT_EQ(now.size, model.size());
                          may_be_stored = {model};
                        }});
    for (int step = 0; step < 250; ++step) {
      const std::uint64_t at = random.Below(random.Below(8) == 0 ? kLongest : model.size() + 1);
      const std::uint64_t length = random.Below(random.Below(4) == 0 ? 2000 : 60);
      Status done;
      switch (random.Below(12)) {
        case 0: {
          const std::uint64_t size = random.Below(4) == 0 ? 0 : random.Below(kLongest);
          done = writer->Truncate(size, {});
          if (done) model.resize(size);
          break;
        }
        case 1:
          done = writer->Zero(at, length, {});
          if (done && at < model.size()) {
            const std::uint64_t n = std::min<std::uint64_t>(length, model.size() - at);
            model.replace(at, n, n, '\0');
          }
          break;
        case 2: {
          done = writer->Publish({});
          if (done) may_be_stored = {model};
          break;
        }
        case 3:
          Fail(random);
          break;
        case 4:
        case 5: {
          auto read = Read(*writer, at, length);
          if (!read) done = Status(std::unexpected(read.error()));
          if (!read) break;
          ASSERT_EQ(*read, at < model.size() ? model.substr(at, length) : "") << seed << " " << step;
          break;
        }
        default: {
          const std::uint64_t where = random.Below(2) == 0 ? model.size() : at;  // much of it goes to the end
          const std::string bytes = Noise(std::min(length, kLongest - std::min(kLongest, where)), random.Next());
          done = writer->Write(where, AsBytes(bytes), {});
          if (done && !bytes.empty()) {
            model.resize(std::max<std::size_t>(model.size(), where + bytes.size()));
            model.replace(where, bytes.size(), bytes);
          }
        }
      }
      if (!done) may_be_stored.insert(model);  // by a publication whose answer was lost
      ASSERT_EQ(writer->size(), model.size()) << seed << " " << step;
      ASSERT_TRUE(may_be_stored.contains(Object())) << "torn, at step " << step << " of seed " << seed;
    }
    store->Clear();
    Status published = writer->Publish({});
    if (!published) published = writer->Publish({});
    if (published) {
      ASSERT_EQ(Object(), model) << seed;
    } else {
      // An answer that was lost made the base another one, and not all of the old base is here any more to tell that
      // it was our own publication.
      const bool some_were_sent_only = seed % 3 == 0 && published.error().code() == Code::kNotFound;
      ASSERT_TRUE(published.error().code() == Code::kStale || some_were_sent_only) << published.error().ToString();
      ASSERT_GT(may_be_stored.size(), 1u);
    }
    writer.reset();
    EXPECT_TRUE(object::ListUploads(*inner, "")->empty());
    EXPECT_EQ(staging->used(), 0u);
  }
  EXPECT_EQ(budget.used(), cache->capacity());
}

INSTANTIATE_TEST_SUITE_P(Seeds, WriterModelTest, testing::Range(1, 13));

TEST_F(WriterTest, ARestoredContentIsNotCountedAgain) {
  std::uint64_t grown = 0;
  Writer::Environment environment{.store = *store,
                                  .cache = *cache,
                                  .budget = budget,
                                  .staging = *staging,
                                  .uploads = uploads,
                                  .clock = clock,
                                  .part_bytes = 256,
                                  .parallel_parts = 3};
  environment.grow = [&](std::uint64_t bytes, const object::Call&) -> Status {
    grown += bytes;
    return {};
  };
  SavedContent saved;
  saved.record = {.key = "f", .size = 100, .base = PutObject(std::string(100, 'x')), .base_bytes = 100};
  Writer writer(environment, saved, {.file = nullptr, .record = saved.record}, nullptr);
  ASSERT_TRUE(writer.Write(90, AsBytes(std::string(20, 'y')), {}));
  EXPECT_EQ(grown, 10u);
}

TEST_F(WriterTest, WhatIsSavedAgainIsNoNewerThanWhatHasTakenItsName) {
  auto replaced = Make({.key = "f", .unpublished = true}), moved = Make({.key = "g", .unpublished = true});
  ASSERT_TRUE(moved->Write(0, AsBytes("new"), {}));
  ASSERT_TRUE(moved->KeepOnDisk(/*durable=*/false));
  ASSERT_TRUE(replaced->Write(0, AsBytes("old content"), {}));
  ASSERT_TRUE(replaced->KeepOnDisk(/*durable=*/false));
  ASSERT_TRUE(*moved->MoveUnstored("f", /*exclusive=*/false, /*over_stored=*/false, {}));
  replaced->Abandon("");  // or any other reason to write its record again
  replaced.reset(), moved.reset();
  const auto area = Area(kMiB);
  const auto adopted = *area->Adopt("", nullptr);
  ASSERT_EQ(adopted.size(), 2u);
  EXPECT_EQ(adopted.front().record.size, 11u);
  EXPECT_EQ(adopted.back().record.size, 3u) << "the last one is the file";
}

}  // namespace
}  // namespace millrace::vfs
