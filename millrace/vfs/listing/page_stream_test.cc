#include "millrace/vfs/listing/page_stream.h"
#include "millrace/base/result.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <thread>

#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/support/early_pages.h"
#include "millrace/vfs/listing/listing.h"

namespace millrace::vfs {
namespace {

using Keys = std::vector<std::string>;

TEST(GuessSplitKeysTest, CountsOnWhereAPageBeginsToDiffer) {
  EXPECT_EQ(GuessSplitKeys("d/", "d/key-017000", "d/key-017999", 8, 3), (Keys{"d/key-025", "d/key-033", "d/key-041"}));
  EXPECT_EQ(GuessSplitKeys("d/", "d/0001ab", "d/0a77fe", 1, 4), (Keys{"d/1", "d/2", "d/3", "d/4"}));
  EXPECT_EQ(GuessSplitKeys("", "aaron", "azure", 8, 2), (Keys{"i", "q"}));
  EXPECT_EQ(GuessSplitKeys("d/", "d/---", "d/--_", 8, 3), (Keys{}));
  EXPECT_EQ(GuessSplitKeys("d/", "d/same", "d/same", 8, 3), (Keys{}));
}

TEST(GuessSplitKeysTest, AreAscendingAndBehindThePage) {
  Random random(4);
  for (int i = 0; i < 2000; ++i) {
    Keys keys(2, "p/");
    for (std::string& key : keys) {
      for (std::uint64_t n = 1 + random.Below(8); n > 0; --n) key += "09afzAF-_/~\xC3\xA9"[random.Below(12)];
    }
    std::ranges::sort(keys);
    const Keys splits = GuessSplitKeys("p/", keys[0], keys[1], 1 << random.Below(4), 6);
    std::string before = keys[1];
    for (const std::string& cut : splits) {
      EXPECT_GT(cut, before);
      EXPECT_TRUE(cut.starts_with("p/"));
      before = cut;
    }
  }
}

/// Lists another store's keys; nothing else works.
class ListsOnly : public object::Store {
 public:
  explicit ListsOnly(object::Store& keys) : keys_(keys) {}
  std::string Describe() const override { return "lists:"; }
  void List(object::ListRequest request, object::Call call, object::Done<object::ListPage> done) override {
    keys_.List(std::move(request), std::move(call), std::move(done));
  }

  template <class T>
  static void Refuse(object::Done<T> done) {
    done(Fail(Code::kUnsupported, "only listings"));
  }
  using Text = std::string;
  void Head(Text, object::Call, object::Done<std::optional<object::ObjectInfo>> done) override {
    Refuse(std::move(done));
  }
  void Get(Text, object::GetOptions, MutableByteSpan, object::Call,
           object::Done<std::optional<object::GetResult>> done) override {
    Refuse(std::move(done));
  }
  void Put(Text, object::Payload, object::PutOptions, object::Call, object::Done<object::PutResult> done) override {
    Refuse(std::move(done));
  }
  void Delete(Text, object::Call, object::Done<void> done) override { Refuse(std::move(done)); }
  void DeleteMany(std::vector<Text>, object::Call, object::Done<std::vector<object::DeleteFailure>> done) override {
    Refuse(std::move(done));
  }
  void Copy(Text, Text, object::CopyOptions, object::Call, object::Done<object::PutResult> done) override {
    Refuse(std::move(done));
  }
  void CreateMultipart(Text, object::PutOptions, object::Call, object::Done<Text> done) override {
    Refuse(std::move(done));
  }
  void UploadPart(Text, Text, int, object::Payload, object::Call, object::Done<object::PartInfo> done) override {
    Refuse(std::move(done));
  }
  void CopyPart(Text, Text, int, Text, object::ByteRange, object::CopyOptions, object::Call,
                object::Done<object::PartInfo> done) override {
    Refuse(std::move(done));
  }
  void CompleteMultipart(Text, Text, std::vector<object::PartInfo>, object::PutOptions, object::Call,
                         object::Done<object::PutResult> done) override {
    Refuse(std::move(done));
  }
  void AbortMultipart(Text, Text, object::Call, object::Done<void> done) override { Refuse(std::move(done)); }
  void ListParts(Text, Text, object::Call, object::Done<std::vector<object::PartInfo>> done) override {
    Refuse(std::move(done));
  }
  void ListUploads(Text, object::Call, object::Done<std::vector<object::UploadInfo>> done) override {
    Refuse(std::move(done));
  }
  Result<Text> Presign(std::string_view, std::string_view, Duration) override {
    return Fail(Code::kUnsupported, "only listings");
  }

