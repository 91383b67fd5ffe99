// Keys of checkpoints.
#include "millrace/checkpoint/format/checkpoint_keys.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/base/hash/random.h"

namespace millrace::checkpoint {
namespace {

TEST(CheckpointKeys, ParsesTheKeysItMakesAndNoOthers) {
  for (std::string root : {"", "runs/a", "runs/a/"}) {
    CheckpointKeys layout(root);
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
  CheckpointKeys layout("r");
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

TEST(CheckpointKeys, ParsesTheMarksItMakesAndNoOthers) {
  const CheckpointKeys layout("runs/a");
  using MarkKind = CheckpointKeys::MarkKind;
  for (const auto& [key, kind] :
       {std::pair(layout.PinKey(7), MarkKind::kPin), std::pair(layout.NewHoldKey(7), MarkKind::kHold),
        std::pair(layout.NewRemovalKey(7), MarkKind::kRemoval)}) {
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

}  // namespace
}  // namespace millrace::checkpoint
