// A test suite of what an object::Store must do, for any implementation:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance, testing::Values(ConformanceSubject{"memory", [] { … }}));
//
// Include it in one test source of a program. Each case gets its own store from the subject's factory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"

namespace millrace::object {

/// Properties of S3 that some stores lack. A store under test declares what it lacks. Each property has a case for
/// stores that have it and one for stores that do not, so that no case is skipped.
enum class Capability {
  kObjectBesideFolder,  ///< "a", "a/" and "a/b" can exist together; else: one is refused or not listed, what was there
                        ///< stays
  kFreeSegments,  ///< keys may have empty (also last), "." and ".." segments; else: they are refused, or are another's
                  ///< name
  kUploadsByPrefix,      ///< ListUploads finds uploads by any prefix; else: by their whole keys only
  kCopiedRangesChecked,  ///< an object made of copied ranges has the right checksum; else: reading all of it says so
  kReadsOneVersion,  ///< a read beside a replacement answers from one version; else: from parts of both, so reads wait
  kConditionalWrites,   ///< If-Match and If-None-Match hold for Put; else: they are ignored
  kConditionalComplete  ///< If-Match and If-None-Match hold for CompleteMultipart; else: they are ignored
};

/// An implementation under test and its declared deviations.
struct ConformanceSubject {
  std::string name;
  /// Makes an empty bucket. Its folder or server lives as long as the store. kUnsupported skips the case, with the
  /// message: this machine lacks something that the store needs.
  std::function<Result<std::shared_ptr<Store>>()> make;
  std::set<Capability> lacks = {};
};
inline void PrintTo(const ConformanceSubject& subject, std::ostream* out) { *out << subject.name; }

class StoreConformance : public testing::TestWithParam<ConformanceSubject> {
 protected:
  void SetUp() override {
    auto made = GetParam().make();
    if (!made && made.error().code() == Code::kUnsupported) GTEST_SKIP() << made.error().ToString();
    ASSERT_TRUE(made) << made.error().ToString();
    store_ = *std::move(made);
  }
  Store& store() { return *store_; }
  static bool Has(Capability capability) { return !GetParam().lacks.contains(capability); }

  static std::string Noise(std::size_t size, std::uint64_t seed = 1) {
    std::string text(size, '\0');
    Random random(seed);
    for (char& c : text) c = static_cast<char>(random.Next());
    return text;
  }
  std::string MustPut(const std::string& key, std::string_view body, PutOptions options = {}) {
    auto put = Put(store(), key, AsBytes(body), std::move(options));
    EXPECT_TRUE(put) << key << ": " << (put ? "" : put.error().ToString());
    return put ? put->etag : "";
  }
  /// The object's bytes, or "<absent>" / "<error: …>".
  std::string Content(const std::string& key) {
    auto content = GetAll(store(), key, 256 * kMiB);
    if (!content) return "<error: " + content.error().ToString() + ">";
    return *content ? (*content)->bytes : "<absent>";
  }
  std::string Range(const std::string& key, std::uint64_t offset, std::uint64_t length) {
    std::string into(length, '?');
    auto got = Get(store(), key, {.range = ByteRange{offset, length}}, AsWritableBytes(into));
    if (!got) return "<error: " + got.error().ToString() + ">";
    if (!*got) return "<absent>";
    return into.substr(0, (*got)->bytes);
  }
  /// Keys and prefixes of all pages, in order.
  struct Listed {
    std::vector<std::string> keys, prefixes;
    int pages = 0;
  };
  Listed MustList(ListRequest request) {
    Listed listed;
    auto status = ListAll(store(), std::move(request), [&](const ListPage& page) {
      ++listed.pages;
      for (const ObjectInfo& object : page.objects) listed.keys.push_back(object.key);
      for (const std::string& prefix : page.common_prefixes) listed.prefixes.push_back(prefix);
      return listed.pages < 10'000;
    });
    EXPECT_TRUE(status) << status.error().ToString();
    return listed;
  }
  /// Parts of the sizes given, uploaded in reverse order.
  std::vector<PartInfo> MustUpload(const std::string& key, const std::string& id, std::string_view content,
                                   std::vector<std::size_t> sizes) {
    std::vector<PartInfo> parts(sizes.size());
    std::size_t end = content.size();
    for (std::size_t i = sizes.size(); i-- > 0;) {
      end -= sizes[i];
      auto part = UploadPart(store(), key, id, static_cast<int>(i) + 1, AsBytes(content.substr(end, sizes[i])));
      EXPECT_TRUE(part) << (part ? "" : part.error().ToString());
      if (part) parts[i] = *part;
    }
    return parts;
  }
  std::size_t MinPart() { return static_cast<std::size_t>(std::max<std::uint64_t>(store().limits().min_part, 1000)); }

