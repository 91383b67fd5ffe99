#include "millrace/data/formats/tar.h"

#include <gtest/gtest.h>

#include "millrace/data/records/record_template.h"
#include "millrace/data/testing/stored_object.h"

namespace millrace::data {
namespace {

using testing::FindAll;
using testing::ReadBack;
using testing::StoredObject;

const DataFormat kTarred{RecordLayout::kTar};

void Octal(std::string& header, std::size_t at, std::size_t digits, std::uint64_t value) {
  header.replace(at, digits, fmt::format("{:0{}o}", value, digits));
}

std::string Header(std::string_view name, std::size_t size, char type) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  Octal(header, 100, 7, 0644);
  Octal(header, 124, 11, size);
  Octal(header, 136, 11, 0);
  header[156] = type;
  header.replace(257, 8, std::string_view("ustar\00000", 8));
  header.replace(148, 8, "        ");
  std::uint64_t sum = 0;
  for (unsigned char c : header) sum += c;
  Octal(header, 148, 6, sum);
  header[154] = '\0';
  return header;
}

std::string Member(std::string_view name, std::string_view data, char type = '0') {
  std::string member = name.size() > 100 ? Member("././@LongLink", std::string(name) + '\0', 'L') : "";
  member += Header(name.substr(0, 100), data.size(), type);
  member += data;
  member.resize((member.size() + 511) / 512 * 512);
  return member;
}

const std::string kEnd(1024, '\0');

TEST(Tar, FilesOfOneNameAreASample) {
  std::string archive =
      Member("dir/", "", '5') + Member("dir/a.txt", "one\n") + Member("dir/a.json", "{ \"n\": 1,\n\"s\": \"x y\" }") +
      Member("dir/a.jpg", std::string("\xFF\xD8\0\0", 4)) + Member("b.JPG", std::string(5000, '\0')) +
      Member("README", "no extension") + Member("c.en.txt", "two") + Member("c.json", "[1]") +
      Member("__meta__.txt", "x") + Member("d.txt", "bad \xFF") + Member("e.json", "{}") + kEnd + "rest";
  EXPECT_EQ(ReadBack(*StoredObject(archive, kTarred).object.content),
            "{\"__key__\":\"dir/a\",\"txt\":\"one\\n\",\"n\":1,\"s\":\"x y\"}\n"
            "{\"__key__\":\"c\",\"en.txt\":\"two\",\"json\":\"[1]\"}\n"
            "{\"__key__\":\"d\",\"txt\":\"bad \xFF\"}\n");
}

TEST(Tar, ZippedFilesAreDecoded) {
  using testing::Gzip;
  const std::string archive = Member("a.json.gz", Gzip("{\"n\":1}")) + Member("a.txt.GZ", Gzip("one") + Gzip(" two")) +
                              Member("b.gz", Gzip("no field")) + kEnd;
  const std::string lines = ReadBack(*StoredObject(archive, kTarred).object.content);
  EXPECT_TRUE(lines.starts_with("{\"__key__\":\"a\",\"n\":1,\"txt\":\"one two\"}\n")) << lines;
  const StoredObject damaged(Member("a.txt.gz", "no gzip"), kTarred);
  EXPECT_NE(FindAll(*damaged.object.content).error().ToString().find("a.txt.gz"), std::string::npos);
}

TEST(Tar, ALineEndInAStringOfAJsonFileBreaksItsRecordAlone) {
  std::string archive = Member("a.json", "{\"text\":\"x\ny\"}") + Member("b.txt", "fine") + kEnd;
  std::string lines = ReadBack(*StoredObject(archive, kTarred).object.content);
  EXPECT_EQ(std::ranges::count(lines, '\n'), 2);
  EXPECT_TRUE(lines.ends_with("{\"__key__\":\"b\",\"txt\":\"fine\"}\n"));
  RecordTemplate form = RecordTemplate::Parse("{text}").value();
  EXPECT_EQ(RecordParser(form).Parse(lines.substr(0, lines.find('\n'))).error(), BrokenReason::kNotJson);
}

TEST(Tar, LongAndPaxNames) {
  std::string deep = std::string(150, 'd') + "/k";
  std::string pax_record = " path=pax/n.txt\n";
  pax_record = std::to_string(pax_record.size() + 2) + pax_record;
  std::string archive = Member(deep + ".txt", "deep") + Member("pax", pax_record, 'x') + Member("ignored", "text") +
                        Member("global", "12 comment=\n", 'g') + Member("z.txt", "last");  // and no end
  EXPECT_EQ(ReadBack(*StoredObject(archive, kTarred).object.content),
            "{\"__key__\":\"" + deep +
                "\",\"txt\":\"deep\"}\n{\"__key__\":\"pax/n\",\"txt\":\"text\"}\n"
                "{\"__key__\":\"z\",\"txt\":\"last\"}\n");
}

TEST(Tar, FramesAreCutBetweenSamples) {
  Random random(1);
  std::string archive, expected;
  for (int i = 0; archive.size() < 14 << 20; ++i) {
    std::string key = fmt::format("s{:06}", i);
    std::string text(random.Below(random.Below(20) == 0 ? 900'000 : 9000), 'a' + i % 26);
    archive += Member(key + ".txt", text) + Member(key + ".cls", "7");
    if (i % 3 == 0) archive += Member(key + ".png", std::string(random.Below(20'000), '\0'));
    expected += fmt::format("{{\"__key__\":\"{}\",\"txt\":\"{}\",\"cls\":\"7\"}}\n", key, text);
  }
  archive += kEnd;
  for (Compression compression : {Compression::kNone, Compression::kGzip}) {
    StoredObject stored(compression == Compression::kGzip ? testing::Gzip(archive, 1) : archive,
                        {RecordLayout::kTar, compression});
    EXPECT_GE(FindAll(*stored.object.content).value().frames.size(), 3u);
    EXPECT_TRUE(ReadBack(*stored.object.content) == expected);
  }
}

TEST(Tar, DamagedHeadersAndCutOffArchivesAreNamed) {
  std::string archive = Member("a.txt", std::string(3000, 'x')) + Member("b.txt", "y");
  for (auto [at, size] : {std::pair<std::size_t, std::size_t>{10, 0}, {3700, 0}, {0, 2000}, {0, 3600}}) {
    std::string damaged = archive;
    if (size > 0) damaged.resize(size);
    if (at > 0) damaged[at] ^= 1;
    auto all = FindAll(*StoredObject(damaged, kTarred).object.content);
    ASSERT_FALSE(all.has_value()) << at << ' ' << size;
    EXPECT_EQ(all.error().code(), Code::kCorrupt);
    EXPECT_NE(all.error().ToString().find("byte "), std::string::npos) << all.error().ToString();
  }
}

std::string PaxRecord(std::string_view key, std::string_view value) {
  for (std::size_t digits = 1;; ++digits) {
    std::string record = fmt::format(" {}={}\n", key, value);
    const std::string length = std::to_string(record.size() + digits);
    if (length.size() == digits) return length + record;
  }
}

TEST(Tar, MapsOfSparseFilesMustFit) {
  auto read = [](std::string_view map, std::string_view size) {
    const std::string pax =
        PaxRecord("GNU.sparse.size", size) + PaxRecord("GNU.sparse.name", "s.txt") + PaxRecord("GNU.sparse.map", map);
    const std::string archive = Member("pax", pax, 'x') + Member("GNUSparseFile.0/s.txt", "abcdef") + kEnd;
    auto all = FindAll(*StoredObject(archive, kTarred).object.content);
    return all ? std::string("right") : all.error().ToString();
  };
  EXPECT_EQ(read("0,2,10,4", "14"), "right");
  for (auto [map, size] : {std::pair{"0,2,10,4", "13"},
                           {"0,2,10,3", "14"},
                           {"0,2,1,4", "14"},
                           {"0,2,10", "14"},
                           {"0,18446744073709551615,10,4", "14"},
                           {"18446744073709551615,6", "14"}}) {
    EXPECT_NE(read(map, size).find("the map of the sparse file s.txt"), std::string::npos) << read(map, size);
  }
  EXPECT_NE(read("0,2,x,4", "14").find("a pax header"), std::string::npos) << read("0,2,x,4", "14");
}

/// A sparse file of one terabyte is one record that is too long. Thousands of them are an error.
TEST(Tar, SparseFilesAreNoWayAroundTheLimits) {
  const std::string pax = PaxRecord("GNU.sparse.size", "1099511627776") + PaxRecord("GNU.sparse.map", "0,1");
  const std::string bomb = Member("pax", pax, 'x');
  const std::string one = bomb + Member("a.txt", "x") + Member("b.txt", "small") + kEnd;
  const std::string lines = ReadBack(*StoredObject(one, kTarred).object.content);
  EXPECT_EQ(lines.find('\n'), kMaxRecordBytes + 1) << "cut where nobody will look";
  EXPECT_TRUE(lines.ends_with("{\"__key__\":\"b\",\"txt\":\"small\"}\n"));
  std::string many;
  for (int i = 0; i < 20; ++i) many += bomb + Member(fmt::format("{}.txt", i), "x");
  const auto all = FindAll(*StoredObject(many + kEnd, kTarred).object.content);
  ASSERT_FALSE(all.has_value());
  EXPECT_EQ(all.error().code(), Code::kUnsupported);
  EXPECT_NE(all.error().ToString().find("its record 16 "), std::string::npos) << all.error().ToString();
}

TEST(Tar, HostileBytesDoNoHarm) {
  Random random(2);
  std::string archive =
      Member(std::string(120, 'n') + ".txt", "long") + Member("a.txt", "x") + Member("a.json", "{\"k\":1}") + kEnd;
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = archive;
    std::size_t block = random.Below(damaged.size() / 512) * 512;
    for (int n = 0; n < 4; ++n) damaged[block + random.Below(512)] = static_cast<char>(random.Below(256));
    // With a right checksum.
    damaged.replace(block + 148, 8, "        ");
    std::uint64_t sum = 0;
    for (std::size_t k = 0; k < 512; ++k) sum += static_cast<unsigned char>(damaged[block + k]);
    Octal(damaged, block + 148, 6, sum);
    damaged[block + 154] = '\0';
    (void)FindAll(*StoredObject(damaged, kTarred).object.content);
  }
}

}  // namespace
}  // namespace millrace::data
