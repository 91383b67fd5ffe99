#include <gtest/gtest.h>

#include "millrace/engine/families/llama/llama.h"
#include "millrace/engine/gradients/divided_gradients.h"
#include "millrace/engine/gradients/gradient_reducer.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/optim/adamw.h"
#include "millrace/engine/parallel/connect.h"
#include "millrace/engine/parallel/testing/run_ranks.h"

namespace millrace::engine {
namespace {

using Group = std::unique_ptr<Collective>;

class GradientReducerTest : public testing::TestWithParam<GroupKind> {};

std::shared_ptr<LlamaConfig> Tiny(bool tied) {
  auto config = std::make_shared<LlamaConfig>();
  config->vocab_size = 97;
  config->hidden_size = 32;
  config->intermediate_size = 48;
  config->num_layers = 3;
  config->num_heads = 4;
  config->num_kv_heads = 2;
  config->max_positions = 64;
  config->tie_word_embeddings = tied;
  return config;
}

struct Trained {
  at::Tensor weights;
  double norm = 0;
};
/// Three steps on batches of 4 rows, of which this rank takes every size()-th, `micro` rows at a time.
Trained Train(Collective& group, bool tied, std::int64_t micro) {
  auto model = MakeModel(Tiny(tied), at::kFloat, at::kCPU, 5).value();
  model->buffer().EnableGradients();
  Adamw optimizer(model->buffer(), {});
  GradientReducer reducer(model->buffer(), group, 8 << 10);
  EXPECT_GT(reducer.buckets(), 3u);
  Trained trained;
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto generator = at::detail::createCPUGenerator(step);
    const at::Tensor ids = at::randint(97, {4, 17}, generator, at::kLong).slice(0, group.rank(), 4, group.size());
    for (std::int64_t row = 0; row < ids.size(0); row += micro) {
      if (row + micro >= ids.size(0)) reducer.Arm();
      const at::Tensor rows = ids.narrow(0, row, micro);
      model->LossSum(rows.narrow(1, 0, 16).contiguous(), rows.narrow(1, 1, 16).contiguous()).backward();
    }
    EXPECT_TRUE(reducer.Finish());
    trained.norm = GradientNorm(model->buffer(), 1.0 / 64);
    optimizer.Step(1e-3, 1.0 / 64);
  }
  trained.weights = model->buffer().values().clone();
  return trained;
}

TEST_P(GradientReducerTest, TwoRanksTrainAsOne) {
  for (const bool tied : {false, true}) {
    const Trained one = Train(*ConnectThreads(1)[0], tied, 4);
    Trained two[2];
    RunRanks(GetParam(), 2, [&](Group group) { two[group->rank()] = Train(*group, tied, 1); });
    EXPECT_TRUE(two[0].weights.equal(two[1].weights)) << "ranks must not drift apart";
    EXPECT_NEAR(two[0].norm, one.norm, 1e-5 * one.norm);
    // AdamW's first steps are ±lr whatever the gradient's size, so rounding may flip a few vanishing ones.
    const at::Tensor off = (two[0].weights - one.weights).abs() > 1e-5;
    EXPECT_LT(off.sum().item<int>(), one.weights.numel() / 1000);
  }
}

INSTANTIATE_TEST_SUITE_P(Over, GradientReducerTest, testing::ValuesIn(kEveryGroupKind), GroupKindName);

TEST(RankInfo, ReadsWhatTorchrunSets) {
  ::setenv("WORLD_SIZE", "4", 1);
  ::setenv("RANK", "3", 1);
  ::setenv("MASTER_PORT", "29500", 1);
  const auto info = RankInfo::FromEnvironment();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->rank, 3);
  EXPECT_EQ(info->size, 4);
  ::setenv("RANK", "4", 1);
  EXPECT_FALSE(RankInfo::FromEnvironment());
  ::setenv("RANK", "x", 1);
  EXPECT_FALSE(RankInfo::FromEnvironment());
  for (const char* name : {"WORLD_SIZE", "RANK", "MASTER_PORT"}) ::unsetenv(name);
  EXPECT_EQ(RankInfo::FromEnvironment()->size, 1);
}

}  // namespace
}  // namespace millrace::engine