  template <class T>
  static Code CodeOf(const Result<T>& result) {
    return result ? Code::kInternal : result.error().code();
  }

 private:
  std::shared_ptr<Store> store_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoreConformance);

TEST_P(StoreConformance, AbsenceIsAValue) {
  auto head = Head(store(), "nothing/here");
  ASSERT_TRUE(head) << head.error().ToString();
  EXPECT_FALSE(*head);
  std::byte one[1];
  auto got = Get(store(), "nothing/here", {}, one);
  ASSERT_TRUE(got) << got.error().ToString();
  EXPECT_FALSE(*got);
  EXPECT_TRUE(Delete(store(), "nothing/here"));
  EXPECT_TRUE(MustList({}).keys.empty());
}

TEST_P(StoreConformance, PutThenReadGivesBytesAndInfo) {
  for (std::size_t size : {0u, 1u, 1000u, 300'000u}) {
    std::string key = "sizes/" + std::to_string(size), body = Noise(size, size);
    std::string etag = MustPut(key, body);
    EXPECT_FALSE(etag.empty());
    EXPECT_EQ(Content(key), body);
    auto head = Head(store(), key);
    ASSERT_TRUE(head && *head);
    EXPECT_EQ((*head)->key, key);
    EXPECT_EQ((*head)->size, size);
    EXPECT_EQ((*head)->etag, etag);
  }
}

TEST_P(StoreConformance, OverwriteChangesTheETag) {
  std::set<std::string> etags;
  for (int i = 0; i < 20; ++i) etags.insert(MustPut("k", "same length " + std::to_string(i % 10)));
  EXPECT_GE(etags.size(), 10u);
  EXPECT_EQ(Content("k"), "same length 9");
}

TEST_P(StoreConformance, RangesAtAndBeyondTheEnd) {
  std::string body = Noise(1000);
  MustPut("k", body);
  EXPECT_EQ(Range("k", 0, 1), body.substr(0, 1));
  EXPECT_EQ(Range("k", 10, 20), body.substr(10, 20));
  EXPECT_EQ(Range("k", 990, 10), body.substr(990));
  EXPECT_EQ(Range("k", 990, 500), body.substr(990));
  EXPECT_EQ(Range("k", 1000, 5), "");
  EXPECT_EQ(Range("k", 5000, 5), "");
  EXPECT_EQ(Range("k", 17, 0), "");
  MustPut("empty", "");
  EXPECT_EQ(Range("empty", 0, 10), "");
  EXPECT_EQ(Range("absent", 0, 10), "<absent>");
  std::string into(8, ' ');
  auto got = Get(store(), "k", {.range = ByteRange{996, 8}}, AsWritableBytes(into));
  ASSERT_TRUE(got && *got);
  EXPECT_EQ((*got)->bytes, 4u);
  EXPECT_EQ((*got)->info.size, 1000u) << "info is of the whole object";
}

TEST_P(StoreConformance, GetRefusesABufferThatIsTooSmall) {
  MustPut("k", Noise(100));
  std::byte small[99];
  EXPECT_EQ(CodeOf(Get(store(), "k", {}, small)), Code::kInvalidArgument);
}

TEST_P(StoreConformance, ASinkGetsTheSameBytesInOrder) {
  struct Collector final : Sink {
    Status Take(std::uint64_t offset, ByteSpan bytes) override {
      if (!refuses.empty()) return Fail(Code::kNoSpace, "{}", refuses);
      if (offset == from) taken.clear();
      EXPECT_EQ(offset, from + taken.size());
      taken.append(AsText(bytes));
      return {};
    }
    std::uint64_t from = 0;
    std::string taken, refuses;
  };
  const std::string body = Noise(700'000);
  MustPut("k", body);
  auto get_to = [&](Collector& sink, std::optional<ByteRange> range, std::uint64_t limit) {
    sink.from = range ? range->offset : 0;
    return GetTo(store(), "k", {.range = range}, limit, sink);
  };
  for (const auto& [offset, length] : {std::pair(0, 700'000), {3, 500'000}, {699'990, 500}, {700'000, 5}, {17, 0}}) {
    Collector sink;
    auto got = get_to(sink, ByteRange{static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(length)}, 700'000);
    ASSERT_TRUE(got && *got);
    EXPECT_EQ(sink.taken, std::string_view(body).substr(offset, length));
    EXPECT_EQ((*got)->bytes, sink.taken.size());
    EXPECT_EQ((*got)->info.size, body.size());
  }
  Collector all, small, full;
  ASSERT_TRUE(get_to(all, std::nullopt, body.size()));
  EXPECT_EQ(all.taken, body);
  EXPECT_FALSE(get_to(small, std::nullopt, body.size() - 1));
  full.refuses = "the sink is full";
  auto refused = get_to(full, std::nullopt, body.size());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kNoSpace);
  auto absent = GetTo(store(), "absent", {}, 10, all);
  ASSERT_TRUE(absent) << absent.error().ToString();
  EXPECT_FALSE(*absent);
}

TEST_P(StoreConformance, GetIfMatchSeesOneVersion) {
  std::string first = MustPut("k", "one");
  std::byte into[16];
  EXPECT_TRUE(Get(store(), "k", {.if_match = first}, into));
  MustPut("k", "two!");
  EXPECT_EQ(CodeOf(Get(store(), "k", {.if_match = first}, into)), Code::kPreconditionFailed);
}

TEST_P(StoreConformance, ConditionalPuts) {
  std::string first = MustPut("k", "one", {.if_none_match = true});
  if (!Has(Capability::kConditionalWrites)) {
    MustPut("k", "two", {.if_none_match = true});
    EXPECT_EQ(Content("k"), "two");
    return;
  }
  EXPECT_EQ(CodeOf(Put(store(), "k", AsBytes("two"), {.if_none_match = true})), Code::kPreconditionFailed);
  EXPECT_EQ(Content("k"), "one");
  std::string second = MustPut("k", "two", {.if_match = first});
  EXPECT_EQ(CodeOf(Put(store(), "k", AsBytes("three"), {.if_match = first})), Code::kPreconditionFailed);
  EXPECT_EQ(Content("k"), "two");
  MustPut("k", "four", {.if_match = second});
  auto absent = Put(store(), "absent", AsBytes("x"), {.if_match = second});
  EXPECT_FALSE(absent);
  EXPECT_EQ(Content("absent"), "<absent>");
}

TEST_P(StoreConformance, OneOfManyConcurrentCreatorsWins) {
  constexpr int kWriters = 8;
  std::atomic<int> winners = 0, losers = 0;
  std::atomic<int> winner = -1;
  {
    std::vector<std::jthread> writers;
    for (int i = 0; i < kWriters; ++i) {
      writers.emplace_back([&, i] {
        auto put = Put(store(), "lock", AsBytes("writer " + std::to_string(i)), {.if_none_match = true});
        if (put) {
          ++winners;
          winner = i;
        } else if (put.error().code() == Code::kPreconditionFailed) {
          ++losers;
        }
      });
    }
  }
  int expected = Has(Capability::kConditionalWrites) ? 1 : kWriters;
  EXPECT_EQ(winners, expected);
  EXPECT_EQ(losers, kWriters - expected);
  if (expected == 1) {
    EXPECT_EQ(Content("lock"), "writer " + std::to_string(winner));
  }
}

TEST_P(StoreConformance, ConcurrentIfMatchLosesNoUpdate) {
  MustPut("counter", "0");
  constexpr int kThreads = 4, kEach = 5;
  std::shared_mutex replacing;  // shared by writers; a reader of a store that mixes versions takes it alone
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int done = 0; done < kEach;) {
          std::unique_lock alone(replacing, std::defer_lock);
          if (!Has(Capability::kReadsOneVersion)) alone.lock();
          auto now = GetAll(store(), "counter", 100);
          if (alone) alone.unlock();
          ASSERT_TRUE(now) << now.error().ToString();
          ASSERT_TRUE(*now) << "absent while it is replaced";
          std::string next = std::to_string(std::stoi((*now)->bytes) + 1);
          std::shared_lock beside_others(replacing);
          auto put = Put(store(), "counter", AsBytes(next), {.if_match = (*now)->info.etag});
          if (put) ++done;
          ASSERT_TRUE(put || put.error().code() == Code::kPreconditionFailed) << put.error().ToString();
        }
      });
    }
  }
  if (Has(Capability::kConditionalWrites)) {
    EXPECT_EQ(Content("counter"), std::to_string(kThreads * kEach));
  }
}

