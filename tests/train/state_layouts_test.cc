// Checkpoints of runs whose ranks divide the state in one way, resumed by ranks that divide it in another.
#include "millrace/train/state/run_state.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/save/replicas.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/engine/testing/train_ranks.h"
#include "millrace/object/open/open.h"
#include "millrace/train/ranks/rank_group.h"

namespace millrace::train {
namespace {

using engine::RankTrainer;

/// Whole tensors by name, put together from what ranks own.
using WholeState = std::map<std::string, at::Tensor>;

/// Adds a rank's elements. Elements that several ranks own must have the same bits.
void Collect(const std::vector<StateTensor>& tensors, WholeState& whole) {
  for (const StateTensor& state : tensors) {
    at::Tensor& all = whole[state.name];
    if (!all.defined()) all = at::full(state.whole_shape, std::numeric_limits<float>::quiet_NaN());
    at::Tensor slice = state.slice.whole() ? all
                                           : all.narrow(static_cast<std::int64_t>(state.slice.dim), state.slice.begin,
                                                        state.slice.extent);
    const at::Tensor flat = slice.reshape({-1}).clone();
    const at::Tensor into = flat.narrow(0, state.first, state.tensor.numel()), values = state.tensor.to(at::kFloat);
    EXPECT_TRUE(into.isnan().logical_or(into == values).all().item<bool>()) << state.name;
    into.copy_(values);
    slice.copy_(flat.view(slice.sizes()));
  }
}

std::string ToText(const engine::TrainingTask& task, const engine::TrainingLayout& layout) {
  return fmt::format("{} {} {}", task.model, c10::toString(task.dtype), layout.ToText());
}

class StateTest : public testing::Test {
 protected:
  int Below(int bound) { return static_cast<int>(random_.Below(static_cast<std::uint64_t>(bound))); }

  engine::TrainingLayout RandomLayout() {
    engine::TrainingLayout layout{.zero = Below(4),
                                  .mesh = {.pipeline = 1 + Below(2), .tensor = 1 + Below(2)},
                                  .micro_batches = 1 + Below(3),
                                  .sequence = Below(2) == 1};
    (layout.zero > 0 ? layout.mesh.shard : layout.mesh.replica) = 1 + Below(3);
    if (layout.zero > 0) layout.mesh.replica = 1 + Below(2);
    if (engine::RankTrainer::kRows % (layout.mesh.replica * layout.mesh.shard * layout.micro_batches) != 0) {
      layout.micro_batches = 1;
    }
    return layout;
  }

  engine::TrainingTask RandomTask() {
    static constexpr const char* kModels[] = {"llama", "tied", "gpt2"};
    engine::TrainingTask task{.model = kModels[Below(3)], .dtype = Below(3) == 0 ? at::kBFloat16 : at::kFloat};
    task.optimizer.method = engine::AdamwOptions{.eps = 1e-4};
    if (Below(3) == 0) task.optimizer.method = engine::LambOptions{.eps = 1e-4};
    return task;
  }

  /// Makes two steps, saves, and makes a third one. Returns its loss and the state that was saved.
  std::pair<double, WholeState> TrainAndSave(const engine::TrainingTask& task, const engine::TrainingLayout& layout,
                                             const std::string& url) {
    WholeState whole;
    double third = 0;
    std::mutex mutex;
    engine::OnThreads(static_cast<int>(layout.mesh.ranks()), [&](engine::Collective& world) {
      RankTrainer trainer(world, task, layout);
      trainer.Step(0);
      trainer.Step(1);
      const std::vector<StateTensor> tensors = StateTensors(*trainer.model, *trainer.optimizer);
      const auto connection = object::OpenConnection({}).value();
      MemoryBudget budget(64 * kMiB);
      const auto group = MakeRankGroup(world.Duplicate("checkpoint").value());
      const auto slices = checkpoint::ShareReplicas(*group, SlicesOf(tensors)).value();
      const auto writer = checkpoint::Writer::Open(*connection, group, budget, {.url = url}).value();
      ASSERT_TRUE(writer->Save(2, slices, "{}"));
      const auto saved = writer->Wait();
      EXPECT_TRUE(saved) << ToText(task, layout) << ": " << saved.error().ToString();
      {
        const std::lock_guard lock(mutex);
        Collect(tensors, whole);
      }
      const double loss = trainer.Step(2);
      if (world.rank() == 0) third = loss;
    });
    return {third, whole};
  }

  Random random_{20};
  const TempDir folder_ = TempDir::Create().value();
};

TEST_F(StateTest, AnyLayoutResumesAnyOther) {
  for (int round = 0; round < 16; ++round) {
    const engine::TrainingTask task = RandomTask();
    const engine::TrainingLayout from = RandomLayout(), to = RandomLayout();
    const std::string url = (folder_.path() / std::to_string(round)).native();
    const std::string what = ToText(task, from) + " then " + to.ToText();
    const auto [third, saved] = TrainAndSave(task, from, url);
    WholeState read;
    std::mutex mutex;
    engine::OnThreads(static_cast<int>(to.mesh.ranks()), [&](engine::Collective& world) {
      RankTrainer trainer(world, task, to);
      const std::vector<StateTensor> tensors = StateTensors(*trainer.model, *trainer.optimizer);
      const auto connection = object::OpenConnection({}).value();
      const auto reader = checkpoint::Reader::Open(*connection, url).value();
      const Status done = ReadState(*reader, tensors);
      ASSERT_TRUE(done) << what << ": " << done.error().ToString();
      trainer.optimizer->Restore(2);
      trainer.exchange->ShareValues(engine::ChangedValues::kAll);
      {
        const std::lock_guard lock(mutex);
        Collect(tensors, read);
      }
      const double loss = trainer.Step(2);
      EXPECT_NEAR(loss, third, (task.dtype == at::kFloat ? 4e-6 : 1e-2) * third) << what;
    });
    ASSERT_EQ(read.size(), saved.size()) << what;
    for (const auto& [name, tensor] : saved) EXPECT_TRUE(read.at(name).equal(tensor)) << what << " " << name;
  }
}

}  // namespace
}  // namespace millrace::train
