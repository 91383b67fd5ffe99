#include "millrace/engine/parallel/staged.h"

#include <gtest/gtest.h>

#include "millrace/collectives/testing/conformance.h"
#include "millrace/collectives/testing/counting.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::collectives {
namespace {

using conformance::ExpectDone;
using conformance::Group;
using conformance::kRanks;

/// Threads that exchange copies of what they are given.
Group Staged(Group inner) {
  return engine::StageThroughHost(std::move(inner), at::kCPU, [](const Elements&) { return true; });
}

INSTANTIATE_TEST_SUITE_P(Over, CollectiveConformance,
                         ::testing::Values(GroupUnderTest{
                             .kind = GroupKind::kThreads, .name = "Staged", .wrap = Staged}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(StagedGroup, AddsFloat16InFloat32) {
  RunRanks(GroupKind::kThreads, kRanks, [](Group inner) {
    const Group group = Staged(std::move(inner));
    // In float16, 2048 + 1 is 2048.
    const at::Tensor mine = at::full({6}, group->rank() == 0 ? 2048 : 1, at::kHalf);
    at::Tensor sum = mine.clone(), part = at::empty({2}, at::kHalf);
    ExpectDone(group->AllReduce(sum));
    ExpectDone(group->ReduceScatter(part, mine.clone()));
    EXPECT_TRUE(sum.equal(at::full({6}, 2050, at::kHalf)));
    EXPECT_TRUE(part.equal(at::full({2}, 2050, at::kHalf)));
  });
}

TEST(StagedGroup, PassesOnWhatIsOnTheCpu) {
  auto traffic = std::make_shared<Traffic>();
  const Group group = engine::StageThroughHost(MakeCounting(std::move(ConnectThreads(1)[0]), traffic), at::kCPU);
  const at::Tensor tensor = at::ones({10});
  ExpectDone(group->AllReduce(tensor));
  EXPECT_EQ(traffic->bytes(Traffic::kAllReduce), 40u);
  const auto part = group->Duplicate("part");
  ASSERT_TRUE(part);
  ExpectDone((*part)->Broadcast(tensor, 0));
}

}  // namespace
}  // namespace millrace::collectives
