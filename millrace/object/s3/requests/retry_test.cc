#include "millrace/object/s3/requests/retry.h"

#include <gmock/gmock.h>

#include <latch>

#include "millrace/object/s3/requests/timers.h"

namespace millrace::object::s3 {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

http::Response ErrorAnswer(int status, std::string_view code, std::string_view extra = {}) {
  http::Response response{.status = status};
  if (!code.empty()) response.body = fmt::format("<Error><Code>{}</Code><Message>m</Message>{}</Error>", code, extra);
  return response;
}

struct Case {
  int status;
  std::string s3_code;
  Code code;
  bool ambiguous;
};

TEST(Classify, DecidesByCodeThenByStatus) {
  for (const Case& c : {
           Case{404, "NoSuchKey", Code::kNotFound, false},
           Case{404, "", Code::kNotFound, false},
           Case{404, "NoSuchUpload", Code::kNotFound, false},
           Case{403, "AccessDenied", Code::kPermissionDenied, false},
           Case{412, "PreconditionFailed", Code::kPreconditionFailed, false},
           Case{503, "SlowDown", Code::kThrottled, false},
           Case{429, "", Code::kThrottled, false},
           Case{503, "ServiceUnavailable", Code::kUnavailable, true},
           Case{500, "InternalError", Code::kUnavailable, true},
           Case{502, "", Code::kUnavailable, true},
           Case{400, "RequestTimeout", Code::kUnavailable, false},
           Case{400, "BadDigest", Code::kUnavailable, false},
           Case{409, "ConditionalRequestConflict", Code::kUnavailable, false},
           Case{400, "EntityTooSmall", Code::kInvalidArgument, false},
           Case{409, "BucketNotEmpty", Code::kNotEmpty, false},
           Case{501, "NotImplemented", Code::kUnsupported, false},
           Case{200, "InternalError", Code::kUnavailable, true},
           Case{200, "NoSuchKey", Code::kNotFound, false},
       }) {
    Refusal refusal = Classify(ErrorAnswer(c.status, c.s3_code), {});
    EXPECT_EQ(refusal.code, c.code) << c.status << " " << c.s3_code;
    EXPECT_EQ(refusal.ambiguous, c.ambiguous) << c.status << " " << c.s3_code;
    EXPECT_EQ(refusal.s3_code, c.s3_code);
  }
}

TEST(Classify, TellsTheUserWhatTheServerSaid) {
  http::Response response = ErrorAnswer(403, "SignatureDoesNotMatch");
  response.headers.Set("x-amz-request-id", "REQ1");
  EXPECT_EQ(Classify(response, {}).message,
            "m (SignatureDoesNotMatch, HTTP 403, request REQ1); check the secret key, and that no proxy rewrites "
            "requests");
  EXPECT_EQ(Classify(ErrorAnswer(502, ""), {}).message, "refused (HTTP 502)");
}

TEST(Classify, FindsTheRegion) {
  http::Response response{.status = 301};
  response.headers.Set("x-amz-bucket-region", "eu-west-1");
  EXPECT_EQ(Classify(response, {}).region, "eu-west-1");
  EXPECT_EQ(Classify(ErrorAnswer(400, "AuthorizationHeaderMalformed", "<Region>ap-south-1</Region>"), {}).region,
            "ap-south-1");
}

TEST(Classify, ReadsRetryAfter) {
  http::Response response = ErrorAnswer(503, "SlowDown");
  response.headers.Set("Retry-After", "7");
  EXPECT_EQ(Classify(response, {}).wait, seconds(7));
  WallTime now = *ParseHttpDate("Sat, 31 Jan 2026 12:00:00 GMT");
  response.headers.Set("Retry-After", "Sat, 31 Jan 2026 12:00:30 GMT");
  EXPECT_EQ(Classify(response, now).wait, seconds(30));
  for (const char* nonsense : {"soon", "-3", ""}) {
    response.headers.Set("Retry-After", nonsense);
    EXPECT_FALSE(Classify(response, now).wait) << nonsense;
  }
}

TEST(RetryBudget, EndsWhenRetriesFailAndComesBackWithSuccess) {
  RetryBudget budget(20);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(budget.TakeForRetry());
  EXPECT_FALSE(budget.TakeForRetry());
  for (int i = 0; i < 4; ++i) budget.Succeeded();
  EXPECT_FALSE(budget.TakeForRetry());
  budget.Succeeded();
  EXPECT_TRUE(budget.TakeForRetry());
  for (int i = 0; i < 1000; ++i) budget.Succeeded();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(budget.TakeForRetry()) << "successes are not saved up beyond the capacity";
  EXPECT_FALSE(budget.TakeForRetry());
}

TEST(RetryNotice, TellsAfterASecondThenNowAndThen) {
  RetryNotice notice;
  const TimePoint start;
  EXPECT_FALSE(notice.IsDue(start, milliseconds(900)));
  EXPECT_TRUE(notice.IsDue(start, milliseconds(1000)));
  EXPECT_FALSE(notice.IsDue(start, seconds(5))) << "another operation that waits too";
  EXPECT_FALSE(notice.IsDue(start + seconds(9), seconds(9)));
  EXPECT_TRUE(notice.IsDue(start + seconds(10), seconds(10)));
}

TEST(Backoff, GrowsIsJitteredAndBounded) {
  Backoff backoff(1);
  for (int attempt = 1; attempt <= 40; ++attempt) {
    Duration bound = std::min<Duration>(seconds(20), milliseconds(50) * (std::int64_t{1} << std::min(attempt - 1, 20)));
    Duration longest{}, shortest = Duration::max();
    for (int i = 0; i < 200; ++i) {
      Duration wait = backoff.Wait(attempt, Code::kUnavailable, std::nullopt);
      longest = std::max(longest, wait);
      shortest = std::min(shortest, wait);
    }
    EXPECT_LE(longest, bound);
    EXPECT_GE(longest, bound / 2) << attempt;
    EXPECT_LE(shortest, bound / 2) << attempt;
  }
}

TEST(Backoff, WaitsAsLongAsItIsAskedToWithinReason) {
  Backoff backoff(1);
  EXPECT_GE(backoff.Wait(1, Code::kThrottled, seconds(3)), seconds(3));
  EXPECT_LE(backoff.Wait(1, Code::kThrottled, std::chrono::hours(24)), seconds(20));
}

TEST(Timers, RunInOrderOfTime) {
  FakeClock clock;
  Timers timers(clock);
  std::vector<int> ran;
  std::latch done(3);
  for (int i : {3, 1, 2}) {
    timers.After(seconds(i), {}, [&, i] {
      ran.push_back(i);
      done.count_down();
    });
  }
  clock.AwaitSleepers(1);
  clock.Advance(seconds(10));
  done.wait();
  EXPECT_THAT(ran, ::testing::ElementsAre(1, 2, 3));
}

TEST(Timers, AnEarlierOneEndsTheSleepForALaterOne) {
  FakeClock clock;
  Timers timers(clock);
  std::latch late(1), early(1);
  timers.After(std::chrono::hours(1), {}, [&] { late.count_down(); });
  clock.AwaitSleepers(1);
  timers.After(Duration(0), {}, [&] { early.count_down(); });
  early.wait();
  EXPECT_FALSE(late.try_wait());
}

TEST(Timers, AStopTokenAndDestructionMakeThemDue) {
  FakeClock clock;
  std::stop_source stop;
  std::latch stopped(1);
  bool left_over = false;
  {
    Timers timers(clock);
    timers.After(std::chrono::hours(1), stop.get_token(), [&] { stopped.count_down(); });
    timers.After(std::chrono::hours(2), {}, [&] { left_over = true; });
    stop.request_stop();
    stopped.wait();
    std::latch already(1);
    timers.After(std::chrono::hours(1), stop.get_token(), [&] { already.count_down(); });
    already.wait();
    EXPECT_FALSE(left_over);
  }
  EXPECT_TRUE(left_over);
}

}  // namespace
}  // namespace millrace::object::s3
