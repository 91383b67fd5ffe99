#include "millrace/engine/ops/common/deferred_work.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "millrace/engine/pipeline/tiny_pipeline.h"

namespace millrace::engine::ops {
namespace {

TEST(DeferredWork, IsDoneLaterInOrder) {
  std::string text;
  const auto add = [&](char what) { RunOrDefer([&text, what] { text += what; }); };
  DeferredWork first, second;
  add('a');
  {
    const DeferScope outer(first);
    add('b');
    {
      const DeferScope inner(second);
      add('c');
    }
    add('d');
    std::jthread([&] { add('e'); }).join();  // another thread defers nothing
  }
  add('f');
  EXPECT_EQ(text, "aef");
  second.RunAll();
  first.RunAll();
  EXPECT_EQ(text, "aefcbd");
  EXPECT_TRUE(first.empty());
  first.RunAll();
  EXPECT_EQ(text, "aefcbd") << "work is done once";
}

TEST(DeferredWork, FreesWhatItKeepsAsItGoes) {
  DeferredWork work;
  const auto first = std::make_shared<int>(0), second = std::make_shared<int>(0);
  {
    const DeferScope defer(work);
    RunOrDefer([kept = first] { ++*kept; });
    RunOrDefer([kept = second, &first] {
      EXPECT_EQ(first.use_count(), 1);
      ++*kept;
    });
  }
  EXPECT_EQ(first.use_count(), 2);
  work.RunAll();
  EXPECT_EQ(*first + *second, 2);
  EXPECT_EQ(second.use_count(), 1);
}

/// Only matrices that tokens are multiplied with wait. Everything else has its gradient after the backward pass.
TEST(DeferredWork, IsThatOfWeightMatrices) {
  for (const std::string_view family : {"llama", "gpt2"}) {
    const auto config = TinyConfig(family, 2);
    const TinySample sample(1);
    const auto now = TinyModel(config, at::kBFloat16, {}, 0), later = TinyModel(config, at::kBFloat16, {}, 0);
    now->Backward(0, now->LossSum(sample.batch));
    DeferredWork work;
    {
      const DeferScope defer(work);
      later->Backward(0, later->LossSum(sample.batch));
    }
    const auto is_late = [](const NamedParameter& each) {
      const bool in_block = each.name.find("layers.") != std::string::npos || each.name.find("h.") == 0 ||
                            each.name.find(".h.") != std::string::npos;
      const bool norm = each.name.find("norm") != std::string::npos || each.name.find("ln_") != std::string::npos;
      return in_block && !norm;
    };
    int late = 0;
    for (std::size_t i = 0; i < now->Parameters().size(); ++i) {
      const NamedParameter &want = now->Parameters()[i], &got = later->Parameters()[i];
      if (is_late(want)) {
        ++late;
        EXPECT_EQ(got.gradient.abs().sum().item<float>(), 0) << got.name;
      } else {
        EXPECT_TRUE(got.gradient.equal(want.gradient)) << got.name;
      }
    }
    EXPECT_GE(late, family == "llama" ? 14 : 16);
    work.RunAll();
    EXPECT_TRUE(later->buffer().gradients().equal(now->buffer().gradients())) << family;
  }
}

/// Notes for each part that is done whether its gradients are those of a model that put nothing off.
class DoneHooks final : public GroupHooks {
 public:
  DoneHooks(const ParameterBuffer& buffer, const ParameterBuffer& expected) : buffer_(buffer), expected_(expected) {}
  void BeforeForward(std::size_t) override {}
  void AfterForward(std::size_t) override {}
  void BeforeBackward(std::size_t) override {}
  void AfterBackward(std::size_t group) override {
    done.emplace_back(group, buffer_.GroupGradients(group).equal(expected_.GroupGradients(group)));
  }
  std::vector<std::pair<std::size_t, bool>> done;

 private:
  const ParameterBuffer &buffer_, &expected_;
};

TEST(DeferredWork, IsDoneBeforeAPartOfTheModelIs) {
  const auto config = TinyConfig("llama", 2);
  const auto now = TinyModel(config, at::kFloat, {}, 0), later = TinyModel(config, at::kFloat, {}, 0);
  const TinySample sample(1);
  now->Backward(0, now->LossSum(sample.batch));
  DoneHooks hooks(later->buffer(), now->buffer());
  later->buffer().hooks = &hooks;
  DeferredWork work;
  {
    const at::Tensor loss = later->LossSum(sample.batch);
    const DeferScope defer(work);
    later->Backward(0, loss);
  }
  EXPECT_TRUE(hooks.done.empty());
  work.RunAll();
  const std::vector<std::pair<std::size_t, bool>> expected = {{3, true}, {2, true}, {1, true}, {0, true}};
  EXPECT_EQ(hooks.done, expected);
}

}  // namespace
}  // namespace millrace::engine::ops
