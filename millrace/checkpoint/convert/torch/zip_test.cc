#include "millrace/checkpoint/convert/torch/zip.h"

#include <gmock/gmock.h>

#include "millrace/base/hash/random.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

std::string Archive(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string file;
  ZipWriter writer([&](ByteSpan bytes) {
    file += AsText(bytes);
    return Status();
  });
  for (const auto& [name, content] : entries) EXPECT_TRUE(writer.Add(name, content));
  const std::uint64_t size = writer.Finish().value_or(0);
  EXPECT_EQ(size, file.size());
  return file;
}

TEST(ZipTest, EntriesComeBackAndAreAligned) {
  const std::string large(70'000, 'x');
  const std::string file = Archive({{"a/data.pkl", "pickle"}, {"a/data/0", large}, {"a/data/1", ""}});
  MemoryBytes bytes(AsBytes(file), "file");
  auto zip = Zip::Open(bytes);
  ASSERT_TRUE(zip) << zip.error().ToString();
  ASSERT_EQ(zip->entries().size(), 3u);
  for (const ZipEntry& entry : zip->entries()) EXPECT_EQ(*zip->DataOffset(entry) % 64, 0u);
  EXPECT_EQ(*zip->ReadAll(*zip->Find("a/data/0"), large.size()), large);
  EXPECT_EQ(*zip->ReadAll(*zip->Find("a/data/1"), 0), "");
  EXPECT_EQ(zip->ReadAll(*zip->Find("a/data/0"), 10).error().code(), Code::kResourceExhausted);
  EXPECT_EQ(zip->Find("a/data/2"), nullptr);
}

TEST(ZipTest, FieldsOf64Bits) {
  std::string file;
  ZipWriter writer(
      [&](ByteSpan bytes) {
        file += AsText(bytes);
        return Status();
      },
      /*wide_from=*/200);
  const std::vector<std::pair<std::string, std::string>> entries{
      {"a/small", "x"}, {"a/large", std::string(500, 'l')}, {"a/far", "y"}, {"a/large and far", std::string(300, 'm')}};
  for (const auto& [name, content] : entries) ASSERT_TRUE(writer.Add(name, content));
  const std::uint64_t size = *writer.Finish();
  ASSERT_EQ(size, file.size());
  MemoryBytes bytes(AsBytes(file), "file");
  auto zip = Zip::Open(bytes);
  ASSERT_TRUE(zip) << zip.error().ToString();
  ASSERT_EQ(zip->entries().size(), entries.size());
  for (const auto& [name, content] : entries) EXPECT_EQ(*zip->ReadAll(*zip->Find(name), 1000), content) << name;
}

TEST(ZipTest, WhatIsNoneIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("PK"), std::string(5000, 'P'), std::string(100'000, '\0')}) {
    MemoryBytes bytes(AsBytes(text), "file");
    EXPECT_EQ(Zip::Open(bytes).error().code(), Code::kCorrupt);
  }
  std::string file = Archive({{"name", "content"}});
  const std::size_t directory = file.find("PK\x01\x02");
  file[directory + 10] = 8;  // deflated
  MemoryBytes bytes(AsBytes(file), "file");
  EXPECT_THAT(Zip::Open(bytes).error().ToString(), HasSubstr("compressed"));
}

TEST(ZipTest, TwoEntriesOfOneNameAreRefused) {
  const std::string file = Archive({{"name", "one"}, {"name", "two"}});
  MemoryBytes bytes(AsBytes(file), "file");
  EXPECT_THAT(Zip::Open(bytes).error().ToString(), HasSubstr("twice"));
}

TEST(ZipTest, DamageNeverLeadsOutside) {
  const std::string good = Archive({{"a/data.pkl", "pickle"}, {"a/data/0", std::string(300, 'x')}});
  Random random(1);
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (int n = 1 + static_cast<int>(random.Below(4)); n > 0; --n)
      bad[random.Below(bad.size())] = static_cast<char>(random.Next());
    MemoryBytes bytes(AsBytes(bad), "file");
    auto zip = Zip::Open(bytes);
    if (!zip) continue;
    for (const ZipEntry& entry : zip->entries()) {
      auto offset = zip->DataOffset(entry);
      EXPECT_LE(offset.value_or(0) + (offset ? entry.size : 0), bad.size());
    }
  }
}

}  // namespace
}  // namespace millrace::checkpoint