TEST_P(StoreConformance, KeysThatCannotBe) {
  for (const std::string& key : {std::string(), std::string(1025, 'k'), std::string("bad\xff utf8")}) {
    EXPECT_EQ(CodeOf(Put(store(), key, AsBytes("x"))), Code::kInvalidArgument) << key;
    EXPECT_EQ(CodeOf(Head(store(), key)), Code::kInvalidArgument) << key;
    EXPECT_EQ(CodeOf(Get(store(), key, {}, {})), Code::kInvalidArgument) << key;
    EXPECT_EQ(CodeOf(Delete(store(), key)), Code::kInvalidArgument) << key;
  }
}

/// Keys that file systems, URLs and XML treat specially, none of them the folder of another.
inline std::vector<std::string> OddKeys() {
  std::string longest;
  while (longest.size() < 1024) longest += std::string(63, 'k') + "/";
  longest.back() = 'z';
  return {"plain",       "with space",    "plus+and%percent%2F",
          "quote'\"<&>", "中文/百科.txt", "émile",
          "\U0001F999",  "a?b#c;d=e@f:g", "tilde~star*",
          "back\\slash", ".hidden",       "dots/../up",
          "dots/./here", "double//slash", "/leading",
          "tail/",       "new\nline",     longest};
}

TEST_P(StoreConformance, OddKeysKeepTheirNames) {
  std::vector<std::string> keys = OddKeys();
  if (!Has(Capability::kFreeSegments)) {
    auto is_free = [](const std::string& key) {
      return key.starts_with("/") || key.ends_with("/") || key.contains("//") || key.contains("/./") ||
             key.contains("/../");
    };
    for (const std::string& key : keys) {
      if (!is_free(key) || !Put(store(), key, AsBytes("x"))) continue;
      EXPECT_EQ(Content(key), "x") << key;
      EXPECT_TRUE(Delete(store(), key)) << key;
    }
    std::erase_if(keys, is_free);
  }
  for (const std::string& key : keys) MustPut(key, "body of " + key);
  for (const std::string& key : keys) EXPECT_EQ(Content(key), "body of " + key);
  std::ranges::sort(keys);
  EXPECT_EQ(MustList({}).keys, keys);
  EXPECT_EQ(MustList({.max_keys = 1}).keys, keys);
  for (const std::string& key : keys) EXPECT_TRUE(Delete(store(), key)) << key;
  EXPECT_TRUE(MustList({}).keys.empty());
}

