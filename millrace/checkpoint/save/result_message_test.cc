#include "millrace/checkpoint/save/result_message.h"

#include <gtest/gtest.h>

namespace millrace::checkpoint {
namespace {

TEST(ResultMessage, AResultArrivesAsItWasSent) {
  for (const std::string& text : {std::string(), std::string("5d1c0a9be2f34471"), std::string("\0!?+=\x81", 6)}) {
    const auto sent = DecodeResult(EncodeResult(text));
    ASSERT_TRUE(sent) << sent.error().ToString();
    EXPECT_EQ(*sent, text);
  }
  for (int code = 0; code <= static_cast<int>(Code::kInternal); ++code) {
    const Error error = Error(static_cast<Code>(code), "the disk is full").Context("rank 3");
    const auto sent = DecodeResult(EncodeResult(Fail(error)));
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().code(), error.code());
    EXPECT_EQ(sent.error().ToString(), error.ToString());
  }
}

TEST(ResultMessage, RefusesWhatIsNoMessage) {
  const std::string good = EncodeResult(std::string("text"));
  for (const std::string& bad : {std::string(), std::string("text"), good.substr(0, 1), good.substr(1),
                                 std::string("\0attempt", 8), good.substr(0, 1) + '\xff' + "text"}) {
    const auto refused = DecodeResult(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().code(), Code::kInternal);
  }
}

}  // namespace
}  // namespace millrace::checkpoint
