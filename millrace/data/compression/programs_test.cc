// Tests reading the output of other programs.
#include <gtest/gtest.h>

#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/data/formats/record_lines.h"
#include "millrace/data/testing/stored_object.h"

namespace millrace::data {
namespace {

using testing::FindAll;
using testing::RandomRecords;
using testing::ReadBack;
using testing::StoredObject;

class Programs : public ::testing::Test {
 protected:
  /// Returns the output of `command`, which runs in the folder.
  std::string Run(const std::string& command) {
    auto output = Subprocess::Run({.argv = {"sh", "-c", command}, .working_directory = folder_.path()}).value();
    EXPECT_TRUE(output.state.ok()) << command;
    return output.stdout_text;
  }
  static bool Has(const std::string& program) {
    return Subprocess::Run({.argv = {"sh", "-c", "command -v " + program}}).value().state.ok();
  }
  void Write(const std::string& name, const std::string& bytes) {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    ASSERT_TRUE(WriteFileAtomic(folder_.path() / name, AsBytes(bytes)).has_value());
  }

  TempDir folder_ = TempDir::Create().value();
  Random random_{1};
};

TEST_F(Programs, Gzip) {
  if (!Has("gzip")) GTEST_SKIP() << "no gzip";
  const std::string a = RandomRecords(random_, 9 << 20, 100'000), b = RandomRecords(random_, 1 << 20, 100'000);
  Write("a", a);
  Write("b", b);
  StoredObject stored(Run("gzip -1 -c a; gzip -9 -n -c b"), {RecordLayout::kJsonLines, Compression::kGzip});
  EXPECT_GE(FindAll(*stored.object.content).value().frames.size(), 2u);
  EXPECT_TRUE(ReadBack(*stored.object.content) == a + b);
}

TEST_F(Programs, Zstd) {
  if (!Has("zstd")) GTEST_SKIP() << "no zstd";
  const std::string lines = RandomRecords(random_, 9 << 20, 100'000);
  Write("a", lines);
  const DataFormat kZstd{RecordLayout::kJsonLines, Compression::kZstd};
  StoredObject one(Run("zstd -q -c a"), kZstd);
  EXPECT_EQ(FindAll(*one.object.content).value().frames.size(), 1u);
  EXPECT_TRUE(ReadBack(*one.object.content) == lines);
  // The command that the error about huge frames suggests.
  StoredObject many(Run("zstd -q -c a | zstd -dc | split -C 1M --filter='zstd -q -c'"), kZstd);
  EXPECT_EQ(FindAll(*many.object.content).value().frames.size(), 2u);
  EXPECT_TRUE(ReadBack(*many.object.content) == lines);
  EXPECT_TRUE(ReadBack(*StoredObject(Run("zstd -q --long=27 -3 -c a"), kZstd).object.content) == lines);
  if (Has("pzstd")) EXPECT_TRUE(ReadBack(*StoredObject(Run("pzstd -q -1 -c a"), kZstd).object.content) == lines);
}

TEST_F(Programs, PythonsJson) {
  if (!Has("python3")) GTEST_SKIP() << "no python3";
  const std::string lines =
      RandomRecords(random_, 300 << 10, 100'000) + "{\"text\":\"[\\\"]},\\n\\\\\",\"é\":[{\"\":{}},[]]}\n";
  Write("a.jsonl", lines);
  for (std::string_view options :
       {"indent=2", "ensure_ascii=False, separators=(',', ':')", "indent='\\t', sort_keys=True"}) {
    std::string array = Run(fmt::format(
        "PYTHONIOENCODING=utf-8 python3 -c \"import json, sys; json.dump([json.loads(line) for line in open('a.jsonl', "
        "encoding='utf-8')], sys.stdout, {})\"",
        options));
    Write("back", ReadBack(*StoredObject(array, {RecordLayout::kJson}).object.content));
    EXPECT_EQ(Run("PYTHONIOENCODING=utf-8 python3 -c \"import json; print([json.loads(line) for line in open('back', "
                  "encoding='utf-8') if line.strip()] == [json.loads(line) for line in open('a.jsonl', "
                  "encoding='utf-8')])\""),
              "True\n")
        << options;
  }
}

TEST_F(Programs, Tar) {
  if (!Has("tar")) GTEST_SKIP() << "no tar";
  const std::string deep = "deep" + std::string(90, 'd') + "/" + std::string(60, 'k');
  Write("set/a.txt", "first");
  Write("set/a.json", "{\"n\": 1}");
  Write("set/b.txt", std::string(70'000, 'b'));
  Write("set/" + deep + ".txt", "long name");
  const std::string tail = fmt::format("{{\"__key__\":\"set/{}\",\"txt\":\"long name\"}}\n", deep);
  for (std::string_view kind : {"ustar", "gnu", "pax"}) {
    std::string archive = Run(fmt::format("tar --format={} --sort=name -cf - set", kind));
    EXPECT_EQ(ReadBack(*StoredObject(archive, {RecordLayout::kTar}).object.content),
              "{\"__key__\":\"set/a\",\"n\":1,\"txt\":\"first\"}\n{\"__key__\":\"set/b\",\"txt\":\"" +
                  std::string(70'000, 'b') + "\"}\n" + tail)
        << kind;
  }
}

TEST_F(Programs, SparseTar) {
  if (!Has("tar")) GTEST_SKIP() << "no tar";
  // Text with holes. The map has more entries than a header and one block hold.
  std::string holes;
  for (int i = 0; i < 40; ++i) {
    const std::string text = fmt::format("part {} ", i) + std::string(1 + random_.Below(1500), 'x');
    holes += text;
    holes.resize((holes.size() / 512 + 20) * 512);
  }
  Write("set/a.txt", holes);
  Write("set/b.txt", "text");
  Run("cp --sparse=always set/a.txt hole && mv hole set/a.txt");
  Write("set/c.txt", std::string(4096, '\0') + "end");
  std::string expected;
  for (const auto& [key, text] :
       {std::pair{"a", holes}, {"b", std::string("text")}, {"c", std::string(4096, '\0') + "end"}}) {
    expected += fmt::format("{{\"__key__\":\"set/{}\",\"txt\":\"", key);
    AppendEscaped(text, expected);
    expected += "\"}\n";
  }
  for (std::string_view kind :
       {"gnu", "oldgnu", "pax --sparse-version=0.0", "pax --sparse-version=0.1", "pax --sparse-version=1.0"}) {
    const std::string archive =
        Run(fmt::format("tar --format={} --sparse --hole-detection=raw --sort=name -cf - set", kind));
    if (archive.size() > holes.size()) GTEST_SKIP() << "a folder without sparse files";
    EXPECT_TRUE(ReadBack(*StoredObject(archive, {RecordLayout::kTar}).object.content) == expected) << kind;
  }
}

}  // namespace
}  // namespace millrace::data
