#include <gmock/gmock.h>

#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/read/open_safetensors.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

class OpenSafetensorsTest : public ::testing::Test {
 protected:
  /// A file with one-dimensional U8 tensors; the content of each is its name.
  static std::string File(const std::vector<std::string>& names) {
    std::vector<SafetensorsEntry> entries;
    for (const std::string& name : names)
      entries.push_back({name, {DType::kU8, {static_cast<std::int64_t>(name.size())}}});
    std::string file = MakeSafetensorsHeader(entries);
    for (const std::string& name : names) file += name;
    return file;
  }
  void Put(const std::string& file, std::string_view content) {
    ASSERT_TRUE(object::Put(*store_, "llama/" + file, AsBytes(content)));
  }
  Result<std::unique_ptr<Reader>> Open(std::string_view path = "llama") {
    return OpenSafetensors(connection_, "s3://models/" + std::string(path));
  }
  static void ExpectTensors(Reader& reader, const std::vector<std::string>& names) {
    EXPECT_EQ(reader.manifest().tensors.size(), names.size());
    for (const std::string& name : names) {
      std::string into(name.size(), '\0');
      auto read = reader.Read("model/" + name, 0, AsWritableBytes(into));
      ASSERT_TRUE(read) << read.error().ToString();
      EXPECT_EQ(into, name);
    }
  }

  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  testing::StoreConnection connection_{store_};
};

TEST_F(OpenSafetensorsTest, OneFileOfAFolder) {
  Put("model.safetensors", File({"embed", "lm_head"}));
  Put("consolidated.safetensors", File({"embed", "other"}));
  Put("config.json", R"({"model_type":"llama"})");
  for (const char* path : {"llama", "llama/", "llama/model.safetensors"}) {
    auto reader = Open(path);
    ASSERT_TRUE(reader) << reader.error().ToString();
    ExpectTensors(**reader, {"embed", "lm_head"});
    EXPECT_EQ((*reader)->manifest().meta["model_config"]["model_type"], "llama");
    EXPECT_EQ((*reader)->Verify()->files, 1u);
  }
}

TEST_F(OpenSafetensorsTest, SomeShardsOfAModelAreNone) {
  Put("model-00001-of-00002.safetensors", File({"one"}));
  EXPECT_THAT(Open().error().ToString(), HasSubstr("no model-00002-of-00002.safetensors"));
  Put("model-00002-of-00002.safetensors", File({"two"}));
  ExpectTensors(**Open(), {"one", "two"});
}

TEST_F(OpenSafetensorsTest, ShardsWithAndWithoutAnIndex) {
  Put("a.safetensors", File({"one", "two"}));
  Put("b.safetensors", File({"three"}));
  ExpectTensors(**Open(), {"one", "two", "three"});
  Put("b.safetensors", File({"three", "one"}));
  auto ambiguous = Open();
  ASSERT_FALSE(ambiguous);
  EXPECT_THAT(ambiguous.error().ToString(), HasSubstr("index file"));
  Put("model.safetensors.index.json",
      R"({"weight_map":{"one":"b.safetensors","two":"a.safetensors","three":"b.safetensors"}})");
  ExpectTensors(**Open(), {"one", "two", "three"});
}

TEST_F(OpenSafetensorsTest, ASingleFileGoesBeforeAnIndexOfShardsThatAreGone) {
  Put("model.safetensors.index.json", R"({"weight_map":{"one":"model-00001-of-00002.safetensors"}})");
  Put("model.safetensors", File({"one", "two"}));
  ExpectTensors(**Open(), {"one", "two"});
}

TEST_F(OpenSafetensorsTest, LongHeaderTakesTwoRequests) {
  std::vector<std::string> names;
  for (int i = 0; i < 6000; ++i) names.push_back(fmt::format("model.layers.{}.self_attn.q_proj.weight", i));
  Put("model.safetensors", File(names));
  auto reader = Open();
  ASSERT_TRUE(reader) << reader.error().ToString();
  EXPECT_EQ((*reader)->manifest().tensors.size(), 6000u);
  std::string into(names[4321].size(), '\0');
  ASSERT_TRUE((*reader)->Read("model/" + names[4321], 0, AsWritableBytes(into)));
  EXPECT_EQ(into, names[4321]);
}

TEST_F(OpenSafetensorsTest, SaysWhatIsWrong) {
  EXPECT_EQ(Open().error().code(), Code::kNotFound);
  EXPECT_EQ(Open("llama/model.safetensors").error().code(), Code::kNotFound);
  Put("a.safetensors", File({"one"}));
  struct Case {
    const char* index;
    const char* says;
  };
  for (const Case& c :
       {Case{"[]", "no weight_map"}, Case{"{", "not valid JSON"}, Case{R"({"weight_map":[]})", "no weight_map"},
        Case{R"({"weight_map":{"one":5}})", "not a string"},
        Case{R"({"weight_map":{"one":"../a.safetensors"}})", "is refused"},
        Case{R"({"weight_map":{"one":"gone.safetensors"}})", "does not exist"},
        Case{R"({"weight_map":{"one":"a.safetensors","two":"a.safetensors"}})", "does not have tensor two"}}) {
    Put("model.safetensors.index.json", c.index);
    auto opened = Open();
    ASSERT_FALSE(opened) << c.index;
    EXPECT_THAT(opened.error().ToString(), HasSubstr(c.says));
  }
  Put("model.safetensors.index.json", R"({"weight_map":{"one":"a.safetensors"}})");
  Put("config.json", "not json");
  EXPECT_THAT(Open().error().ToString(), HasSubstr("config.json"));
  Put("config.json", "{}");
  Put("a.safetensors", File({"one"}).substr(0, 20));
  EXPECT_EQ(Open().error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace millrace::checkpoint
