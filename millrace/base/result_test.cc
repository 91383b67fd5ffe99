#include "millrace/base/result.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace millrace {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return Fail(Code::kInvalidArgument, "{} is odd", n);
  return n / 2;
}
Result<int> Quarter(int n) { return MR_TRY(Half(MR_TRY(Half(n)))); }
Status CheckQuarter(int n) {
  MR_TRY(Quarter(n));
  return {};
}
Result<std::unique_ptr<int>> MoveOnly() { return std::make_unique<int>(7); }
Result<int> UnwrapMoveOnly() {
  std::unique_ptr<int> value = MR_TRY(MoveOnly());
  return *value;
}

TEST(Result, TryYieldsTheValueOrReturnsTheError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).error().ToString(), "3 is odd");
  EXPECT_TRUE(CheckQuarter(8));
  EXPECT_FALSE(CheckQuarter(5));
  EXPECT_EQ(*UnwrapMoveOnly(), 7);
}

TEST(Error, ContextKeepsTheCodeAndTheChain) {
  Error inner(Code::kThrottled, "slow down");
  Error outer = inner.Context("uploading part 3").Context("saving step 50");
  EXPECT_EQ(outer.code(), Code::kThrottled);
  EXPECT_EQ(outer.ToString(), "saving step 50: uploading part 3: slow down");
  ASSERT_NE(outer.cause(), nullptr);
  EXPECT_EQ(outer.cause()->message(), "uploading part 3");
  Error recoded = outer.WithCode(Code::kIo);
  EXPECT_EQ(recoded.code(), Code::kIo);
  EXPECT_EQ(recoded.ToString(), outer.ToString());
}

TEST(Error, EveryCodeHasItsRow) {
  for (int i = 0; i <= static_cast<int>(Code::kInternal); ++i) {
    Code code = static_cast<Code>(i);
    EXPECT_FALSE(CodeName(code).empty());
    EXPECT_GT(ToErrno(code), 0);
    EXPECT_GE(ToHttpStatus(code), 400);
    EXPECT_NE(ToExitStatus(code), 0) << CodeName(code);
  }
}

TEST(Error, TransientAndPermanentHttpStatuses) {
  for (int status : {408, 429, 500, 502, 503, 504}) EXPECT_TRUE(IsRetryable(CodeFromHttpStatus(status))) << status;
  for (int status : {400, 401, 403, 404, 409, 412, 416, 501})
    EXPECT_FALSE(IsRetryable(CodeFromHttpStatus(status))) << status;
  EXPECT_EQ(CodeFromHttpStatus(404), Code::kNotFound);
  EXPECT_EQ(CodeFromHttpStatus(412), Code::kPreconditionFailed);
}

TEST(Error, ErrnoRoundTrips) {
  for (int e :
       {ENOENT, EEXIST, EACCES, ENOSPC, ENOTDIR, EISDIR, ENOTEMPTY, EROFS, ENAMETOOLONG, ESTALE, ETIMEDOUT, EIO})
    EXPECT_EQ(ToErrno(CodeFromErrno(e)), e) << e;
  EXPECT_EQ(ErrnoError(ENOENT, "cannot open x").ToString(), "cannot open x: No such file or directory");
}

}  // namespace
}  // namespace millrace
