#include "millrace/metrics/endpoint.h"

#include <gmock/gmock.h>

#include "millrace/http/client.h"

namespace millrace::metrics {
namespace {

using ::testing::HasSubstr;

TEST(Endpoint, AnswersWithTheFiguresOfTheMoment) {
  int asked = 0;
  auto server = ServeMetrics("127.0.0.1:0", [&] { return fmt::format("asked {}\n", ++asked); }, {}).value();
  const std::string at = "http://" + server->address();
  http::Client client({});
  for (int i = 1; i <= 2; ++i) {
    auto response = client.Send({.url = at + "/metrics"});
    ASSERT_TRUE(response) << response.error().ToString();
    EXPECT_EQ(response->body, fmt::format("asked {}\n", i));
    EXPECT_THAT(response->headers.Get("Content-Type"), HasSubstr("version=0.0.4"));
  }
  EXPECT_EQ(client.Send({.url = at + "/"}).value().status, 404);
  EXPECT_EQ(client.Send({.method = "POST", .url = at + "/metrics"}).value().status, 405);
  EXPECT_EQ(asked, 2);
  auto taken = ServeMetrics(server->address(), [] { return std::string(); }, {});
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().ToString(), HasSubstr(server->address()));
}

}  // namespace
}  // namespace millrace::metrics