TEST_P(StoreConformance, ListingIsInByteOrder) {
  std::vector<std::string> keys = {"a-b", "a.b", "a/b", "a/b-c", "a/b.c", "a0", "ab", "A", "Z/z", "é", "z"};
  for (const std::string& key : keys) MustPut(key, key);
  std::ranges::sort(keys);
  auto page = List(store(), {});
  ASSERT_TRUE(page);
  ASSERT_EQ(page->objects.size(), keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(page->objects[i].key, keys[i]);
    EXPECT_EQ(page->objects[i].size, keys[i].size());
    auto head = Head(store(), keys[i]);
    ASSERT_TRUE(head && *head);
    EXPECT_EQ(page->objects[i].etag, (*head)->etag);
  }
}

TEST_P(StoreConformance, ListingWithPrefixAndDelimiter) {
  for (const char* key : {"logs/1", "logs/2", "logs/old/1", "logs/old/2", "logs/older/x", "logs-2/1", "top"}) {
    MustPut(key, "x");
  }
  using Names = std::vector<std::string>;
  Listed root = MustList({.delimiter = "/"});
  EXPECT_EQ(root.keys, Names({"top"}));
  EXPECT_EQ(root.prefixes, Names({"logs-2/", "logs/"}));
  Listed logs = MustList({.prefix = "logs/", .delimiter = "/"});
  EXPECT_EQ(logs.keys, Names({"logs/1", "logs/2"}));
  EXPECT_EQ(logs.prefixes, Names({"logs/old/", "logs/older/"}));
  EXPECT_EQ(MustList({.prefix = "logs/old"}).keys, Names({"logs/old/1", "logs/old/2", "logs/older/x"}));
  Listed partial = MustList({.prefix = "lo", .delimiter = "/"});
  EXPECT_EQ(partial.prefixes, Names({"logs-2/", "logs/"}));
  EXPECT_TRUE(MustList({.prefix = "absent/", .delimiter = "/"}).prefixes.empty());
}

