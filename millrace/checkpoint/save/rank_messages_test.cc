#include "millrace/checkpoint/save/rank_messages.h"

#include <gtest/gtest.h>

namespace millrace::checkpoint {
namespace {

RankReport SomeReport(RankReport::Contents contents) {
  RankReport report{.contents = contents};
  const std::string file = "0123456789abcdef/rank-00003.safetensors";
  report.part.files.emplace(file, FileMeta{.size = 24, .chunk_bytes = 4096, .chunk_crc32c = {7}});
  if (contents == RankReport::Contents::kFull) {
    report.part.tensors.emplace("model/w", TensorMeta{.dtype = DType::kF32, .shape = {4}});
    report.part.slices.push_back({.tensor = "model/w", .elements = 4, .file = file, .offset = 8});
  }
  return report;
}

TEST(RankMessages, AReportArrivesAsItWasSent) {
  for (const auto contents : {RankReport::Contents::kFull, RankReport::Contents::kFileOnly}) {
    const RankReport report = SomeReport(contents);
    const auto sent = DecodeReport(EncodeReport(report), 3);
    ASSERT_TRUE(sent) << sent.error().ToString();
    EXPECT_EQ(sent->contents, contents);
    EXPECT_EQ(sent->part.Serialize(), report.part.Serialize());
  }
}

TEST(RankMessages, AnErrorArrivesWithItsRank) {
  const auto sent = DecodeReport(EncodeReport(Fail(Code::kNoSpace, "the disk is full")), 3);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code(), Code::kNoSpace);
  EXPECT_EQ(sent.error().ToString(), "rank 3: the disk is full");
}

TEST(RankMessages, RefusesWhatIsNoReport) {
  const std::string good = EncodeReport(SomeReport(RankReport::Contents::kFull));
  constexpr std::size_t kContents = 2;  // the byte behind the result's header
  std::string unknown = good;
  unknown[kContents] = '+';
  for (const std::string& bad : {std::string(), good.substr(0, kContents), good.substr(0, kContents + 1), unknown,
                                 good.substr(0, good.size() - 2), good.substr(kContents)})
    EXPECT_FALSE(DecodeReport(bad, 0)) << bad;
}

TEST(RankMessages, AnOutcomeArrivesAsItWasSent) {
  for (const bool is_unknown : {false, true}) {
    for (const bool failed : {false, true}) {
      const Status status = failed ? Status(Fail(Code::kAlreadyExists, "step 7 is taken")) : Status();
      const CommitOutcome sent = DecodeOutcome(EncodeOutcome({status, is_unknown}));
      EXPECT_EQ(sent.is_unknown, is_unknown);
      ASSERT_EQ(sent.status.has_value(), !failed);
      if (failed) EXPECT_EQ(sent.status.error().ToString(), "step 7 is taken");
    }
  }
}

TEST(RankMessages, WhatIsNoOutcomeIsUnknown) {
  const std::string good = EncodeOutcome({});
  for (const std::string& bad : {std::string(), good.substr(1), std::string("!")}) {
    const CommitOutcome outcome = DecodeOutcome(bad);
    EXPECT_FALSE(outcome.status) << bad;
    EXPECT_TRUE(outcome.is_unknown) << bad;
  }
}

}  // namespace
}  // namespace millrace::checkpoint
