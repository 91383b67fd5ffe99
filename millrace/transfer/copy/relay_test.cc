#include <gtest/gtest.h>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/random.h"
#include "millrace/object/blocking.h"
#include "millrace/object/memory/memory_store.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/copy/verify.h"

namespace millrace::transfer {
namespace {

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
    store_->Get(std::move(key), std::move(options), into, std::move(call), std::move(done));
  }
  void List(object::ListRequest request, object::Call call, object::Done<object::ListPage> done) override {
    store_->List(std::move(request), std::move(call), std::move(done));
  }

 private:
  const std::shared_ptr<object::Store> store_;
  const object::Checksum checksum_;
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
    return RelayObject(source, page->objects.front(), *to_, "there/k", {.content_type = "text/x"}, budgets_, settings_,
                       {});
  }
  std::shared_ptr<object::Store> from_ = object::MakeMemoryStore({});
  std::shared_ptr<object::Store> to_ = object::MakeMemoryStore({.limits = {.min_part = 1000}});
  RelayBudgets budgets_{40'000};
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

}  // namespace
}  // namespace millrace::transfer
