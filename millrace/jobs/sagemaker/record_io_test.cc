#include "millrace/jobs/sagemaker/record_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "millrace/base/hash/random.h"

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kMagicText = "\x0a\x23\xd7\xce";

std::string Word(std::uint32_t word) {
  std::string text;
  for (int shift = 0; shift < 32; shift += 8) text += static_cast<char>(word >> shift & 0xff);
  return text;
}

std::string Part(std::uint32_t kind, const std::string& bytes) {
  return kMagicText + Word(kind << 29 | static_cast<std::uint32_t>(bytes.size())) + bytes +
         std::string((4 - bytes.size() % 4) % 4, '\0');
}

/// Frames a record as dmlc-core's RecordIOWriter does: cuts it at aligned magic numbers.
std::string Frame(const std::string& record) {
  std::vector<std::string> parts{""};
  for (std::size_t at = 0; at < record.size();) {
    if (at % 4 == 0 && record.compare(at, 4, kMagicText) == 0) {
      parts.emplace_back();
      at += 4;
    } else {
      parts.back() += record[at++];
    }
  }
  std::string framed;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::uint32_t kind = parts.size() == 1 ? 0 : i == 0 ? 1 : i + 1 < parts.size() ? 2 : 3;
    framed += Part(kind, parts[i]);
  }
  return framed;
}

/// Decodes a stream that comes in runs of `run` bytes.
Result<std::vector<std::string>> Decode(std::string_view stream, std::size_t run = 1 << 20) {
  std::vector<std::string> records;
  std::string open;
  RecordIoDecoder decoder(
      [&](ByteSpan bytes) {
        open += AsText(bytes);
        return Status();
      },
      [&] {
        records.push_back(std::exchange(open, ""));
        return Status();
      });
  for (std::size_t at = 0; at < stream.size(); at += run) MR_TRY(decoder.Add(AsBytes(stream.substr(at, run))));
  MR_TRY(decoder.Finish());
  EXPECT_EQ(decoder.records(), records.size());
  return records;
}

TEST(RecordIo, RecordsComeBackInWhateverRunsTheyArrive) {
  Random random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> records;
    std::string stream;
    for (std::uint64_t i = random.Below(5); i-- > 0;) {
      std::string record;
      for (std::uint64_t n = random.Below(12); n-- > 0;) {
        record += random.Below(3) == 0 ? kMagicText : std::string(random.Below(9), 'a');
      }
      stream += Frame(record);
      records.push_back(std::move(record));
    }
    for (const std::size_t run : {1, 3, 7, 1 << 20}) {
      const auto decoded = Decode(stream, run);
      ASSERT_TRUE(decoded) << decoded.error().ToString();
      EXPECT_EQ(*decoded, records);
    }
  }
}

TEST(RecordIo, BytesAreThoseOfMxnet) {
  // mxnet.recordio.MXRecordIO("t", "w").write(b"hello") makes these bytes.
  const std::string hello("\x0a\x23\xd7\xce\x05\x00\x00\x00hello\x00\x00\x00", 16);
  EXPECT_THAT(*Decode(hello), ElementsAre("hello"));
  EXPECT_THAT(*Decode(hello + Part(0, "")), ElementsAre("hello", ""));
}

TEST(RecordIo, WhatIsNoRecordIsRefused) {
  EXPECT_THAT(Decode("{\"text\": \"plain\"}").error().ToString(), HasSubstr("no RecordIO record"));
  EXPECT_THAT(Decode(Part(0, "abcde").substr(0, 10)).error().ToString(), HasSubstr("ends within a RecordIO record"));
  EXPECT_THAT(Decode(Part(1, "abcd")).error().ToString(), HasSubstr("ends within"));
  EXPECT_FALSE(Decode(Part(3, "abcd"))) << "a last part without a first one";
  EXPECT_FALSE(Decode(Part(1, "abcd") + Part(0, "abcd"))) << "a whole record within another";
  EXPECT_FALSE(Decode(Part(5, "abcd"))) << "there is no such kind";
  EXPECT_TRUE(Decode(""));
}

}  // namespace
}  // namespace millrace::jobs