TEST_P(StoreConformance, ListingStartsAfter) {
  for (const char* key : {"a", "b/1", "b/2", "c"}) MustPut(key, "x");
  using Names = std::vector<std::string>;
  EXPECT_EQ(MustList({.start_after = "a"}).keys, Names({"b/1", "b/2", "c"}));
  EXPECT_EQ(MustList({.start_after = "b/1"}).keys, Names({"b/2", "c"}));
  EXPECT_EQ(MustList({.start_after = "aaa"}).keys, Names({"b/1", "b/2", "c"}));
  EXPECT_TRUE(MustList({.start_after = "c"}).keys.empty());
  Listed folded = MustList({.delimiter = "/", .start_after = "a"});
  EXPECT_EQ(folded.keys, Names({"c"}));
  EXPECT_EQ(folded.prefixes, Names({"b/"}));
}

TEST_P(StoreConformance, PagingYieldsEachItemOnce) {
  std::vector<std::string> keys, prefixes;
  for (int i = 0; i < 40; ++i) {
    std::string key = fmt::format("k{:02}", i) + (i % 3 == 0 ? "/x" : "");
    keys.push_back(key);
    MustPut(key, "x");
    if (i % 3 == 0) MustPut(key + "y", "x"), keys.push_back(key + "y"), prefixes.push_back(key.substr(0, 4));
  }
  for (int page_size : {1, 2, 7, 1000}) {
    Listed flat = MustList({.max_keys = page_size});
    EXPECT_EQ(flat.keys, keys) << page_size;
    EXPECT_GE(flat.pages, static_cast<int>(keys.size()) / page_size);
    Listed folded = MustList({.delimiter = "/", .max_keys = page_size});
    EXPECT_EQ(folded.prefixes, prefixes) << page_size;
    EXPECT_EQ(folded.keys.size(), 40 - prefixes.size()) << page_size;
  }
}

TEST_P(StoreConformance, AnObjectMayStandBesideItsFolder) {
  if (!Has(Capability::kObjectBesideFolder)) {
    bool refused = false;
    MustPut("a", "first");
    for (const char* key : {"a/b", "a/"}) {
      if (Put(store(), key, AsBytes("second"))) {
        EXPECT_EQ(Content(key), "second");
      } else {
        refused = true;
      }
      EXPECT_EQ(Content("a"), "first") << "after " << key;
    }
    EXPECT_TRUE(refused || MustList({}).keys.size() < 3);
    return;
  }
  for (const char* key : {"a", "a/", "a/b"}) MustPut(key, key);
  EXPECT_EQ(MustList({}).keys, std::vector<std::string>({"a", "a/", "a/b"}));
  EXPECT_EQ(Content("a"), "a");
  EXPECT_EQ(MustList({.prefix = "a/", .delimiter = "/"}).keys, std::vector<std::string>({"a/", "a/b"}));
}

TEST_P(StoreConformance, DeleteManyDeletesAll) {
  std::vector<std::string> keys;
  for (int i = 0; i < 30; ++i) keys.push_back(fmt::format("d/{}", i));
  for (const std::string& key : keys) MustPut(key, "x");
  MustPut("kept", "x");
  keys.push_back("never existed & <odd>");
  auto failures = DeleteMany(store(), keys);
  ASSERT_TRUE(failures) << failures.error().ToString();
  EXPECT_TRUE(failures->empty());
  EXPECT_EQ(MustList({}).keys, std::vector<std::string>({"kept"}));
  auto nothing = DeleteMany(store(), {});
  EXPECT_TRUE(nothing && nothing->empty());
}

