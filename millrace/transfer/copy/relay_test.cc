#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/copy/verify.h"
#include "millrace/transfer/local/upload_journal.h"

namespace millrace::transfer {
namespace {

namespace fs = std::filesystem;
using object::Operation;
using Algorithm = object::Checksum::Algorithm;

/// The answers of another store with a checksum in them.
class ReadStoreWithChecksum final : public object::ReadStore {
 public:
  ReadStoreWithChecksum(std::shared_ptr<object::Store> store, object::Checksum checksum)
      : store_(std::move(store)), checksum_(std::move(checksum)) {}
  std::string Describe() const override { return store_->Describe(); }
  void Head(std::string key, object::Call call, object::Done<std::optional<object::ObjectInfo>> done) override {
    store_->Head(std::move(key), std::move(call),
                 [this, done = std::move(done)](Result<std::optional<object::ObjectInfo>> info) mutable {
                   if (info && *info) (*info)->checksum = checksum_;
                   done(std::move(info));
                 });
  }
  void Get(std::string key, object::GetOptions options, MutableByteSpan into, object::Call call,
           object::Done<std::optional<object::GetResult>> done) override {
    {
      MutexLock lock(mutex_);
      asked_.push_back(*options.range);
    }
    store_->Get(std::move(key), std::move(options), into, std::move(call), std::move(done));
  }
  void List(object::ListRequest request, object::Call call, object::Done<object::ListPage> done) override {
    store_->List(std::move(request), std::move(call), std::move(done));
  }
  /// Returns the offsets of the ranges that were asked for since the last call, in order.
  std::vector<std::uint64_t> Asked() {
    MutexLock lock(mutex_);
    std::vector<std::uint64_t> offsets;
    for (const object::ByteRange& range : std::exchange(asked_, {})) offsets.push_back(range.offset);
    std::ranges::sort(offsets);
    return offsets;
  }

 private:
  const std::shared_ptr<object::Store> store_;
  const object::Checksum checksum_;
  Mutex mutex_;
  std::vector<object::ByteRange> asked_ MR_GUARDED_BY(mutex_);
};

class RelayTest : public testing::Test {
 protected:
  static std::string Noise(std::size_t size) {
    std::string text(size, '\0');
    Random random(size + 1);
    for (char& c : text) c = static_cast<char>(random.Next());
    return text;
  }

