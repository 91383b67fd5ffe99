#include "millrace/train/reporting/parameter_histograms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/train/testing/train_runs.h"

namespace millrace::train {
namespace {

class HistogramsTest : public TrainTest {
 protected:
  std::filesystem::path Folder(const std::string& run) const { return folder_->path() / "tb" / run; }

  Options Shown(const std::string& run) const {
    Options options = Tiny(run);
    options.steps = 4;
    options.reports.tensorboard = Folder(run).native();
    options.reports.histograms_every = 2;
    return options;
  }

  /// Returns what TensorBoard itself reads: for each tag, for each step, its buckets. Null if TensorBoard is not here.
  Json ReadByTensorBoard(const std::string& run) const {
    const char* peers = std::getenv("MILLRACE_PEERS");
    const std::filesystem::path python = std::filesystem::path(peers != nullptr ? peers : "") / "venv/bin/python";
    if (peers == nullptr || !std::filesystem::exists(python)) return nullptr;
    const char* script = R"(
import json, sys
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.data import provider
from tensorboard import context
m = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"histograms": 0})
m.AddRunsFromDirectory(sys.argv[1]); m.Reload()
p = data_provider.MultiplexerDataProvider(m, sys.argv[1])
data = p.read_tensors(context.RequestContext(), experiment_id="", plugin_name="histograms", downsample=1000)
(run, tags), = data.items()
print(json.dumps({t: {str(d.step): d.numpy.tolist() for d in series} for t, series in tags.items()}))
)";
    const auto output = Subprocess::Run({.argv = {python, "-c", script, Folder(run)}});
    EXPECT_TRUE(output) << output.error().ToString();
    if (!output) return nullptr;
    EXPECT_TRUE(output->state.ok()) << output->stdout_text;
    const auto read = ParseJson(Trim(output->stdout_text), "tensorboard");
    EXPECT_TRUE(read) << output->stdout_text;
    return read ? *read : Json(nullptr);
  }
};

double CountOf(const Json& buckets) {
  double count = 0;
  for (const Json& bucket : buckets) count += bucket[2].get<double>();
  return count;
}

TEST_F(HistogramsTest, TensorBoardShowsEachParameterAsAWhole) {
  const Ran plain = [&] {
    Options options = Shown("none");
    options.reports.tensorboard.clear();
    return Run(options);
  }();
  const Ran one = Run(Shown("one"));
  ASSERT_TRUE(plain.outcome && one.outcome);
  EXPECT_EQ(one.losses, plain.losses) << "histograms disturb the run";
  const Json shown = ReadByTensorBoard("one");
  if (shown.is_null()) GTEST_SKIP() << "MILLRACE_PEERS has no venv/bin/python with TensorBoard";
  const std::string embedding = "weights/model.embed_tokens.weight";
  ASSERT_TRUE(shown.contains(embedding)) << shown.dump().substr(0, 500);
  ASSERT_EQ(shown[embedding].size(), 2) << "steps 2 and 4";
  for (const auto& [tag, steps] : shown.items()) {
    ASSERT_TRUE(steps.contains("2") && steps.contains("4")) << tag;
    const Json& buckets = steps["4"];
    for (std::size_t i = 1; i < buckets.size(); ++i) EXPECT_EQ(buckets[i][0], buckets[i - 1][1]) << tag;
    EXPECT_LE(buckets.front()[0], buckets.back()[1]) << tag;
  }
  EXPECT_EQ(CountOf(shown["weights/model.layers.1.mlp.down_proj.weight"]["2"]), 32 * 48);
  EXPECT_EQ(CountOf(shown["gradients/model.layers.1.mlp.down_proj.weight"]["2"]), 32 * 48);
  EXPECT_NE(shown[embedding]["2"], shown[embedding]["4"]) << "the weights do not move";
}

TEST_F(HistogramsTest, LayoutsCountEveryElementOnce) {
  struct Layout {
    std::string name;
    engine::ParallelOptions options;
    int ranks = 2;
  };
  const std::vector<Layout> layouts = {{"whole", {}, 1},          {"replicas", {}},
                                       {"tensor", {.tensor = 2}}, {"pipeline", {.pipeline = 2}},
                                       {"zero3", {.zero = 3}},    {"all", {.tensor = 2, .pipeline = 2, .zero = 1}, 8}};
  std::map<std::string, Json> shown;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    Options options = Shown(layout.name);
    options.model_config["tie_word_embeddings"] = true;
    options.steps = options.reports.histograms_every = 1;
    options.parallel = layout.options;
    const Ran ran = RunRanks(options, layout.ranks);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    const Json read = ReadByTensorBoard(layout.name);
    if (read.is_null()) GTEST_SKIP() << "MILLRACE_PEERS has no venv/bin/python with TensorBoard";
    for (const auto& [tag, steps] : read.items()) {
      const Json& buckets = steps["1"];
      if (layout.ranks == 1) {
        shown[tag] = buckets;
        continue;
      }
      ASSERT_TRUE(shown.contains(tag)) << tag;
      // The first weights are those of the seed. Gradients differ in their last bits.
      if (tag.starts_with("weights/")) {
        EXPECT_EQ(buckets, shown[tag]) << tag;
      }
      EXPECT_EQ(CountOf(buckets), CountOf(shown[tag])) << tag;
      const double most = shown[tag].back()[1].get<double>();
      EXPECT_NEAR(buckets.back()[1].get<double>(), most, 1e-4 * std::abs(most)) << tag;
    }
    EXPECT_EQ(read.size(), shown.size());
  }
}

}  // namespace
}  // namespace millrace::train
