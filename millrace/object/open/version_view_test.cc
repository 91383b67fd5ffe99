#include "millrace/object/open/version_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/object/blocking.h"
#include "millrace/object/support/read_only_store.h"

namespace millrace::object {
namespace {

using testing::ElementsAre;
using testing::Pair;

WallTime At(int seconds) { return WallTime(std::chrono::seconds(seconds)); }

/// Keeps versions that a test gives it, each with its id as its content. A page has two of them.
class Versioned final : public ReadOnlyStore {
 public:
  explicit Versioned(std::vector<VersionInfo> versions) : versions_(std::move(versions)) {}

  std::string Describe() const override { return "versioned"; }
  void Head(std::string key, Call, Done<std::optional<ObjectInfo>> done) override { done(Find(key, "")); }
  void HeadVersion(std::string key, std::string id, Call, Done<std::optional<ObjectInfo>> done) override {
    done(Find(key, id));
  }
  void Get(std::string key, GetOptions options, MutableByteSpan into, Call,
           Done<std::optional<GetResult>> done) override {
    auto info = Find(key, options.version);
    if (!info) return done(std::nullopt);
    std::ranges::copy(AsBytes(options.version), into.begin());
    done(GetResult{.bytes = options.version.size(), .info = *std::move(info)});
  }
  void List(ListRequest, Call, Done<ListPage> done) override { done(ListPage{}); }
  void ListVersions(VersionsRequest request, Call, Done<VersionsPage> done) override {
    ++pages;
    VersionsPage page;
    auto at = versions_.begin();
    if (!request.version_marker.empty()) {
      at = std::ranges::find(versions_, request.version_marker, &VersionInfo::id) + 1;
    } else {
      at = std::ranges::find_if(versions_, [&](const auto& one) { return one.info.key > request.key_marker; });
    }
    for (; at != versions_.end() && page.versions.size() < 2; ++at) {
      if (at->info.key.starts_with(request.prefix)) page.versions.push_back(*at);
    }
    const bool more = std::any_of(at, versions_.end(),
                                  [&](const VersionInfo& one) { return one.info.key.starts_with(request.prefix); });
    if (more) {
      page.next_key = page.versions.back().info.key;
      page.next_version = page.versions.back().id;
    }
    done(std::move(page));
  }
  Result<std::string> Presign(std::string_view, std::string_view, Duration) override { return ""; }

  int pages = 0;

 protected:
  Error WriteRefusal(const std::string&) const override { return Error(Code::kReadOnly, ""); }

 private:
  std::optional<ObjectInfo> Find(const std::string& key, const std::string& id) const {
    for (const VersionInfo& version : versions_) {
      if (version.info.key == key && version.id == id && !version.deletion) return version.info;
    }
    return std::nullopt;
  }
  const std::vector<VersionInfo> versions_;
};

VersionInfo Version(const std::string& key, int seconds, const std::string& id, bool deletion = false) {
  return {.info = {.key = key, .size = id.size(), .etag = id, .modified = At(seconds)}, .id = id, .deletion = deletion};
}

class VersionViewTest : public testing::Test {
 protected:
  std::vector<std::pair<std::string, std::string>> Listed(int seconds, ListRequest request = {}) {
    std::vector<std::pair<std::string, std::string>> listed;
    auto view = ViewAsOf(store_, At(seconds));
    EXPECT_TRUE(ListAll(*view, std::move(request), [&](const ListPage& page) {
      for (const ObjectInfo& info : page.objects) listed.emplace_back(info.key, info.version);
      return true;
    }));
    return listed;
  }

  // The versions of "a" reach over three pages.
  std::shared_ptr<Versioned> store_ = std::make_shared<Versioned>(
      std::vector{Version("a", 50, "a50", true), Version("a", 40, "a40"), Version("a", 30, "a30"),
                  Version("a", 20, "a20"), Version("a", 10, "a10"), Version("ab", 25, "ab25"), Version("b", 45, "b45"),
                  Version("b", 35, "b35", true), Version("b", 15, "b15")});
};

TEST_F(VersionViewTest, AListingHasWhatWasThere) {
  EXPECT_THAT(Listed(5), ElementsAre());
  EXPECT_THAT(Listed(10), ElementsAre(Pair("a", "a10")));
  EXPECT_THAT(Listed(29), ElementsAre(Pair("a", "a20"), Pair("ab", "ab25"), Pair("b", "b15")));
  EXPECT_THAT(Listed(40), ElementsAre(Pair("a", "a40"), Pair("ab", "ab25")));
  EXPECT_THAT(Listed(60), ElementsAre(Pair("ab", "ab25"), Pair("b", "b45")));
  EXPECT_THAT(Listed(29, {.start_after = "a"}), ElementsAre(Pair("ab", "ab25"), Pair("b", "b15")));
  EXPECT_THAT(Listed(29, {.prefix = "b"}), ElementsAre(Pair("b", "b15")));
}

TEST_F(VersionViewTest, AReadFindsTheVersionOfItsTime) {
  auto view = ViewAsOf(store_, At(20));
  auto content = GetAll(*view, "a", 100);
  ASSERT_TRUE(content && *content);
  EXPECT_EQ((*content)->bytes, "a20");
  EXPECT_EQ((*content)->info.version, "a20");
  auto absent = Head(*view, "ab");
  ASSERT_TRUE(absent);
  EXPECT_FALSE(*absent) << "is younger";
  EXPECT_FALSE(*GetAll(*ViewAsOf(store_, At(40)), "b", 100)) << "was deleted";
}

TEST_F(VersionViewTest, AListedObjectIsReadWithoutASearch) {
  auto view = ViewAsOf(store_, At(29));
  ASSERT_TRUE(ListAll(*view, {}, [](const ListPage&) { return true; }));
  const int before = store_->pages;
  EXPECT_EQ((*GetAll(*view, "a", 100))->bytes, "a20");
  EXPECT_EQ(store_->pages, before);
}

TEST_F(VersionViewTest, OneVersionIsAStoreOfOneObject) {
  auto view = ViewVersion(store_, {"a", "a30"});
  EXPECT_EQ((*GetAll(*view, "a", 100))->bytes, "a30");
  EXPECT_FALSE(*Head(*view, "b"));
  EXPECT_EQ(List(*view, {}).error().code(), Code::kUnsupported);
  EXPECT_FALSE(*Head(*ViewVersion(store_, {"a", "other"}), "a"));
}

TEST_F(VersionViewTest, AViewIsReadOnlyAndAnotherPlace) {
  auto view = ViewAsOf(store_, At(20));
  EXPECT_EQ(Put(*view, "k", AsBytes("x")).error().code(), Code::kReadOnly);
  EXPECT_EQ(Delete(*view, "k").error().code(), Code::kReadOnly);
  EXPECT_NE(view->Identity(), store_->Identity());
  EXPECT_NE(view->Identity(), ViewAsOf(store_, At(21))->Identity());
}

}  // namespace
}  // namespace millrace::object