 protected:
  object::Store& keys_;
};

/// Lists each page on a thread of its own, after telling where the next one begins: pages overtake each other.
class EarlyStore final : public ListsOnly, public object::EarlyPages {
 public:
  using ListsOnly::ListsOnly;
  void ListEarly(object::ListRequest request, object::Call call, std::move_only_function<void(std::string)> next,
                 object::Done<object::ListPage> done) override {
    MutexLock lock(mutex_);
    threads_.emplace_back([this, request = std::move(request), call = std::move(call), next = std::move(next),
                           done = std::move(done)]() mutable {
      auto page = object::List(keys_, request, call);
      if (page && !page->continuation.empty()) next(page->continuation);
      std::this_thread::yield();
      done(std::move(page));
    });
  }

 private:
  Mutex mutex_;
  std::vector<std::jthread> threads_ MR_GUARDED_BY(mutex_);
};

/// Answers when told to, on the thread that tells.
class HeldStore final : public ListsOnly {
 public:
  using ListsOnly::ListsOnly;
  void List(object::ListRequest request, object::Call, object::Done<object::ListPage> done) override {
    held_.push_back(
        [this, request = std::move(request), done = std::move(done)]() mutable { done(object::List(keys_, request)); });
  }
  std::size_t held() const { return held_.size(); }
  void Answer() {
    auto first = std::move(held_.front());
    held_.pop_front();
    first();
  }

