#include "millrace/tracking/mlflow_names.h"

#include <gtest/gtest.h>

namespace millrace::tracking {
namespace {

TEST(MlflowNames, KeepsWhatMlflowTakes) {
  for (const char* name : {"loss", "train/loss", "train.optimizer.lr", "a b_c-d.e/9"}) {
    EXPECT_EQ(MlflowKey(name), name);
  }
}

TEST(MlflowNames, ReplacesOtherCharacters) {
  EXPECT_EQ(MlflowKey("data.sources[0].url"), "data.sources.0.url");
  EXPECT_EQ(MlflowKey("acc@1:é"), "acc_1___");
  EXPECT_EQ(MlflowKey("/a//b/./c/.."), "a/b/c");
  EXPECT_EQ(MlflowKey(".."), "_");
  EXPECT_EQ(MlflowKey(""), "_");
}

TEST(MlflowNames, TellsLongNamesApart) {
  const std::string one = std::string(300, 'a') + "1", two = std::string(300, 'a') + "2";
  EXPECT_EQ(MlflowKey(one).size(), kMaxMlflowKey);
  EXPECT_NE(MlflowKey(one), MlflowKey(two));
}

TEST(MlflowNames, CutsBetweenCharacters) {
  EXPECT_EQ(CutText("abc", 3), "abc");
  EXPECT_EQ(CutText("abcd", 3), "abc");
  EXPECT_EQ(CutText("aé", 2), "a");
  EXPECT_EQ(CutText("数据", 4), "数");
}

}  // namespace
}  // namespace millrace::tracking