  static std::string DigestOf(std::string_view content, Algorithm algorithm) {
    Digester digester(algorithm, content.size());
    digester.Update(AsBytes(content));
    return digester.Finish();
  }
  Status Relay(const std::string& content, object::Checksum checksum) {
    EXPECT_TRUE(object::Put(*from_, "k", AsBytes(content)));
    ReadStoreWithChecksum source(from_, std::move(checksum));
    auto page = object::List(source, {});
    if (!page) return Fail(page.error());
    return RelayObject(source, page->objects.front(), *to_, "there/k", {.content_type = "text/x"}, budget_, settings_,
                       {});
  }
  std::shared_ptr<object::Store> from_ = object::MakeMemoryStore({});
  std::shared_ptr<object::Store> to_ = object::MakeMemoryStore({.limits = {.min_part = 1000}});
  MemoryBudget budget_{40'000};
  CopySettings settings_{.part_bytes = 4000, .parallel_parts = 2};
};

TEST_F(RelayTest, BytesOfAllSizesArriveWithTheirChecksum) {
  for (const std::size_t size : {0u, 1u, 4000u, 77'777u}) {
    const std::string content = Noise(size);
    std::uint64_t moved = 0;
    settings_.on_bytes = [&](std::uint64_t bytes) { moved += bytes; };
    for (const Algorithm algorithm : {Algorithm::kNone, Algorithm::kSha256, Algorithm::kGitBlob, Algorithm::kMd5}) {
      moved = 0;
      Status relayed = Relay(content, {algorithm, algorithm == Algorithm::kNone ? "" : DigestOf(content, algorithm)});
      ASSERT_TRUE(relayed) << size << ": " << relayed.error().ToString();
      EXPECT_EQ(moved, size);
      auto there = object::GetAll(*to_, "there/k", kMiB);
      ASSERT_TRUE(there && *there);
      EXPECT_EQ((*there)->bytes, content);
      EXPECT_EQ((*there)->info.content_type, "text/x");
    }
  }
}

TEST_F(RelayTest, AWrongChecksumLeavesNothing) {
  for (const std::size_t size : {10u, 77'777u}) {
    for (const Algorithm algorithm : {Algorithm::kSha256, Algorithm::kGitBlob}) {
      const std::string content = Noise(size);
      Status relayed = Relay(content, {algorithm, DigestOf(content + "x", algorithm)});
      ASSERT_FALSE(relayed);
      EXPECT_EQ(relayed.error().code(), Code::kCorrupt);
      EXPECT_FALSE(*object::Head(*to_, "there/k"));
      EXPECT_TRUE(object::ListUploads(*to_, "")->empty());
    }
  }
  settings_.verify = false;
  EXPECT_TRUE(Relay("x", {Algorithm::kSha256, "wrong"}));
}

TEST_F(RelayTest, PartsFitTheMemory) {
  MemoryBudget small(3000);  // two parts of 1,500 bytes; the settings want 4,000
  const std::string content = Noise(20'000);
  ASSERT_TRUE(object::Put(*from_, "k", AsBytes(content)));
  const object::ObjectInfo info = **object::Head(*from_, "k");
  ASSERT_TRUE(RelayObject(*from_, info, *to_, "there/k", {}, small, settings_, {}));
  EXPECT_EQ((*object::GetAll(*to_, "there/k", kMiB))->bytes, content);
  EXPECT_LE(small.peak(), 3000u);
  MemoryBudget too_small(1500);  // the store's smallest part is 1,000
  Status refused = RelayObject(*from_, info, *to_, "there/k", {}, too_small, settings_, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  EXPECT_TRUE(object::ListUploads(*to_, "")->empty());
}

TEST_F(RelayTest, ManyRelaysShareLittleMemory) {
  const std::string content = Noise(77'777);
  ASSERT_TRUE(object::Put(*from_, "k", AsBytes(content)));
  const object::ObjectInfo info = **object::Head(*from_, "k");
  MemoryBudget little(8000);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back(
        [&, i] { EXPECT_TRUE(RelayObject(*from_, info, *to_, std::to_string(i), {}, little, settings_, {})); });
  }
  threads.clear();
  for (int i = 0; i < 8; ++i) EXPECT_EQ((*object::GetAll(*to_, std::to_string(i), kMiB))->bytes, content);
  EXPECT_EQ(little.used(), 0u);
}

/// Relays that are cut off and begun again.
class RelayResume : public RelayTest {
 protected:
  static constexpr std::size_t kSize = 33'333;  ///< eight parts of 4,000 bytes and a rest
  static constexpr int kParts = 9;

  RelayResume() {
    settings_.journal_folder = (folder_.path() / "state").string();
    settings_.parallel_parts = 1;
    settings_.on_resumed = [this](std::uint64_t bytes) { resumed_ += bytes; };
    Change(Noise(kSize), Algorithm::kSha256);
  }

  /// Gives the source other bytes.
  void Change(const std::string& content, Algorithm algorithm) {
    content_ = content;
    ASSERT_TRUE(object::Put(*from_, "k", AsBytes(content)));
    info_ = **object::Head(*from_, "k");
    info_.checksum = {algorithm, algorithm == Algorithm::kNone ? "" : DigestOf(content, algorithm)};
    source_ = std::make_unique<ReadStoreWithChecksum>(from_, info_.checksum);
  }
  Status Run() {
    resumed_ = 0;
    return RelayObject(*source_, info_, *faulty_, "there/k", {}, budget_, settings_, {});
  }
  /// Lets `parts` parts arrive. The rest fails, as in a process that ends then.
  void RunAndCut(int parts) {
    faulty_->Add(
        {.operation = Operation::kUploadPart, .skip = parts, .times = -1, .fault = {.code = Code::kUnavailable}});
    const Status cut = Run();
    ASSERT_FALSE(cut);
    EXPECT_EQ(cut.error().code(), Code::kUnavailable);
    EXPECT_FALSE(*object::Head(*to_, "there/k"));
    faulty_->Clear();
  }
  std::string Copied() {
    auto there = object::GetAll(*to_, "there/k", kMiB);
    return there && *there ? (*there)->bytes : "<absent>";
  }
  std::size_t Uploads() { return object::ListUploads(*to_, "")->size(); }
  fs::path Journal() {
    for (const auto& entry : fs::directory_iterator(settings_.journal_folder)) {
      if (entry.path().extension() == ".upload") return entry.path();
    }
    return "<none>";
  }
  static std::vector<std::uint64_t> PartsFrom(int first) {
    std::vector<std::uint64_t> offsets;
    for (int i = first; i < kParts; ++i) offsets.push_back(static_cast<std::uint64_t>(i) * 4000);
    return offsets;
  }

  TempDir folder_ = std::move(*TempDir::Create());
  std::shared_ptr<object::FaultStore> faulty_ = object::FaultStore::Create(to_);
  std::string content_;
  object::ObjectInfo info_;
  std::unique_ptr<ReadStoreWithChecksum> source_;
  std::uint64_t resumed_ = 0;
};

TEST_F(RelayResume, StoredPartsAreNotAskedForAgain) {
  for (const Algorithm algorithm : {Algorithm::kNone, Algorithm::kSha256, Algorithm::kGitBlob, Algorithm::kMd5,
                                    Algorithm::kCrc32c, Algorithm::kCrc64Nvme}) {
    Change(content_, algorithm);
    for (const int parts : {1, 4, kParts - 1}) {
      RunAndCut(parts);
      source_->Asked();
      const Status went_on = Run();
      ASSERT_TRUE(went_on) << went_on.error().ToString();
      EXPECT_EQ(source_->Asked(), PartsFrom(parts));
      EXPECT_EQ(resumed_, static_cast<std::uint64_t>(parts) * 4000);
      EXPECT_EQ(Copied(), content_);
      EXPECT_EQ(Uploads(), 0u);
      EXPECT_EQ(Journal(), "<none>");
      ASSERT_TRUE(object::Delete(*to_, "there/k"));
    }
  }
}

TEST_F(RelayResume, ARunMayBeCutOffAgainAndAgain) {
  for (int done = 0; done < kParts - 1; ++done) {
    RunAndCut(1);
    source_->Asked();
  }
  ASSERT_TRUE(Run());
  EXPECT_EQ(source_->Asked(), PartsFrom(kParts - 1));
  EXPECT_EQ(Copied(), content_);
}

TEST_F(RelayResume, ACompletionThatFailedNeedsNoBytes) {
  faulty_->Add({.operation = Operation::kCompleteMultipart, .fault = {.code = Code::kUnavailable}});
  EXPECT_FALSE(Run());
  source_->Asked();
  ASSERT_TRUE(Run());
  EXPECT_EQ(source_->Asked(), std::vector<std::uint64_t>());
  EXPECT_EQ(Copied(), content_);
}

TEST_F(RelayResume, AnUploadWhosePartsAreNotListedBeginsAgain) {
  for (const Code code : {Code::kUnsupported, Code::kInvalidArgument, Code::kPermissionDenied}) {
    RunAndCut(4);
    faulty_->Add({.operation = Operation::kListParts, .times = -1, .fault = {.code = code}});
    const Status again = Run();
    ASSERT_TRUE(again) << again.error().ToString();
    EXPECT_EQ(resumed_, 0u);
    EXPECT_EQ(Copied(), content_);
    EXPECT_EQ(Uploads(), 0u) << "the upload that was cut off is aborted";
    faulty_->Clear();
    ASSERT_TRUE(object::Delete(*to_, "there/k"));
  }
}

TEST_F(RelayResume, TheWholeIsComparedWithItsHashAfterAResume) {
  RunAndCut(4);
  // The journal has the source's version and its hash. Only the bytes are others.
  std::string damaged = content_;
  damaged[20'000] ^= 1;
  ASSERT_TRUE(object::Put(*from_, "k", AsBytes(damaged)));
  info_.etag = (*object::Head(*from_, "k"))->etag;
  // Writes what a run would have written that saw the new version from the beginning.
  auto entry = UploadJournal::Open(settings_.journal_folder, to_->Describe() + "/there/k")->entry();
  entry->source = source_->Describe() + "/k\n" + info_.etag + entry->source.substr(entry->source.rfind('\n'));
  ASSERT_TRUE(UploadJournal::Open(settings_.journal_folder, to_->Describe() + "/there/k")->Write(*entry));
  const Status wrong = Run();
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), Code::kCorrupt);
  EXPECT_EQ(resumed_, 16'000u);
  EXPECT_EQ(Copied(), "<absent>");
  EXPECT_EQ(Uploads(), 0u);
  EXPECT_EQ(Journal(), "<none>");
}

TEST_F(RelayResume, AChangedSourceStartsOver) {
  RunAndCut(4);
  std::string changed = content_;
  changed[5] ^= 1;
  Change(changed, Algorithm::kSha256);
  ASSERT_TRUE(Run());
  EXPECT_EQ(source_->Asked(), PartsFrom(0));
  EXPECT_EQ(resumed_, 0u);
  EXPECT_EQ(Copied(), changed);
  EXPECT_EQ(Uploads(), 0u) << "the upload of the old bytes is gone";
}

TEST_F(RelayResume, ARunWithoutVerificationIsNotContinuedByOneThatVerifies) {
  settings_.verify = false;
  RunAndCut(4);
  settings_.verify = true;
  source_->Asked();
  ASSERT_TRUE(Run());
  EXPECT_EQ(source_->Asked(), PartsFrom(0));
  EXPECT_EQ(Uploads(), 0u);
}

TEST_F(RelayResume, PartsThatTheJournalLostAreReadAgain) {
  RunAndCut(4);  // the journal has five parts: the fifth was hashed, but did not arrive
  source_->Asked();
  const fs::path journal = Journal();
  const std::string text = *ReadFile(journal);
  const std::size_t last = text.rfind('\n', text.size() - 2), before = text.rfind('\n', last - 1);
  fs::resize_file(journal, before + 20);  // as after a power failure: the fourth part's line is cut short
  ASSERT_TRUE(Run());
  EXPECT_EQ(source_->Asked(), PartsFrom(3));
  EXPECT_EQ(Copied(), content_);
}

TEST_F(RelayResume, AnUploadThatTheStoreForgotStartsOver) {
  RunAndCut(4);
  const auto uploads = *object::ListUploads(*to_, "");
  for (const auto& upload : uploads) {
    ASSERT_TRUE(object::AbortMultipart(*to_, upload.key, upload.upload_id));
  }
  source_->Asked();
  ASSERT_TRUE(Run());
  EXPECT_EQ(source_->Asked(), PartsFrom(0));
  EXPECT_EQ(Copied(), content_);
}

TEST_F(RelayResume, BytesThatWereOthersBeforeAreRefused) {
  RunAndCut(4);  // the fifth part was hashed, but did not arrive
  auto entry = UploadJournal::Open(settings_.journal_folder, to_->Describe() + "/there/k")->entry();
  ASSERT_EQ(entry->hashed.size(), 5u);
  entry->hashed[4].crc32c ^= 1;
  ASSERT_TRUE(UploadJournal::Open(settings_.journal_folder, to_->Describe() + "/there/k")->Write(*entry));
  const Status refused = Run();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kCorrupt);
  EXPECT_EQ(Uploads(), 0u);
}

TEST_F(RelayResume, WithoutAJournalNothingStays) {
  settings_.journal_folder.clear();
  faulty_->Add({.operation = Operation::kUploadPart, .skip = 4, .fault = {.code = Code::kUnavailable}});
  EXPECT_FALSE(Run());
  EXPECT_EQ(Uploads(), 0u);
}

}  // namespace
}  // namespace millrace::transfer
