// Keys, and which steps retention keeps.
#include "millrace/checkpoint/format/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/base/hash/random.h"

namespace millrace::checkpoint {
namespace {

TEST(Layout, ParsesTheKeysItMakesAndNoOthers) {
  for (std::string root : {"", "runs/a", "runs/a/"}) {
    Layout layout(root);
    for (std::uint64_t step : {std::uint64_t{0}, std::uint64_t{150}, std::uint64_t{123456789}, kMaxStep}) {
      EXPECT_EQ(layout.StepOfManifest(layout.ManifestKey(step)), step);
      std::string attempt = NewAttempt(), key = layout.StepFolder(step) + RankFile(attempt, 3);
      auto parsed = layout.ParseFileKey(key);
      ASSERT_TRUE(parsed) << key;
      EXPECT_EQ(parsed->step, step);
      EXPECT_EQ(parsed->attempt, attempt);
      EXPECT_FALSE(layout.StepOfManifest(key));
      EXPECT_FALSE(layout.ParseFileKey(layout.ManifestKey(step)));
    }
  }
  Layout layout("r");
  for (const char* key :
       {"r/step-150.json", "r/step-000000150.json", "r/step-00000150", "r/step-.json", "r/step--0000015.json",
        "step-00000150.json", "r/step-99999999999999999999.json", "r/step-00000150/x.json"}) {
    EXPECT_FALSE(layout.StepOfManifest(key)) << key;
  }
  EXPECT_FALSE(layout.ParseFileKey("r/step-00000150/notes/rank-00000.safetensors"));
  EXPECT_EQ(NewFence().size(), kFenceBytes);
  EXPECT_TRUE(IsFence(NewFence()));
  EXPECT_FALSE(IsFence(std::string(kFenceBytes, '{')));
  EXPECT_FALSE(IsFence(""));
  EXPECT_NE(NewFence(), NewFence());
}

TEST(Layout, ParsesTheMarksItMakesAndNoOthers) {
  const Layout layout("runs/a");
  using Kind = Layout::Mark::Kind;
  for (const auto& [key, kind] : {std::pair(layout.PinKey(7), Kind::kPin), std::pair(layout.NewHoldKey(7), Kind::kHold),
                                  std::pair(layout.NewGoingKey(7), Kind::kGoing)}) {
    const auto mark = layout.ParseMark(key);
    ASSERT_TRUE(mark) << key;
    EXPECT_EQ(mark->step, 7u);
    EXPECT_EQ(mark->kind, kind);
    EXPECT_TRUE(key.starts_with(layout.MarksPrefix(7)));
    EXPECT_FALSE(layout.StepOfManifest(key));
    EXPECT_FALSE(layout.ParseFileKey(key));
  }
  for (const char* key : {"runs/a/step-00000007.json", "runs/a/step-00000007", "runs/a/step-7.pin",
                          "runs/a/step-00000007.hold-", "runs/a/step-00000007.hold-0123", "runs/a/step-00000007/x.pin"})
    EXPECT_FALSE(layout.ParseMark(key)) << key;
}

TEST(Retained, HoldsItsRules) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    std::set<std::uint64_t> committed;
    for (std::uint64_t i = 1 + random.Below(20); i > 0; --i) committed.insert(random.Below(60));
    Retention retention{.keep_last = static_cast<int>(1 + random.Below(5)), .keep_every = random.Below(10)};
    auto kept = Retained(committed, retention);
    EXPECT_TRUE(std::includes(committed.begin(), committed.end(), kept.begin(), kept.end()));
    EXPECT_EQ(Retained(kept, retention), kept) << "applying it again changes nothing";
    std::size_t rank = 0;
    for (auto step = committed.rbegin(); step != committed.rend(); ++step, ++rank) {
      bool wanted = rank < static_cast<std::size_t>(retention.keep_last) ||
                    (retention.keep_every > 0 && *step % retention.keep_every == 0);
      EXPECT_EQ(kept.contains(*step), wanted) << *step;
    }
  }
}

TEST(Retained, TheBestAreThoseOfTheDefinition) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    std::set<std::uint64_t> committed;
    std::map<std::uint64_t, double> metric;
    for (std::uint64_t i = 1 + random.Below(20); i > 0; --i) committed.insert(random.Below(60));
    for (std::uint64_t step : committed)
      if (random.Below(4)) metric[step] = static_cast<double>(random.Below(10));
    const Retention retention{
        .keep_last = 1, .keep_best = static_cast<int>(random.Below(5)), .greatest = random.Below(2) == 1};
    const auto kept = Retained(committed, retention, metric);
    for (const auto& [step, value] : metric) {
      int better = 0;
      for (const auto& [other, theirs] : metric) {
        const bool beats = retention.greatest ? theirs > value : theirs < value;
        better += beats || (theirs == value && other > step);
      }
      EXPECT_EQ(kept.contains(step), better < retention.keep_best || step == *committed.rbegin()) << step;
    }
    std::map<std::uint64_t, double> left;
    for (std::uint64_t step : kept)
      if (metric.contains(step)) left[step] = metric[step];
    EXPECT_EQ(Retained(kept, retention, left), kept) << "applying it again changes nothing";
  }
}

}  // namespace
}  // namespace millrace::checkpoint
