#include "millrace/s3d/oddity.h"

#include <gmock/gmock.h>

#include <set>

#include "millrace/base/files/files.h"
#include "millrace/s3d/fault.h"

namespace millrace::s3d {
namespace {

using ::testing::HasSubstr;

TEST(Oddity, EachHasANameAMeaningAndASource) {
  std::set<std::string_view> names;
  std::size_t at = 0;
  for (const OddityRow& row : OddityTable()) {
    EXPECT_EQ(static_cast<std::size_t>(row.oddity), at++) << "the order of the enumeration";
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.what.empty() || row.source.empty()) << row.name;
    EXPECT_EQ(FindOddity(row.name), row.oddity);
    EXPECT_THAT(FaultHelp(), HasSubstr(row.name));
  }
  EXPECT_FALSE(FindOddity("odd"));
}

TEST(Oddity, IsOrderedByItsName) {
  auto plan =
      FaultPlan::Parse("ignore-range,op=GetObject; weak-etags; error=ExpiredToken,op=PutObject; white-space=2s");
  ASSERT_TRUE(plan) << plan.error().ToString();
  const Fault get = (*plan)->Decide("GetObject", "b", "k");
  EXPECT_TRUE(get.oddities.test(static_cast<std::size_t>(Oddity::kIgnoreRange)));
  EXPECT_TRUE(get.oddities.test(static_cast<std::size_t>(Oddity::kWeakETags)));
  EXPECT_EQ(get.white_space, std::chrono::seconds(2));
  const Fault put = (*plan)->Decide("PutObject", "b", "k");
  EXPECT_FALSE(put.oddities.test(static_cast<std::size_t>(Oddity::kIgnoreRange)));
  EXPECT_EQ(put.error->code, "ExpiredToken");
  EXPECT_EQ(put.error->status, 400);
  EXPECT_THAT(FaultPlan::Parse("weak-etag").error().ToString(), HasSubstr("did you mean \"weak-etags\""));
}

}  // namespace
}  // namespace millrace::s3d
