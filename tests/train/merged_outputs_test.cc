// What a merge over weights of few bits does to a model's outputs, measured with few blocks in memory.
#include "millrace/train/compare_outputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/huggingface/adapter_merge.h"
#include "millrace/checkpoint/convert/quantized_model.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/config/peft_config.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/weights/read_weights.h"
#include "millrace/tokenizer/open/open.h"
#include "millrace/train/testing/adapter_runs.h"

namespace millrace::train {
namespace {

constexpr auto kNf4 = engine::Quantization::kNf4;

class MergedOutputsTest : public AdapterTest {
 protected:
  /// A run of an adapter over an NF4 base, and its merge.
  MergedAdapter Merged(bool dora) {
    const std::string base = Base("merged-base", 1);
    Options options = Adapting(base, dora ? "merged-dora" : "merged");
    options.lora->dora = dora;
    options.base_quantization = kNf4;
    options.quantized_folder = Cache();
    const Ran ran = Run(options);
    EXPECT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    MergedAdapter merged{.adapter_url = options.checkpoint.url,
                         .base_url = base,
                         .quantization = kNf4,
                         .merged_url = (folder_->path() / (dora ? "dora-folder" : "folder")).native()};
    const auto adapter = Open(merged.adapter_url), model = Open(base);
    MemoryBudget budget(64 * kMiB);
    const auto codes =
        checkpoint::OpenQuantizedModel(*connection_, model, kNf4, Cache(), budget, options.log).value().weights;
    const auto merge =
        checkpoint::AdapterMerge::Open(adapter.reader(), *adapter.AdapterConfig().value(), model.reader(), codes);
    EXPECT_TRUE(merge) << merge.error().ToString();
    const checkpoint::ExportOptions export_options{
        .change = [&](const std::string& tensor, std::uint64_t first, MutableByteSpan elements) {
          merge->Apply(tensor, first, elements);
        }};
    const object::Location to = object::Locate(*connection_, merged.merged_url).value();
    EXPECT_TRUE(checkpoint::Export(model.reader(), to, budget, export_options));
    return merged;
  }
  checkpoint::ModelSource Open(const std::string& url) const {
    return checkpoint::ModelSource::Open(*connection_, url, std::nullopt, {}).value();
  }
  std::filesystem::path Cache() const { return folder_->path() / "quantized"; }
  Result<OutputDifference> Compare(const MergedAdapter& merged, const ComparedTokens& tokens,
                                   std::uint64_t weight_bytes) const {
    return CompareOutputs(*connection_, merged, tokens, {.weight_bytes = weight_bytes, .quantized_folder = Cache()});
  }

  std::unique_ptr<object::Connection> connection_ = object::OpenConnection({}).value();
};

TEST_F(MergedOutputsTest, AMergeInFloat32ChangesAlmostNothing) {
  for (const bool dora : {false, true}) {
    const MergedAdapter merged = Merged(dora);
    const ComparedTokens tokens = RandomTokens(SizesOf(*connection_, merged, {})->vocab_size, 3, 16);
    const auto whole = Compare(merged, tokens, 1 << 30), by_block = Compare(merged, tokens, 1);
    ASSERT_TRUE(whole) << whole.error().ToString();
    ASSERT_TRUE(by_block) << by_block.error().ToString();
    EXPECT_EQ(whole->ToJson(), by_block->ToJson()) << "blocks in memory do not change the bits";
    EXPECT_EQ(whole->tokens, 48);
    EXPECT_GT(whole->relative_error, 0);
    EXPECT_LT(whole->relative_error, 1e-5);
    EXPECT_EQ(whole->equal_share, 1);
    EXPECT_LT(whole->divergence, 1e-9);
  }
}

/// The model without the adapter in place of the merged one: the figures follow from the whole models' logits.
TEST_F(MergedOutputsTest, SaysHowFarAnotherModelIs) {
  MergedAdapter merged = Merged(false);
  merged.merged_url = merged.base_url;
  ComparedTokens tokens = RandomTokens(SizesOf(*connection_, merged, {})->vocab_size, 2, 16);
  tokens.counts[0].narrow(0, 0, 5).fill_(false);
  const auto got = Compare(merged, tokens, 1);
  ASSERT_TRUE(got) << got.error().ToString();

  const auto adapter = Open(merged.adapter_url), base = Open(merged.base_url);
  MemoryBudget budget(64 * kMiB);
  const auto quantized = checkpoint::OpenQuantizedModel(*connection_, base, kNf4, Cache(), budget, {}).value();
  const auto config =
      engine::ParseModelConfig(*JsonFind(base.reader().manifest().meta, checkpoint::kMetaModelConfig), "base").value();
  const auto lora = engine::ReadPeftConfig(*adapter.AdapterConfig().value(), "adapter").value();
  const auto adapted =
      engine::MakeModel(config, at::kFloat, at::kCPU, 0, {.lora = lora, .quantized = quantized.weights}).value();
  const auto rest = Open(quantized.folder.native());
  ASSERT_TRUE(engine::ReadWeights(rest.reader(), *adapted));
  ASSERT_TRUE(engine::ReadAdapter(adapter.reader(), *adapted));
  const auto plain = engine::MakeModel(config, at::kFloat, at::kCPU, 0).value();
  ASSERT_TRUE(engine::ReadWeights(base.reader(), *plain));
  const at::Tensor a = adapted->Logits(tokens.inputs).index({tokens.counts}).to(at::kDouble);
  const at::Tensor b = plain->Logits(tokens.inputs).index({tokens.counts}).to(at::kDouble);
  ASSERT_EQ(a.size(0), 27);
  EXPECT_EQ(got->tokens, 27);
  EXPECT_NEAR(got->relative_error, ((b - a).norm() / a.norm()).item<double>(), 1e-6);
  EXPECT_GT(got->relative_error, 0.01);
  EXPECT_NEAR(got->equal_share, a.argmax(1).eq(b.argmax(1)).to(at::kDouble).mean().item<double>(), 1e-12);
  const at::Tensor p = at::softmax(a, 1);
  const double divergence = (p * (p.log() - at::log_softmax(b, 1))).sum().item<double>() / 27;
  EXPECT_NEAR(got->divergence, divergence, 1e-5 * divergence + 1e-9);
}

TEST_F(MergedOutputsTest, TokensAreThoseThatTheRunLearns) {
  const Options options = Tiny("tokens");
  const auto tokenizer = tokenizer::OpenTokenizer(*connection_, options.tokenizer_url, {}).value();
  const auto dataset = data::Dataset::Open(*connection_, tokenizer, options.data, {}).value();
  const ComparedTokens tokens = TokensOf(*dataset, 2, 8).value();
  std::vector<data::TokenId> inputs(static_cast<std::size_t>(options.data.sequence_length)), labels(inputs.size());
  ASSERT_TRUE(dataset->ReadSample(0, 1, inputs, labels));
  for (std::int64_t t = 0; t < 8; ++t) {
    EXPECT_EQ(tokens.inputs[1][t].item<std::int64_t>(), inputs[static_cast<std::size_t>(t)]);
    EXPECT_EQ(tokens.counts[1][t].item<bool>(), labels[static_cast<std::size_t>(t)] != data::kIgnoreLabel);
  }
}

}  // namespace
}  // namespace millrace::train
