#include "millrace/jobs/cost.h"

#include <gtest/gtest.h>

namespace millrace::jobs {
namespace {

using std::chrono::minutes;

TEST(CostMeterTest, CountsMachinesAndTime) {
  const TimePoint begin(minutes(7));
  CostMeter meter({.price_per_hour = 12, .currency = "EUR", .cap = 10}, begin, 1);
  meter.Count(begin + minutes(15), 2);
  EXPECT_DOUBLE_EQ(meter.spent(), 1 + 6);
  EXPECT_FALSE(meter.capped());
  meter.Count(begin + minutes(30), 1);
  EXPECT_DOUBLE_EQ(meter.spent(), 10);
  EXPECT_TRUE(meter.capped());
}

TEST(CostMeterTest, WithoutAPriceThereIsNoLimit) {
  CostMeter meter({.cap = 0.5}, TimePoint(), 0);
  meter.Count(TimePoint(minutes(600)), 8);
  EXPECT_FALSE(meter.known());
  EXPECT_FALSE(meter.capped());
}

TEST(CostMeterTest, SmallAmountsHaveMoreDigits) {
  EXPECT_EQ(FormatCost(1234.567, "USD"), "1234.57 USD");
  EXPECT_EQ(FormatCost(0.01234, "EUR"), "0.0123 EUR");
  EXPECT_EQ(FormatCost(0, "USD"), "0.00 USD");
}

}  // namespace
}  // namespace millrace::jobs