TEST_P(StoreConformance, MetadataAndContentTypeSurvive) {
  PutOptions options{.content_type = "text/x-test", .metadata = {{"colour", "blue"}, {"note", "a b=c; d"}}};
  MustPut("k", "x", options);
  auto head = Head(store(), "k");
  ASSERT_TRUE(head && *head);
  EXPECT_EQ((*head)->content_type, "text/x-test");
  EXPECT_EQ((*head)->metadata, options.metadata);
  std::byte into[1];
  auto got = Get(store(), "k", {}, into);
  ASSERT_TRUE(got && *got);
  EXPECT_EQ((*got)->info.metadata, options.metadata);
  MustPut("k", "y");
  head = Head(store(), "k");
  ASSERT_TRUE(head && *head);
  EXPECT_TRUE((*head)->metadata.empty()) << "an overwrite starts afresh";
}

TEST_P(StoreConformance, CopyTakesOrReplacesMetadata) {
  MustPut("from/ä b", "body", {.content_type = "text/x-test", .metadata = {{"a", "1"}}});
  auto copied = Copy(store(), "from/ä b", "to");
  ASSERT_TRUE(copied) << copied.error().ToString();
  EXPECT_EQ(Content("to"), "body");
  auto head = Head(store(), "to");
  ASSERT_TRUE(head && *head);
  EXPECT_EQ((*head)->etag, copied->etag);
  EXPECT_EQ((*head)->content_type, "text/x-test");
  EXPECT_EQ((*head)->metadata, (std::map<std::string, std::string>{{"a", "1"}}));
  CopyOptions replace{.metadata = std::map<std::string, std::string>{{"b", "2"}}, .content_type = "text/y"};
  ASSERT_TRUE(Copy(store(), "from/ä b", "to", replace));
  head = Head(store(), "to");
  ASSERT_TRUE(head && *head);
  EXPECT_EQ((*head)->content_type, "text/y");
  EXPECT_EQ((*head)->metadata, (std::map<std::string, std::string>{{"b", "2"}}));
  EXPECT_EQ(CodeOf(Copy(store(), "absent", "to")), Code::kNotFound);
  EXPECT_EQ(CodeOf(Copy(store(), "from/ä b", "to", {.source_if_match = "not-it"})), Code::kPreconditionFailed);
}

TEST_P(StoreConformance, MultipartWithATinyLastPart) {
  std::size_t part = MinPart();
  std::string content = Noise(2 * part + 1);
  auto id = CreateMultipart(store(), "big/ü", {.content_type = "text/x-test", .metadata = {{"a", "1"}}});
  ASSERT_TRUE(id) << id.error().ToString();
  std::vector<PartInfo> parts = MustUpload("big/ü", *id, content, {part, part, 1});
  EXPECT_EQ(Content("big/ü"), "<absent>") << "nothing shows before completion";
  EXPECT_TRUE(MustList({}).keys.empty());
  auto listed = ListParts(store(), "big/ü", *id);
  ASSERT_TRUE(listed) << listed.error().ToString();
  ASSERT_EQ(listed->size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ((*listed)[i].number, i + 1);
    EXPECT_EQ((*listed)[i].etag, parts[i].etag);
    EXPECT_EQ((*listed)[i].size, i < 2 ? part : 1);
  }
  auto done = CompleteMultipart(store(), "big/ü", *id, parts);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(Content("big/ü"), content);
  EXPECT_EQ(Range("big/ü", part - 2, 4), content.substr(part - 2, 4));
  auto head = Head(store(), "big/ü");
  ASSERT_TRUE(head && *head);
  EXPECT_EQ((*head)->etag, done->etag);
  EXPECT_EQ((*head)->content_type, "text/x-test");
  EXPECT_EQ((*head)->metadata, (std::map<std::string, std::string>{{"a", "1"}}));
  auto uploads = ListUploads(store(), "");
  ASSERT_TRUE(uploads) << uploads.error().ToString();
  EXPECT_TRUE(uploads->empty());
}

TEST_P(StoreConformance, MultipartReplacesPartsAndLeavesGaps) {
  auto id = CreateMultipart(store(), "k");
  ASSERT_TRUE(id);
  std::string first = Noise(MinPart(), 1), second = Noise(MinPart(), 2);
  auto old_part = UploadPart(store(), "k", *id, 3, AsBytes(second));
  auto part = UploadPart(store(), "k", *id, 3, AsBytes(first));
  auto last = UploadPart(store(), "k", *id, 7, AsBytes("end"));
  ASSERT_TRUE(old_part && part && last);
  EXPECT_FALSE(CompleteMultipart(store(), "k", *id, {*last, *part})) << "out of order";
  EXPECT_FALSE(CompleteMultipart(store(), "k", *id, {}));
  PartInfo never = *last;
  never.number = 8;
  EXPECT_FALSE(CompleteMultipart(store(), "k", *id, {*part, never})) << "a part that was not uploaded";
  auto done = CompleteMultipart(store(), "k", *id, {*part, *last});
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(Content("k"), first + "end");
}

