#include "millrace/base/process/work_share.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

TEST(WorkShare, EachItemBelongsToOneShare) {
  constexpr std::uint32_t kCount = 3;
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const WorkShare share{.index = i, .count = kCount};
    std::uint64_t names = 0;
    for (int n = 0; n < 3000; ++n) names += share.HasName("folder/file-" + std::to_string(n)) ? 1U : 0U;
    EXPECT_GT(names, 800U);
    most += names;
    EXPECT_EQ(share.Has(4), i == 1);
  }
  EXPECT_EQ(most, 3000U);
  EXPECT_TRUE(WorkShare{}.is_all() && WorkShare{}.Has(7) && WorkShare{}.HasName("any"));
}

TEST(WorkShare, IsReadFromText) {
  EXPECT_EQ(*WorkShare::Parse("2/5"), (WorkShare{.index = 2, .count = 5}));
  for (const char* text : {"", "1", "5/5", "-1/5", "1/0", "0/", "/3", "0/3 ", "a/3", "0/2000000"}) {
    EXPECT_EQ(WorkShare::Parse(text).error().code(), Code::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace millrace
