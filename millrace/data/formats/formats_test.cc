#include "millrace/data/formats/format.h"

#include <gtest/gtest.h>

#include "millrace/data/records/record_template.h"
#include "millrace/data/testing/stored_object.h"

namespace millrace::data {
namespace {

using testing::FindAll;
using testing::Gzip;
using testing::InPieces;
using testing::RandomRecord;
using testing::RandomRecords;
using testing::ReadBack;
using testing::StoredObject;
using testing::Zstd;

const DataFormat kGzipped{RecordLayout::kJsonLines, Compression::kGzip},
    kZstandard{RecordLayout::kJsonLines, Compression::kZstd};

TEST(Format, IsWhatTheNameOrTheSourceSays) {
  auto name = [](std::string_view declared, std::string_view key) {
    auto format = FormatOf(declared, key);
    return format ? format->Name() : std::string(CodeName(format.error().code()));
  };
  EXPECT_EQ(name("", "a/b.jsonl"), "jsonl");
  EXPECT_EQ(name("", "a/part-00000"), "jsonl");
  EXPECT_EQ(name("", "c4-train.00000-of-01024.json.gz"), "jsonl+gzip");
  EXPECT_EQ(name("", "A.JSONL.ZST"), "jsonl+zstd");
  EXPECT_EQ(name("", "b.txt"), "text");
  EXPECT_EQ(name("", "b.txt.gz"), "text+gzip");
  EXPECT_EQ(name("", "shard-000.tar"), "tar");
  EXPECT_EQ(name("", "shard-000.tgz"), "tar+gzip");
  EXPECT_EQ(name("", "data-00000-of-00001.arrow"), "arrow");
  EXPECT_EQ(name("", "t.parquet"), "parquet");
  EXPECT_EQ(name("lines", "b.txt.zst"), "lines+zstd");
  EXPECT_EQ(name("lines+none", "b.txt.zst"), "lines");
  EXPECT_EQ(name("jsonl+gzip", "b.bin"), "jsonl+gzip");
  EXPECT_EQ(name("", "a.jsonl.bz2"), "unsupported");
  EXPECT_EQ(name("line", "a.txt"), "invalid_argument");
  EXPECT_EQ(name("lines+gz", "a.txt"), "invalid_argument");
}

TEST(Format, WhatDescribesDataIsNone) {
  for (std::string_view key : {"a/README.md", "dataset_info.json", "report.json", "x/_SUCCESS", ".part.crc", "t.idx",
                               "LICENSE", "meta.yaml", "SHA256SUMS"}) {
    EXPECT_FALSE(MayHoldRecords(key)) << key;
  }
  for (std::string_view key : {"a/b.jsonl", "part-00000", "_x/a.json", "a.txt", "a.json.gz"}) {
    EXPECT_TRUE(MayHoldRecords(key)) << key;
  }
}

TEST(Gzip, EveryRecordComesBackFromOneMember) {
  Random random(1);
  for (int level : {1, 6}) {
    std::string lines = RandomRecords(random, level == 1 ? 13 << 20 : 9 << 20, 1 << 20);
    const std::string packed = Gzip(lines, level);
    StoredObject stored(packed, kGzipped);
    auto all = FindAll(*stored.object.content).value();
    EXPECT_GE(all.frames.size(), level == 1 ? 3u : 2u) << "it is entered in the middle";
    std::uint64_t state = 0;
    for (const Frame& frame : all.frames) {
      state += frame.state.size();
      EXPECT_LT(frame.bytes, 3 * packed.size() / all.frames.size());
    }
    EXPECT_LT(state, lines.size() / 100);
    EXPECT_TRUE(ReadBack(*stored.object.content) == lines);
  }
}

TEST(Gzip, MembersOfAnySizeAreCoalesced) {
  Random random(2);
  std::string lines = RandomRecords(random, 12 << 20, 5 << 20);
  for (std::size_t longest : {std::size_t{64} << 10, std::size_t{3} << 20, std::size_t{9} << 20}) {
    std::string packed = InPieces(random, lines, longest, [](std::string_view text) { return Gzip(text, 1); });
    packed += std::string(777, '\0');  // padding, as on tapes
    StoredObject stored(packed, kGzipped);
    auto all = FindAll(*stored.object.content).value();
    EXPECT_LE(all.frames.size(), 4u);
    EXPECT_TRUE(ReadBack(*stored.object.content) == lines);
  }
}

TEST(Gzip, StoredAndFixedBlocksAndNoBytesAtAll) {
  Random random(3);
  std::string lines = RandomRecords(random, 9 << 20, 4000);
  EXPECT_TRUE(ReadBack(*StoredObject(Gzip(lines, 0), kGzipped).object.content) == lines);
  EXPECT_EQ(ReadBack(*StoredObject(Gzip(""), kGzipped).object.content), "");
  EXPECT_EQ(ReadBack(*StoredObject(Gzip("{\"text\":\"a\"}"), kGzipped).object.content), "{\"text\":\"a\"}\n");
  EXPECT_EQ(ReadBack(*StoredObject(Gzip("") + Gzip("{}\n") + Gzip(""), kGzipped).object.content), "{}\n");
}

TEST(Zstd, FramesOfAnySizeComeBack) {
  Random random(4);
  std::string lines = RandomRecords(random, 16 << 20, 5 << 20);
  for (std::size_t longest : {std::size_t{100} << 10, std::size_t{6} << 20, std::size_t{64} << 20}) {
    std::string packed;
    packed = InPieces(random, lines, longest, [](std::string_view text) {
      std::string skippable("\x5a\x2a\x4d\x18\x05\x00\x00\x00hello", 13);
      return Zstd(text, 1) + skippable;
    });
    StoredObject stored(packed, kZstandard);
    EXPECT_TRUE(ReadBack(*stored.object.content) == lines) << longest;
  }
  EXPECT_EQ(ReadBack(*StoredObject(Zstd(""), kZstandard).object.content), "");
}

/// Damage is an error that names the object and a byte, or changes nothing. It never yields a wrong record.
void DamageIsFound(const std::string& packed, const std::string& lines, DataFormat format) {
  Random random(5);
  for (int i = 0; i < 60; ++i) {
    std::string damaged = packed;
    if (i % 3 == 0) {
      damaged.resize(random.Below(packed.size()));
    } else {
      damaged[random.Below(packed.size())] ^= static_cast<char>(1 << random.Below(8));
    }
    auto all = FindAll(*StoredObject(damaged, format, "s3://corpus/damaged").object.content);
    if (all) {
      std::string text;
      for (const std::string& one : all->contents) text += one;
      // A cut between two members or frames is no damage.
      EXPECT_TRUE(text == lines || (i % 3 == 0 && lines.starts_with(text.substr(0, text.size() - 1)))) << i;
      continue;
    }
    std::string message = all.error().ToString();
    EXPECT_TRUE(all.error().code() == Code::kCorrupt || all.error().code() == Code::kUnsupported) << message;
    EXPECT_NE(message.find("s3://corpus/damaged"), std::string::npos) << message;
    EXPECT_NE(message.find("byte "), std::string::npos) << message;
  }
}

TEST(Gzip, DamageIsFound) {
  Random random(6);
  std::string lines = RandomRecords(random, 300 << 10, 4000);
  DamageIsFound(InPieces(random, lines, 200 << 10, [](std::string_view t) { return Gzip(t); }), lines, kGzipped);
}

TEST(Zstd, DamageIsFound) {
  Random random(7);
  std::string lines = RandomRecords(random, 300 << 10, 4000);
  DamageIsFound(InPieces(random, lines, 200 << 10, [](std::string_view t) { return Zstd(t); }), lines, kZstandard);
}

TEST(Decoded, AFrameThatDecodesToSomethingElseIsRefused) {
  Random random(8);
  std::string lines = RandomRecords(random, 13 << 20, 4000);
  StoredObject stored(Gzip(lines, 1), kGzipped);
  auto all = FindAll(*stored.object.content).value();
  ASSERT_GE(all.frames.size(), 3u);
  for (int i = 0; i < 30; ++i) {
    Frame frame = all.frames[1];
    std::size_t at = random.Below(frame.state.size());
    frame.state[at] ^= static_cast<char>(1 << random.Below(8));
    if (i % 3 == 0) frame.state.resize(random.Below(frame.state.size()));
    auto read = stored.object.content->ReadFrame(frame, {});
    // A changed bit does no harm in a part of the window that no match uses.
    if (read) {
      EXPECT_TRUE(AsText(*read) == all.contents[1]);
    } else {
      EXPECT_EQ(read.error().code(), Code::kCorrupt);
    }
  }
  // Another object with the same frames must fail, although it decodes.
  std::string other = lines;
  other[lines.size() / 2] ^= 1;
  StoredObject changed(Gzip(other, 1), kGzipped);
  bool refused = false;
  for (const Frame& frame : all.frames) {
    auto read = changed.object.content->ReadFrame(frame, {});
    refused |= !read && read.error().code() == Code::kCorrupt;
  }
  EXPECT_TRUE(refused);
}

TEST(Lines, ALineIsADocumentWhateverIsInIt) {
  StoredObject stored("plain\n\n  \ntab\tquote\" back\\slash \x01\r\n\xC3\xA9\nnot utf8 \xFF\nlast",
                      {RecordLayout::kLines});
  EXPECT_EQ(ReadBack(*stored.object.content),
            "{\"text\":\"plain\"}\n{\"text\":\"tab\\tquote\\\" back\\\\slash \\u0001\"}\n{\"text\":\"\xC3\xA9\"}\n"
            "{\"text\":\"not utf8 \xFF\"}\n{\"text\":\"last\"}\n");
  RecordTemplate form = RecordTemplate::Parse("{text}").value();
  RecordParser parser(form);
  EXPECT_EQ(parser.Parse("{\"text\":\"not utf8 \xFF\"}").error(), BrokenReason::kNotUtf8);
}

TEST(Text, EveryDocumentComesBackAsItWas) {
  RecordTemplate form = RecordTemplate::Parse("{text}").value();
  RecordParser parser(form);
  Random random(9);
  // Sizes around the limit of a record, and text that cannot be cut.
  for (std::size_t size : {std::size_t{1}, std::size_t{5000}, std::size_t{15} << 20, std::size_t{18} << 20}) {
    std::string text;
    while (text.size() < size) {
      text += testing::RandomRecord(random, 1 + random.Below(2 << 20));
      text += "\x02\r\n";
    }
    text.resize(size);
    for (Compression compression : {Compression::kNone, Compression::kZstd}) {
      std::string packed = compression == Compression::kZstd ? Zstd(text, 1) : text;
      StoredObject stored(packed, {RecordLayout::kText, compression});
      std::string lines = ReadBack(*stored.object.content), whole;
      std::size_t documents = 0;
      for (std::string_view rest = lines; !rest.empty(); ++documents) {
        std::size_t end = rest.find('\n');
        auto document = parser.Parse(rest.substr(0, end));
        ASSERT_TRUE(document.has_value()) << BrokenReasonName(document.error());
        whole += *document;
        rest.remove_prefix(end + 1);
      }
      EXPECT_TRUE(whole == text) << size;
      EXPECT_EQ(documents > 1, size > 15 << 20);
    }
  }
}

TEST(Text, ALineThatFillsMoreThanARecordIsABrokenRecord) {
  std::string text = "first\n" + std::string(17 << 20, 'x') + "\nlast\n";
  std::string lines = ReadBack(*StoredObject(text, {RecordLayout::kText}).object.content);
  EXPECT_TRUE(lines.starts_with("{\"text\":\"first\\n\"}\n{\"text\":\"xxx"));
  EXPECT_TRUE(lines.ends_with("{\"text\":\"last\\n\"}\n"));
}

}  // namespace
}  // namespace millrace::data
