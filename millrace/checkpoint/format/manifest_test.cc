#include "millrace/checkpoint/format/manifest.h"

#include <gmock/gmock.h>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/random.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

Manifest Example() {
  Manifest m;
  m.step = 150;
  m.ranks = 2;
  m.attempt = "5d1c0a9be2f34471";
  m.created = "2026-01-31T12:00:00.000Z";
  m.tensors["model/a"] = {DType::kF32, {4, 8}};
  m.tensors["model/scalar"] = {DType::kI64, {}};
  m.tensors["model/empty"] = {DType::kU8, {0, 5}};
  m.slices = {{"model/a", 0, 20, "x/rank-00000.safetensors", 64},
              {"model/a", 20, 12, "x/rank-00001.safetensors", 0},
              {"model/scalar", 0, 1, "x/rank-00000.safetensors", 144}};
  m.files["x/rank-00000.safetensors"] = {152, 4096, {0x12345678}};
  m.files["x/rank-00001.safetensors"] = {8192, 4096, {1, 0xffffffff}};
  m.tensors["optimizer/boxed"] = {DType::kF16, {4, 6}};
  m.slices.push_back({"optimizer/boxed", 0, 8, "x/rank-00000.safetensors", 0, {{0, 0}, {4, 2}}});
  m.slices.push_back({"optimizer/boxed", 0, 5, "x/rank-00001.safetensors", 48, {{0, 2}, {4, 4}}});
  m.slices.push_back({"optimizer/boxed", 5, 11, "x/rank-00001.safetensors", 58, {{0, 2}, {4, 4}}});
  m.written_by = {"node-7", "ann", "millrace-train", "0.1.0", {{"torch", "2.11.0"}}};
  m.run = {.id = "7d0e", .attempt = 2, .after = {"11aa", "22bb"}};
  m.parent = CheckpointId{100, "0123456789abcdef"};
  m.metrics = {{"loss", 2.25}};
  m.meta = {{"loss", 2.25}, {"text", "ü\n"}, {"list", {1, 2, 3}}};
  return m;
}

/// The text with its checksum made right again, as somebody with bad intentions would.
std::string Reseal(std::string text, std::string_view from, std::string_view to) {
  std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
  std::size_t end = text.rfind(",\"crc32c\":\"");
  text.resize(end);
  return fmt::format("{},\"crc32c\":\"{:08x}\"}}\n", text, Crc32c(AsBytes(text)));
}

TEST(Manifest, ParsesWhatItSerializes) {
  Manifest m = Example();
  std::string text = m.Serialize();
  auto parsed = Manifest::Parse(text, "m");
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  EXPECT_EQ(parsed->step, m.step);
  EXPECT_EQ(parsed->ranks, m.ranks);
  EXPECT_EQ(parsed->attempt, m.attempt);
  EXPECT_EQ(parsed->created, m.created);
  EXPECT_EQ(parsed->written_by, m.written_by);
  EXPECT_EQ(parsed->run, m.run);
  EXPECT_EQ(parsed->parent, m.parent);
  EXPECT_EQ(parsed->metrics, m.metrics);
  EXPECT_EQ(parsed->tensors, m.tensors);
  EXPECT_EQ(parsed->slices, m.slices);
  EXPECT_EQ(parsed->files, m.files);
  EXPECT_EQ(parsed->meta, m.meta);
  EXPECT_EQ(parsed->Serialize(), text);
  EXPECT_TRUE(ParseJson(text, "plain JSON"));
}

TEST(Manifest, SerializationDoesNotDependOnTheOrderOfSlices) {
  Manifest m = Example();
  std::string text = m.Serialize();
  std::reverse(m.slices.begin(), m.slices.end());
  EXPECT_EQ(m.Serialize(), text);
}

TEST(Manifest, AnEmptyOneIsLongerThanAnyFence) {
  Manifest m;
  EXPECT_GE(m.Serialize().size(), 128u);
  EXPECT_TRUE(Manifest::Parse(m.Serialize(), "m"));
}

TEST(Manifest, EveryFlippedBitAndEveryCutIsCorrupt) {
  const std::string text = Example().Serialize();
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string bad = text;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    auto parsed = Manifest::Parse(bad, "s3://b/step-00000150.json");
    ASSERT_FALSE(parsed) << "bit " << bit;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt);
    EXPECT_THAT(parsed.error().ToString(), HasSubstr("s3://b/step-00000150.json"));
  }
  for (std::size_t size = 0; size < text.size(); ++size)
    ASSERT_FALSE(Manifest::Parse(text.substr(0, size), "m")) << "cut at " << size;
  EXPECT_FALSE(Manifest::Parse(text + "\n", "m"));
}

