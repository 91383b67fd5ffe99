#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/engine/models/llama/llama.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/optim/adamw.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/parallel/gradient_reducer.h"

namespace millrace::engine {
namespace {

int FreePort() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return 0;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

using Group = std::unique_ptr<Collective>;

/// Runs `work` as every rank of a group of threads, over Gloo or locally.
void RunRanks(bool gloo, int size, const std::function<void(Group)>& work) {
  std::vector<Group> local;
  if (!gloo) local = ConnectLocal(size);
  const int port = gloo ? FreePort() : 0;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      if (!gloo) return work(std::move(local[rank]));
      const RankInfo info{.rank = rank, .size = size, .local_rank = rank, .local_size = size, .master_port = port};
      auto group = ConnectGloo(info, std::chrono::seconds(20));
      ASSERT_TRUE(group) << group.error().ToString();
      work(*std::move(group));
    });
  }
}

class CollectiveTest : public testing::TestWithParam<bool> {};

TEST_P(CollectiveTest, EveryOperation) {
  RunRanks(GetParam(), 3, [](Group group) {
    const int rank = group->rank();
    at::Tensor x = at::full({1000}, rank + 1.0F);
    ASSERT_TRUE(group->AllReduce(x));
    EXPECT_TRUE(x.equal(at::full({1000}, 6.0F)));

    std::vector<std::unique_ptr<Collective::Pending>> pending;
    std::vector<at::Tensor> many;
    for (int i = 0; i < 5; ++i)
      pending.push_back(group->StartAllReduce(many.emplace_back(at::full({10 + i}, 1.0F * i))));
    for (auto& p : pending) ASSERT_TRUE(p->Wait());
    for (int i = 0; i < 5; ++i) EXPECT_EQ(many[i].sum().item<float>(), 3.0F * i * (10 + i));

    const auto all = group->AllGather(at::full({2}, rank, at::kLong));
    ASSERT_TRUE(all) << all.error().ToString();
    for (int r = 0; r < 3; ++r) EXPECT_EQ((*all)[r][0].item<int>(), r);

    const auto part = group->ReduceScatter(at::arange(6, at::kFloat));
    ASSERT_TRUE(part) << part.error().ToString();
    EXPECT_TRUE(part->equal(at::tensor({6.0F * rank, 6.0F * rank + 3})));

    at::Tensor word = at::full({3}, rank * 10.0F);
    ASSERT_TRUE(group->Broadcast(word, 2));
    EXPECT_EQ(word[1].item<float>(), 20);

    at::Tensor box = at::zeros({2});
    if (rank == 0) {
      ASSERT_TRUE(group->Send(at::full({2}, 7.0F), 1));
    }
    if (rank == 1) {
      ASSERT_TRUE(group->Receive(box, 0));
      EXPECT_EQ(box[0].item<float>(), 7);
    }
    auto second = group->Duplicate("second");
    ASSERT_TRUE(second) << second.error().ToString();
    at::Tensor y = at::ones({1});
    ASSERT_TRUE((*second)->AllReduce(y));
    EXPECT_EQ(y.item<float>(), 3);
    ASSERT_TRUE(group->Barrier());
  });
}

TEST_P(CollectiveTest, ALostRankIsAnErrorSoon) {
  const auto start = std::chrono::steady_clock::now();
  RunRanks(GetParam(), 2, [](Group group) {
    ASSERT_TRUE(group->Barrier());
    if (group->rank() == 1) return;  // leaves: its connections close
    const Status status = group->AllReduce(at::ones({100'000}));
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kUnavailable);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

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
    trained.norm = optimizer.GradientNorm(1.0 / 64);
    optimizer.Step(1e-3, 1.0 / 64);
  }
  trained.weights = model->buffer().values().clone();
  return trained;
}

TEST_P(CollectiveTest, TwoRanksTrainAsOne) {
  for (const bool tied : {false, true}) {
    const Trained one = Train(*ConnectLocal(1)[0], tied, 4);
    Trained two[2];
    RunRanks(GetParam(), 2, [&](Group group) { two[group->rank()] = Train(*group, tied, 1); });
    EXPECT_TRUE(two[0].weights.equal(two[1].weights)) << "ranks must not drift apart";
    EXPECT_NEAR(two[0].norm, one.norm, 1e-5 * one.norm);
    // AdamW's first steps are ±lr whatever the gradient's size, so rounding may flip a few vanishing ones.
    const at::Tensor off = (two[0].weights - one.weights).abs() > 1e-5;
    EXPECT_LT(off.sum().item<int>(), one.weights.numel() / 1000);
  }
}

INSTANTIATE_TEST_SUITE_P(Over, CollectiveTest, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Gloo" : "Local"; });

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
