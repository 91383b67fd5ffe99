#include "millrace/engine/parallel/connect_gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/collectives/testing/run_ranks.h"

namespace millrace::engine {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(ConnectGpus, AllRanksGoThroughTheHostIfOneMust) {
  collectives::RunRanks(collectives::GroupKind::kThreads, 2, [](std::unique_ptr<Collective> inner) {
    const bool shares = inner->rank() == 0;
    const auto connected = ConnectGpus(std::move(inner), at::Device(at::kCUDA, 0), shares, std::chrono::seconds(60));
    ASSERT_TRUE(connected) << connected.error().ToString();
    EXPECT_THAT(connected->through_host, AnyOf(HasSubstr("share GPUs"), HasSubstr("another rank"), HasSubstr("nccl")));
    EXPECT_EQ(connected->through_host == "ranks share GPUs", shares);
    at::Tensor sum = at::ones({3});
    EXPECT_TRUE(connected->group->AllReduce(sum));
    EXPECT_TRUE(sum.equal(at::full({3}, 2, at::kFloat)));
  });
}

}  // namespace
}  // namespace millrace::engine
