#include "millrace/base/hash/constant_time.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(ConstantTimeEqual, Compares) {
  EXPECT_TRUE(ConstantTimeEqual("secret", "secret"));
  EXPECT_FALSE(ConstantTimeEqual("secret", "secreT"));
  EXPECT_FALSE(ConstantTimeEqual("secret", "secre"));
}

}  // namespace
}  // namespace millrace