TEST_P(StoreConformance, TinyMiddlePartsAreTakenOrRefused) {
  auto id = CreateMultipart(store(), "k");
  ASSERT_TRUE(id);
  std::vector<PartInfo> parts = MustUpload("k", *id, "ab", {1, 1});
  auto done = CompleteMultipart(store(), "k", *id, parts);
  if (store().limits().min_part <= 1) {
    EXPECT_TRUE(done) << done.error().ToString();
    EXPECT_EQ(Content("k"), "ab");
    return;
  }
  EXPECT_EQ(CodeOf(done), Code::kInvalidArgument);
  EXPECT_EQ(Content("k"), "<absent>");
  EXPECT_TRUE(AbortMultipart(store(), "k", *id));
}

TEST_P(StoreConformance, UploadsAreListedByPrefix) {
  auto one = CreateMultipart(store(), "p/one"), two = CreateMultipart(store(), "p/two");
  auto other = CreateMultipart(store(), "other");
  ASSERT_TRUE(one && two && other);
  auto uploads = ListUploads(store(), "p/");
  ASSERT_TRUE(uploads) << uploads.error().ToString();
  if (Has(Capability::kUploadsByPrefix)) {
    ASSERT_EQ(uploads->size(), 2u);
    EXPECT_EQ((*uploads)[0].key, "p/one");
    EXPECT_EQ((*uploads)[0].upload_id, *one);
    EXPECT_EQ((*uploads)[1].key, "p/two");
  } else {
    EXPECT_TRUE(uploads->empty());
  }
  EXPECT_TRUE(AbortMultipart(store(), "p/one", *one));
  EXPECT_TRUE(AbortMultipart(store(), "p/two", *two));
  EXPECT_TRUE(AbortMultipart(store(), "other", *other));
}

TEST_P(StoreConformance, AbortForgetsTheUpload) {
  auto kept = CreateMultipart(store(), "kept"), dropped = CreateMultipart(store(), "dropped");
  ASSERT_TRUE(kept && dropped);
  MustUpload("dropped", *dropped, "x", {1});
  auto count = [&](const std::string& key) {
    auto uploads = ListUploads(store(), key);
    EXPECT_TRUE(uploads) << uploads.error().ToString();
    return uploads ? uploads->size() : 0;
  };
  EXPECT_EQ(count("dropped"), 1u);
  EXPECT_TRUE(AbortMultipart(store(), "dropped", *dropped));
  EXPECT_EQ(count("dropped"), 0u);
  EXPECT_EQ(count("kept"), 1u);
  EXPECT_EQ(CodeOf(UploadPart(store(), "dropped", *dropped, 1, AsBytes("x"))), Code::kNotFound);
  EXPECT_EQ(CodeOf(ListParts(store(), "dropped", *dropped)), Code::kNotFound);
  EXPECT_TRUE(AbortMultipart(store(), "kept", *kept));
}

TEST_P(StoreConformance, PartsCopyRanges) {
  std::string source = Noise(MinPart() + 500);
  MustPut("source", source);
  auto head = Head(store(), "source");
  ASSERT_TRUE(head && *head);
  auto id = CreateMultipart(store(), "k");
  ASSERT_TRUE(id);
  auto first = CopyPart(store(), "k", *id, 1, "source", {500, MinPart()}, {.source_if_match = (*head)->etag});
  ASSERT_TRUE(first) << first.error().ToString();
  auto second = CopyPart(store(), "k", *id, 2, "source", {0, 10});
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_EQ(CodeOf(CopyPart(store(), "k", *id, 3, "absent", {0, 1})), Code::kNotFound);
  EXPECT_EQ(CodeOf(CopyPart(store(), "k", *id, 3, "source", {0, 1}, {.source_if_match = "no"})),
            Code::kPreconditionFailed);
  auto done = CompleteMultipart(store(), "k", *id, {*first, *second});
  ASSERT_TRUE(done) << done.error().ToString();
  std::string expected = source.substr(500) + source.substr(0, 10);
  if (!Has(Capability::kCopiedRangesChecked)) {
    EXPECT_TRUE(Content("k").starts_with("<error: "));
    EXPECT_EQ(Range("k", 0, expected.size() - 1), expected.substr(0, expected.size() - 1));
    return;
  }
  EXPECT_EQ(Content("k"), expected);
}