TEST(Manifest, RejectsWellSealedNonsense) {
  const std::string text = Example().Serialize();
  struct Case {
    std::string_view from, to, says;
  };
  for (const Case& c : {
           Case{"\"format\":\"millrace-checkpoint\"", "\"format\":\"something\"", "not a checkpoint"},
           Case{"\"ranks\":2", "\"ranks\":0", "number of ranks"},
           Case{"\"step\":150", "\"step\":-1", "\"step\""},
           Case{"[0,20,0,64]", "[0,19,0,64]", "elements 19 to 20 are covered by no file"},
           Case{"[0,20,0,64]", "[0,21,0,64]", "covered twice"},
           Case{"[20,12,1,0]", "[20,11,1,0]", "elements 31 to 32 are covered by no file"},
           Case{"[20,12,1,0]", "[20,13,1,0]", "goes beyond"},
           Case{"[20,12,1,0]", "[20,0,1,0]", "covered twice"},
           Case{"[20,12,1,0]", "[20,12,1,8191]", "does not lie inside"},
           Case{"[20,12,1,0]", "[20,12,1,18446744073709551615]", "does not lie inside"},
           Case{"[20,12,1,0]", "[20,18446744073709551615,1,0]", "goes beyond"},
           Case{"[20,12,1,0]", "[20,12,7,0]", "there is no file 7"},
           Case{"[20,12,1,0]", "[20,12,1]", "not a list of 4"},
           Case{"[20,12,1,0]", "[20,12,1,-5]", "not a list of 4"},
           Case{"[0,4,0,2]", "[0,4,0,7]", "does not lie inside"},
           Case{"[0,4,0,2]", "[0,4,18446744073709551615,2]", "does not lie inside"},
           Case{"[0,4,0,2]", "[0,4,1,2]", "is covered by no file"},
           Case{"[0,4,0,2]", "[0,4,0]", "impossible box"},
           Case{"[0,4,0,2]", "[]", "impossible box"},
           Case{"[0,4,0,2]", "[0,4]", "does not lie inside"},
           Case{"[0,4,0,2]", "[0,4,0,\"2\"]", "unsigned"},
           Case{"[5,11,1,58", "[5,10,1,58", "elements 15 to 16 are covered by no file"},
           Case{"{\"loss\":2.25}", "{\"loss\":\"low\"}", "not a number"},
           Case{"\"user\":\"ann\"", "\"user\":1", "\"user\""},
           Case{"\"shape\":[4,8]", "\"shape\":[4,-8]", "impossible shape"},
           Case{"\"shape\":[4,8]", "\"shape\":[4294967296,4294967296]", "impossibly large"},
           Case{"\"shape\":[4,8]", "\"shape\":[4,9]", "covered by no file"},
           Case{"\"size\":8192", "\"size\":8193", "2 checksums for 3 chunks"},
           Case{"\"chunk_bytes\":4096", "\"chunk_bytes\":0", "no checksums"},
           Case{"\"chunk_bytes\":4096", "\"chunk_bytes\":1", "chunk size"},
           Case{"\"name\":\"x/rank-00001", "\"name\":\"../rank-00001", "is refused"},
           Case{"\"name\":\"x/rank-00001", "\"name\":\"/x/rank-00001", "is refused"},
           Case{"\"name\":\"x/rank-00001", "\"name\":\"x//rank-00001", "is refused"},
           Case{"\"name\":\"x/rank-00001", "\"name\":\"x/rank-00000", "twice"},
           Case{"\"name\":\"model/a\"", "\"name\":\"model/scalar\"", "twice"},
           Case{"\"files\":[", "\"files\":[5,", "\"name\""},
           Case{"\"tensors\":[", "\"tensor\":[", "\"tensors\""},
       }) {
    auto parsed = Manifest::Parse(Reseal(text, c.from, c.to), "m");
    ASSERT_FALSE(parsed) << c.to;
    EXPECT_THAT(parsed.error().ToString(), HasSubstr(c.says)) << c.to;
    EXPECT_TRUE(parsed.error().code() == Code::kCorrupt) << c.to;
  }
  auto newer = Manifest::Parse(Reseal(text, "\"version\":2", "\"version\":3"), "m");
  ASSERT_FALSE(newer);
  EXPECT_EQ(newer.error().code(), Code::kUnsupported);
  auto type = Manifest::Parse(Reseal(text, "\"dtype\":\"F32\"", "\"dtype\":\"F33\""), "m");
  ASSERT_FALSE(type);
  EXPECT_EQ(type.error().code(), Code::kUnsupported);
}

TEST(Manifest, ReadsWhatTheFirstVersionWrote) {
  std::string text =
      R"({"format":"millrace-checkpoint","version":1,"step":7,"attempt":"5d1c0a9be2f34471","created":"2026-01-31T12:00:00.000Z",)"
      R"("ranks":1,"files":[{"name":"a/r.safetensors","size":96,"chunk_bytes":4096,"crc32c":"AAAAAA=="}],)"
      R"("tensors":[{"name":"model/w","dtype":"F32","shape":[2,4],"slices":[[0,3,0,64],[3,5,0,76]]}],"meta":{"x":1})";
  text += fmt::format(",\"crc32c\":\"{:08x}\"}}\n", Crc32c(AsBytes(text)));
  auto manifest = Manifest::Parse(text, "m");
  ASSERT_TRUE(manifest) << manifest.error().ToString();
  EXPECT_EQ(manifest->slices[1], (Slice{"model/w", 3, 5, "a/r.safetensors", 76}));
  EXPECT_EQ(manifest->written_by, Provenance{});
  EXPECT_EQ(manifest->parent, std::nullopt);
  EXPECT_EQ(manifest->run, RunLineage{});
}

TEST(Manifest, CoverageHoldsForAnyPartitionAndFailsForAnyOther) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    Manifest m;
    m.files["f"] = {1 << 20, 4096, std::vector<std::uint32_t>(256)};
    std::uint64_t elements = 1 + random.Below(100);
    m.tensors["t"] = {DType::kF32, {static_cast<std::int64_t>(elements)}};
    for (std::uint64_t begin = 0; begin < elements;) {
      std::uint64_t take = 1 + random.Below(elements - begin);
      m.slices.push_back({"t", begin, take, "f", random.Below(1000)});
      begin += take;
    }
    ASSERT_TRUE(m.Check("m"));
    Manifest bad = m;
    Slice& victim = bad.slices[random.Below(bad.slices.size())];
    switch (random.Below(3)) {
      case 0:
        victim.begin += 1;
        break;
      case 1:
        victim.elements += random.Below(2) ? 1 : -1;
        break;
      case 2:
        bad.slices.push_back(victim);
        break;
    }
    EXPECT_FALSE(bad.Check("m"));
  }
}

}  // namespace
}  // namespace millrace::checkpoint
