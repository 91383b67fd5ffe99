#include <gtest/gtest.h>

#include "millrace/collectives/connect.h"
#include "millrace/collectives/testing/run_ranks.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::engine {
namespace {

using collectives::ElementType;

TEST(TensorElements, ShareTheMemoryOfATensor) {
  at::Tensor tensor = at::arange(6, at::kFloat).view({2, 3});
  const Elements elements = tensor;
  EXPECT_EQ(elements.data, tensor.data_ptr());
  EXPECT_EQ(elements.type, ElementType::kFloat32);
  EXPECT_EQ(elements.count, 6);
  EXPECT_TRUE(elements.device.is_host());
  EXPECT_EQ(elements.fault, nullptr);
  const at::Tensor again = TensorOf(elements);
  tensor.fill_(7);
  EXPECT_TRUE(again.equal(at::full({6}, 7, at::kFloat)));
}

TEST(TensorElements, KeepTheMemory) {
  at::Tensor tensor = at::full({1'000}, 3, at::kLong);
  const Elements part = tensor.narrow(0, 10, 5);
  tensor.reset();
  EXPECT_TRUE(TensorOf(part).equal(at::full({5}, 3, at::kLong)));
}

TEST(TensorElements, HaveTheTypesThatRanksAdd) {
  const std::pair<at::ScalarType, ElementType> kTypes[] = {
      {at::kFloat, ElementType::kFloat32},  {at::kBFloat16, ElementType::kBFloat16}, {at::kHalf, ElementType::kFloat16},
      {at::kDouble, ElementType::kFloat64}, {at::kLong, ElementType::kInt64},        {at::kInt, ElementType::kInt32},
      {at::kByte, ElementType::kUint8}};
  for (const auto& [scalar, type] : kTypes) {
    const Elements elements = at::ones({3}, scalar);
    EXPECT_EQ(elements.type, type);
    EXPECT_EQ(elements.count, 3);
    EXPECT_TRUE(TensorOf(elements).equal(at::ones({3}, scalar)));
  }
  const Elements others = at::ones({3}, at::kShort);
  EXPECT_EQ(others.type, ElementType::kBytes);
  EXPECT_EQ(others.count, 6);
}

TEST(TensorElements, SayWhyATensorIsOfNoUse) {
  EXPECT_NE(Elements(at::Tensor()).fault, nullptr);
  EXPECT_NE(Elements(at::ones({4, 4}).t()).fault, nullptr);
  EXPECT_EQ(Elements(at::ones({0, 4})).fault, nullptr);
}

TEST(TensorElements, PassThroughAGroup) {
  collectives::RunRanks(collectives::GroupKind::kThreads, 2, [](std::unique_ptr<Collective> group) {
    const at::Tensor sum = at::full({3, 5}, group->rank() + 1, at::kBFloat16);
    ASSERT_TRUE(group->AllReduce(sum));
    EXPECT_TRUE(sum.equal(at::full({3, 5}, 3, at::kBFloat16)));
    const at::Tensor all = at::empty({2, 4}, at::kShort);
    ASSERT_TRUE(group->AllGather(all, at::full({4}, group->rank(), at::kShort)));
    EXPECT_TRUE(all.equal(at::arange(2, at::kShort).repeat_interleave(4).view({2, 4})));
    EXPECT_FALSE(group->Duplicate("part").value()->AllReduce(at::ones({4}, at::kBool)));
    EXPECT_FALSE(group->AllReduce({}));
  });
}

}  // namespace
}  // namespace millrace::engine
