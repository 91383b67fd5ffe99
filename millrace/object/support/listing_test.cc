#include "millrace/object/support/listing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "millrace/base/hash/random.h"

namespace millrace::object {
namespace {

ListPage OnePage(const std::set<std::string>& keys, const ListRequest& request) {
  auto page = PageBuilder::Start(request);
  EXPECT_TRUE(page);
  for (auto next = keys.lower_bound(page->start()); next != keys.end();) {
    PageBuilder::Next step = page->Offer({.key = *next});
    if (step == PageBuilder::Next::kDone) break;
    next = step == PageBuilder::Next::kSkip ? keys.lower_bound(page->start()) : std::next(next);
  }
  return page->TakePage();
}

/// Every object and prefix that the request selects, by the definition: no paging, no skipping.
std::vector<std::string> Model(const std::set<std::string>& keys, const ListRequest& request) {
  std::vector<std::string> items;
  for (const std::string& key : keys) {
    if (!key.starts_with(request.prefix)) continue;
    std::string item = key;
    std::size_t cut =
        request.delimiter.empty() ? std::string::npos : key.find(request.delimiter, request.prefix.size());
    if (cut != std::string::npos) item = key.substr(0, cut + 1);
    if (item > request.start_after && (items.empty() || items.back() != item)) items.push_back(item);
  }
  return items;
}

TEST(PageBuilder, AgreesWithTheDefinition) {
  Random random(7);
  auto word = [&](std::size_t longest) {
    std::string text;
    for (std::size_t n = random.Below(longest + 1); n > 0; --n) text += "ab/-"[random.Below(4)];
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::set<std::string> keys;
    for (int i = 0; i < 12; ++i) keys.insert("k" + word(5));
    ListRequest request{.prefix = random.Below(2) ? "k" + word(1) : "",
                        .delimiter = random.Below(2) ? "/" : "",
                        .start_after = random.Below(2) ? "k" + word(4) : "",
                        .max_keys = static_cast<int>(random.Below(4)) + 1};
    std::vector<std::string> items;
    ListRequest next = request;
    do {
      ListPage page = OnePage(keys, next);
      ASSERT_LE(page.objects.size() + page.common_prefixes.size(), static_cast<std::size_t>(request.max_keys));
      std::vector<std::string> of_page = page.common_prefixes;
      for (const ObjectInfo& object : page.objects) of_page.push_back(object.key);
      std::ranges::sort(of_page);
      items.insert(items.end(), of_page.begin(), of_page.end());
      next.continuation = page.continuation;
    } while (!next.continuation.empty());
    ASSERT_EQ(items, Model(keys, request))
        << "prefix " << request.prefix << " after " << request.start_after << " delimiter " << request.delimiter;
  }
}

TEST(PageBuilder, RefusesWhatNoPageGave) {
  EXPECT_FALSE(PageBuilder::Start({.continuation = "xyz"}));
  EXPECT_FALSE(PageBuilder::Start({.max_keys = 0}));
  EXPECT_FALSE(PageBuilder::Start({.max_keys = 1001}));
}

}  // namespace
}  // namespace millrace::object
