// Compiled steps in a store: kept once, read back whole, and refused if they are damaged.
#include "millrace/train/compile/compile_cache.h"

#include <gtest/gtest.h>

#include "millrace/base/files/files.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"

namespace millrace::train {
namespace {

const Json kMadeFor = {{"model", {{"model_type", "llama"}, {"rms_norm_eps", 1e-5}}}, {"micro_batch", 2}};

CompiledEntry Entry(std::int64_t rows, Json made_for = kMadeFor) {
  return {.made_for = std::move(made_for), .products = Json::array({{{"rows", rows}, {"method", "blas"}}})};
}

class CompileCacheTest : public testing::Test {
 protected:
  CompileCache Open() { return CompileCache::Open(*connection_, folder_.path().string() + "/compiled").value(); }

  const TempDir folder_ = TempDir::Create().value();
  const std::unique_ptr<object::Connection> connection_ = object::OpenConnection({}).value();
};

TEST_F(CompileCacheTest, KeepsAnEntryOnce) {
  CompileCache cache = Open();
  EXPECT_EQ(cache.Find(kMadeFor).value(), std::nullopt);
  EXPECT_EQ(cache.Keep(Entry(1)).value(), Entry(1));
  EXPECT_EQ(Open().Find(kMadeFor).value(), Entry(1));
  // A run that was slower takes what is there.
  EXPECT_EQ(cache.Keep(Entry(2)).value(), Entry(1));
  EXPECT_EQ(cache.Find(kMadeFor).value(), Entry(1));
}

TEST_F(CompileCacheTest, FindsExactlyWhatItWasMadeFor) {
  CompileCache cache = Open();
  Json other = kMadeFor;
  other["micro_batch"] = 3;
  ASSERT_TRUE(cache.Keep(Entry(1)));
  EXPECT_EQ(cache.Find(other).value(), std::nullopt);
  ASSERT_TRUE(cache.Keep(Entry(3, other)));
  EXPECT_EQ(cache.Find(other).value(), Entry(3, other));
  EXPECT_EQ(cache.Find(kMadeFor).value(), Entry(1));
  EXPECT_NE(cache.UrlOf(other), cache.UrlOf(kMadeFor));
}

TEST_F(CompileCacheTest, RefusesDamage) {
  CompileCache cache = Open();
  ASSERT_TRUE(cache.Keep(Entry(1)));
  const std::string path = cache.UrlOf(kMadeFor);
  const std::string text = ReadFile(path, kMiB).value();
  const auto code_of = [&](const std::string& content) {
    EXPECT_TRUE(WriteFileAtomic(path, AsBytes(content)));
    return cache.Find(kMadeFor).error().code();
  };
  std::string changed = text;
  changed.replace(changed.find("\"rows\":1"), 8, "\"rows\":2");
  EXPECT_EQ(code_of(changed), Code::kCorrupt);
  EXPECT_EQ(code_of("{}"), Code::kCorrupt);
  EXPECT_FALSE(ParseJson(text.substr(0, text.size() / 2), "half"));
  std::string newer = text;
  newer.replace(newer.find("\"format\":1"), 10, "\"format\":2");
  EXPECT_EQ(code_of(newer), Code::kUnsupported);
  // The entry of another step under this name.
  Json other = kMadeFor;
  other["micro_batch"] = 3;
  EXPECT_EQ(code_of(DumpJson(Entry(1, other).ToJson())), Code::kCorrupt);
}

TEST_F(CompileCacheTest, ListsAndRemoves) {
  CompileCache cache = Open();
  EXPECT_TRUE(cache.List().value().empty());
  Json other = kMadeFor;
  other["micro_batch"] = 3;
  ASSERT_TRUE(cache.Keep(Entry(1)));
  ASSERT_TRUE(cache.Keep(Entry(3, other)));
  ASSERT_TRUE(WriteFileAtomic(cache.UrlOf(other), AsBytes(std::string_view("damaged"))));
  ASSERT_TRUE(WriteFileAtomic(folder_.path() / "compiled/README.json", AsBytes(std::string_view("not of the cache"))));
  const auto listed = cache.List().value();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(std::ranges::count_if(listed, [](const auto& each) { return each.entry == Entry(1); }), 1);
  EXPECT_EQ(std::ranges::count_if(listed, [](const auto& each) { return !each.entry; }), 1);
  for (const auto& each : listed) ASSERT_TRUE(cache.Remove(each));
  EXPECT_TRUE(cache.List().value().empty());
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "compiled/README.json"));
}

}  // namespace
}  // namespace millrace::train
