#include "millrace/vfs/page_stream.h"

#include <gtest/gtest.h>

#include <set>

#include "millrace/base/random.h"
#include "millrace/object/blocking.h"
#include "millrace/object/memory/memory_store.h"

namespace millrace::vfs {
namespace {

using Keys = std::vector<std::string>;

TEST(GuessCutsTest, CountsOnWhereAPageBeginsToDiffer) {
  EXPECT_EQ(GuessCuts("d/", "d/key-017000", "d/key-017999", 8, 3), (Keys{"d/key-025", "d/key-033", "d/key-041"}));
  EXPECT_EQ(GuessCuts("d/", "d/0001ab", "d/0a77fe", 1, 4), (Keys{"d/1", "d/2", "d/3", "d/4"}));
  EXPECT_EQ(GuessCuts("", "aaron", "azure", 8, 2), (Keys{"i", "q"}));
  EXPECT_EQ(GuessCuts("d/", "d/---", "d/--_", 8, 3), (Keys{}));
  EXPECT_EQ(GuessCuts("d/", "d/same", "d/same", 8, 3), (Keys{}));
}

TEST(GuessCutsTest, AreAscendingAndBehindThePage) {
  Random random(4);
  for (int i = 0; i < 2000; ++i) {
    Keys keys(2, "p/");
    for (std::string& key : keys) {
      for (std::uint64_t n = 1 + random.Below(8); n > 0; --n) key += "09afzAF-_/~\xC3\xA9"[random.Below(12)];
    }
    std::ranges::sort(keys);
    const Keys cuts = GuessCuts("p/", keys[0], keys[1], 1 << random.Below(4), 6);
    std::string before = keys[1];
    for (const std::string& cut : cuts) {
      EXPECT_GT(cut, before);
      EXPECT_TRUE(cut.starts_with("p/"));
      before = cut;
    }
  }
}

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
  const std::string from = all[random.Below(all.size() / 2)], to = all[all.size() / 2 + random.Below(all.size() / 2)];
  Keys middle;
  for (const std::string& name : all) {
    if (name > from && name <= to) middle.push_back(name);
  }
  Keys got = ReadAll(*store, from, to);
  std::erase(got, from);  // a common prefix that begins before the range
  EXPECT_EQ(got, middle);
}

INSTANTIATE_TEST_SUITE_P(Keys, PageStreamTest, testing::Range(0, 8));

}  // namespace
}  // namespace millrace::vfs