TEST_P(StoreConformance, ConditionalCompletion) {
  std::string etag = MustPut("k", "there first");
  auto id = CreateMultipart(store(), "k");
  ASSERT_TRUE(id);
  std::vector<PartInfo> parts = MustUpload("k", *id, "new", {3});
  auto refused = CompleteMultipart(store(), "k", *id, parts, {.if_none_match = true});
  if (!Has(Capability::kConditionalComplete)) {
    EXPECT_TRUE(refused) << refused.error().ToString();
    EXPECT_EQ(Content("k"), "new");
    return;
  }
  EXPECT_EQ(CodeOf(refused), Code::kPreconditionFailed);
  EXPECT_EQ(Content("k"), "there first");
  auto again = CreateMultipart(store(), "k");
  ASSERT_TRUE(again);
  parts = MustUpload("k", *again, "new", {3});
  auto done = CompleteMultipart(store(), "k", *again, parts, {.if_match = etag});
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(Content("k"), "new");
  (void)AbortMultipart(store(), "k", *id);
}

TEST_P(StoreConformance, ConcurrentPartsAndReads) {
  std::size_t part = MinPart();
  std::string content = Noise(3 * part + 7);
  auto id = CreateMultipart(store(), "k");
  ASSERT_TRUE(id);
  std::vector<PartInfo> parts(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        auto uploaded = UploadPart(store(), "k", *id, static_cast<int>(i) + 1,
                                   AsBytes(content).subspan(i * part, std::min(part, content.size() - i * part)));
        if (uploaded) parts[i] = *uploaded;
      });
    }
  }
  auto done = CompleteMultipart(store(), "k", *id, parts);
  ASSERT_TRUE(done) << done.error().ToString();
  std::vector<std::jthread> readers;
  for (std::size_t i = 0; i < 4; ++i) {
    readers.emplace_back([&, i] { EXPECT_EQ(Range("k", i * part + i, 100), content.substr(i * part + i, 100)); });
  }
}

TEST_P(StoreConformance, ACancelledCallEndsAsCancelled) {
  std::stop_source stop;
  stop.request_stop();
  Call call{.stop = stop.get_token()};
  std::byte one[1];
  EXPECT_EQ(CodeOf(Head(store(), "k", call)), Code::kCancelled);
  EXPECT_EQ(CodeOf(Get(store(), "k", {}, one, call)), Code::kCancelled);
  EXPECT_EQ(CodeOf(Put(store(), "k", AsBytes("x"), {}, call)), Code::kCancelled);
  EXPECT_EQ(CodeOf(List(store(), {}, call)), Code::kCancelled);
  EXPECT_EQ(CodeOf(Delete(store(), "k", call)), Code::kCancelled);
  Call late{.deadline = Deadline(TimePoint(std::chrono::nanoseconds(1)))};
  EXPECT_EQ(CodeOf(Head(store(), "k", late)), Code::kDeadlineExceeded);
}

TEST_P(StoreConformance, CancellingWhileInFlightCompletesEveryCall) {
  constexpr int kCalls = 50;
  std::string body = Noise(100'000);
  std::stop_source stop;
  std::atomic<int> completed = 0, wrong = 0;
  Mutex mutex;
  CondVar all_done;
  for (int i = 0; i < kCalls; ++i) {
    store().Put(fmt::format("c/{}", i), AsBytes(body), {}, {.stop = stop.get_token()}, [&](Result<PutResult> put) {
      if (!put && put.error().code() != Code::kCancelled) ++wrong;
      MutexLock lock(mutex);
      if (++completed == kCalls) all_done.NotifyOne();
    });
  }
  stop.request_stop();
  MutexLock lock(mutex);
  while (completed < kCalls) all_done.Wait(mutex);
  EXPECT_EQ(wrong, 0);
}

}  // namespace millrace::object