 private:
  std::deque<std::move_only_function<void()>> held_;
};

/// All names below a prefix that a stream shows, in its order.
Keys ReadAll(object::Store& store, const std::string& after, const std::string& until) {
  PageStream stream(store, SystemClock(), "d/", after, until,
                    {.parallel = 4, .most_ahead = 5, .after_pages = 2, .slow_page = {}});
  Keys all;
  for (bool last = false; !last;) {
    auto page = stream.Next({});
    EXPECT_TRUE(page);
    if (!page) return all;
    Keys names;
    for (const auto& object : page->page.objects) names.push_back(object.key);
    names.insert(names.end(), page->page.common_prefixes.begin(), page->page.common_prefixes.end());
    std::ranges::sort(names);
    all.insert(all.end(), names.begin(), names.end());
    last = page->last;
  }
  return all;
}

class PageStreamTest : public testing::TestWithParam<int> {};

TEST_P(PageStreamTest, ShowsEveryNameOnceInOrderHoweverKeysAreMade) {
  auto store = object::MakeMemoryStore();
  Random random(static_cast<std::uint64_t>(GetParam()));
  std::set<std::string> expected;
  for (int i = 0; i < 12'000; ++i) {
    std::string name;
    switch (GetParam() % 4) {
      case 0:
        name = fmt::format("key-{:06}", i);
        break;
      case 1:
        name = fmt::format("{:016x}", Mix64(static_cast<std::uint64_t>(i)));
        break;
      case 2:
        name = fmt::format("img{}", i);
        break;
      default:
        for (std::uint64_t n = 1 + random.Below(5); n > 0; --n) name += "0123456789abcxyz-_"[random.Below(18)];
    }
    if (i % 10 == 3) {
      expected.insert("d/" + name + "/");
      name += "/below";
    } else {
      expected.insert("d/" + name);
    }
    ASSERT_TRUE(object::Put(*store, "d/" + name, {}, {}));
  }
  const Keys all(expected.begin(), expected.end());
  EXPECT_EQ(ReadAll(*store, "", ""), all);
  {
    EarlyStore early(*store);
    EXPECT_EQ(ReadAll(early, "", ""), all);
  }
  const std::string from = all[random.Below(all.size() / 2)], to = all[all.size() / 2 + random.Below(all.size() / 2)];
  Keys middle;
  for (const std::string& name : all) {
    if (name > from && name <= to) middle.push_back(name);
  }
  Keys got = ReadAll(*store, from, to);
  std::erase(got, from);  // a common prefix that begins before the range
  EXPECT_EQ(got, middle);
}

struct Server {
  std::chrono::milliseconds
      page{};  ///< what the requests that wait take together, or each where it has one machine only
  bool one_machine = false;
};

/// How many pages the store was asked for at the same time, at most: in all, and in the second half.
std::pair<std::size_t, std::size_t> AskedAtOnce(Server server) {
  constexpr std::size_t kKeys = 60'000;
  auto keys = object::MakeMemoryStore();
  for (std::size_t i = 0; i < kKeys; ++i) EXPECT_TRUE(object::Put(*keys, fmt::format("d/key-{:06}", i), {}, {}));
  HeldStore store(*keys);
  FakeClock clock;
  PageStream stream(store, clock, "d/", "", "", {.parallel = 8});
  stream.Start();
  std::size_t most = 0, late = 0, names = 0;
  for (bool last = false; !last;) {
    while (!stream.ready()) {
      const std::size_t slot = store.held();
      most = std::max(most, slot);
      if (names > kKeys / 2) late = std::max(late, slot);
      clock.Advance(server.one_machine ? server.page * static_cast<int>(slot) : server.page);
      for (std::size_t i = 0; i < slot; ++i) store.Answer();
    }
    auto page = stream.Next({});
    EXPECT_TRUE(page);
    if (!page) break;
    names += page->page.objects.size();
    last = page->last;
  }
  EXPECT_EQ(names, kKeys);
  return {most, late};
}

TEST(PageStreamTrialTest, ADistantServerIsAskedForManyPagesAtOnce) {
  EXPECT_EQ(AskedAtOnce({.page = std::chrono::milliseconds(30)}).first, 8u);
}

TEST(PageStreamTrialTest, AServerThatOnlyDividesItsWorkIsNotAskedForMoreForLong) {
  auto [most, late] = AskedAtOnce({.page = std::chrono::milliseconds(30), .one_machine = true});
  EXPECT_EQ(most, 2u);
  EXPECT_EQ(late, 1u);
}

TEST(PageStreamTrialTest, AQuickServerIsAskedForOnePageAfterTheOther) {
  EXPECT_EQ(AskedAtOnce({.page = std::chrono::milliseconds(15)}).first, 1u);
}

INSTANTIATE_TEST_SUITE_P(Keys, PageStreamTest, testing::Range(0, 8));

TEST(ListingOrder, APageThatDoesNotFollowIsRefused) {
  FakeClock clock;
  MetadataCache cache(clock, std::chrono::seconds(1), std::chrono::seconds(1), 100);
  const auto store = object::MakeMemoryStore();
  Listing listing(*store, cache, clock, "d/");
  ASSERT_TRUE(
      listing.Accept({.objects = {{.key = "d/m"}}, .common_prefixes = {}, .continuation = "more"}, clock.Now()));
  ASSERT_TRUE(listing.Accept({.objects = {}, .common_prefixes = {"d/m/"}, .continuation = "more"}, clock.Now()));
  const auto names =
      listing.Accept({.objects = {{.key = "d/a"}}, .common_prefixes = {}, .continuation = {}}, clock.Now());
  ASSERT_FALSE(names);
  EXPECT_EQ(names.error().code(), Code::kUnsupported);
  EXPECT_NE(names.error().ToString().find("out of order"), std::string::npos);
}

}  // namespace
}  // namespace millrace::vfs
