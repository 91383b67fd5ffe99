#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/format/manifest.h"

#include <gmock/gmock.h>

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

struct File {
  std::string header;  ///< with its length
  std::uint64_t size;
};

File Write(std::vector<SafetensorsEntry>& entries) {
  File file{MakeSafetensorsHeader(entries), 0};
  file.size = file.header.size();
  for (const SafetensorsEntry& entry : entries) file.size += entry.meta.bytes();
  return file;
}

Result<std::vector<SafetensorsEntry>> Parse(const File& file) {
  std::uint64_t length = MR_TRY(ParseSafetensorsLength(AsBytes(file.header), file.size, "f"));
  return ParseSafetensorsHeader(std::string_view(file.header).substr(8, length), file.size, "f");
}

TEST(Safetensors, ReadsWhatItWrites) {
  std::vector<SafetensorsEntry> entries{{"b", {DType::kI64, {3}}},
                                        {"a \"quoted\"", {DType::kF32, {2, 2}}},
                                        {"s", {DType::kBF16, {}}},
                                        {"e", {DType::kU8, {0}}}};
  File file = Write(entries);
  EXPECT_EQ(file.header.size() % 8, 0u);
  auto parsed = Parse(file);
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  ASSERT_EQ(parsed->size(), 4u);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ((*parsed)[i].name, entries[i].name);
    EXPECT_EQ((*parsed)[i].meta, entries[i].meta);
    EXPECT_EQ((*parsed)[i].offset, entries[i].offset);
  }
  EXPECT_EQ((*parsed)[0].offset, file.header.size());
}

TEST(Safetensors, AFileWithoutTensorsIsValid) {
  std::vector<SafetensorsEntry> none;
  auto parsed = Parse(Write(none));
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed->empty());
}

TEST(Safetensors, RejectsBadLengths) {
  std::string header(8, '\0');
  for (std::uint64_t length : {0ull, 1ull, 93ull, 100'000'001ull, ~0ull}) {
    StoreLittle(AsWritableBytes(header).data(), length);
    EXPECT_FALSE(ParseSafetensorsLength(AsBytes(header), 100, "f")) << length;
  }
  EXPECT_FALSE(ParseSafetensorsLength(AsBytes("1234567"), 7, "f"));
}

TEST(Safetensors, RejectsBadHeaders) {
  struct Case {
    std::string json;
    std::uint64_t data;
    std::string_view says;
  };
  for (
      const Case& c : {
          Case{"", 0, "not a safetensors header"},
          Case{"[]", 0, "not a safetensors header"},
          Case{"{\"a\":", 0, "not a safetensors header"},
          Case{R"({"a":{"dtype":[[[1]]],"shape":[],"data_offsets":[0,4]}})", 4, "not a safetensors header"},
          Case{R"({"a":1})", 0, "is not an object"},
          Case{R"({"a":{"dtype":"F32","shape":[1]}})", 4, "no data_offsets"},
          Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "backwards"},
          Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,-4]}})", 4, "no data_offsets"},
          Case{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "needs 8 bytes"},
          Case{R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "shape is impossible"},
          Case{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "impossibly large"},
          Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "need 4 bytes of data, it has 8"},
          Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 2, "need 4 bytes of data, it has 2"},
          Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "starts at data offset 4"},
          Case{
              R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
              6, "starts at data offset 2"},
      }) {
    auto parsed = ParseSafetensorsHeader(c.json, 8 + c.json.size() + c.data, "file.safetensors");
    ASSERT_FALSE(parsed) << c.json;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt) << c.json;
    EXPECT_THAT(parsed.error().ToString(), HasSubstr(c.says));
    EXPECT_THAT(parsed.error().ToString(), HasSubstr("file.safetensors"));
  }
  std::string complex = R"({"x":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})";
  auto parsed = ParseSafetensorsHeader(complex, 8 + complex.size() + 8, "f");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code(), Code::kUnsupported);
}

TEST(Safetensors, TellsWhichShardIsMissing) {
  EXPECT_EQ(MissingShard({}), "");
  EXPECT_EQ(MissingShard({"model.safetensors", "a-of-b.safetensors", "-of-1.safetensors", "of-2.safetensors"}), "");
  EXPECT_EQ(MissingShard({"model-00001-of-00001.safetensors", "x-1-of-2.safetensors", "x-2-of-2.safetensors"}), "");
  EXPECT_EQ(MissingShard({"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"}),
            "model-00002-of-00003.safetensors");
  EXPECT_EQ(MissingShard({"model-00002-of-00003.bin"}), "");
  EXPECT_EQ(MissingShard({"m-5d1c0a9b-00001-of-00002.safetensors", "m-00001-of-00001.safetensors"}),
            "m-5d1c0a9b-00002-of-00002.safetensors");
  EXPECT_EQ(MissingShard({"x-1-of-999999999.safetensors"}), "x-2-of-999999999.safetensors");
}

TEST(Safetensors, IgnoresMetadata) {
  std::string json = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  auto parsed = ParseSafetensorsHeader(json, 8 + json.size() + 4, "f");
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  EXPECT_EQ(parsed->size(), 1u);
}

}  // namespace
}  // namespace millrace::checkpoint
