#include "millrace/engine/families/gptj/gptj_config.h"

#include <fmt/format.h>

#include "millrace/engine/layers/attention.h"
#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/layers/mlp.h"
#include "millrace/engine/models/decoder.h"
#include "millrace/engine/ops/activation.h"

namespace millrace::engine {
namespace {

/// The places of a block where elements are dropped. Site 0 is the embedding.
enum GptjSite : std::uint64_t { kGptjAttention = 1, kGptjAttentionOutput, kGptjMlpOutput, kGptjSites };

struct GptjBlock {
  Norm norm;
  SelfAttention attention;
  Mlp mlp;
  std::uint64_t first_site = 0;
};

class Gptj final : public Decoder {
 public:
  Gptj(std::shared_ptr<const ModelConfig> self, const GptjConfig& config)
      : Decoder(std::move(self)),
        config_(config),
        table_{.name = "transformer.wte.weight",
               .rows = config.vocab_size,
               .columns = config.hidden_size,
               .tied = config.tie_word_embeddings},
        blocks_(static_cast<std::size_t>(config.num_layers)) {}

 private:
  void MakeEmbedding(LayerFactory& make) override { tokens_ = make.MakeTokenEmbedding(table_); }

  void MakeHead(LayerFactory& make) override {
    norm_ = make.MakeLayerNorm("transformer.ln_f", config_.hidden_size, config_.layer_norm_eps);
    head_ = config_.tie_word_embeddings ? make.MakeTiedHead(table_, "lm_head.bias", "lm_head")
                                        : make.MakeLinear({.in_features = config_.hidden_size,
                                                           .outputs = {{"lm_head", config_.vocab_size}},
                                                           .bias = true,
                                                           .division = LinearDivision::kColumns,
                                                           .predicts = true});
  }

  void MakeBlock(std::int64_t layer, LayerFactory& make) override {
    const ModelSizes sizes = config_.sizes();
    const std::int64_t hidden = config_.hidden_size, inner = sizes.intermediate_size;
    const auto name = [&](std::string_view part) { return fmt::format("transformer.h.{}.{}", layer, part); };
    const auto columns = [&](std::vector<LinearSpec::Output> outputs, bool bias) {
      return make.MakeLinear(
          {.in_features = hidden, .outputs = std::move(outputs), .bias = bias, .division = LinearDivision::kColumns});
    };
    const auto rows = [&](std::string_view part, std::int64_t in, bool bias) {
      return make.MakeLinear(
          {.in_features = in, .outputs = {{name(part), hidden}}, .bias = bias, .division = LinearDivision::kRows});
    };
    GptjBlock& block = blocks_[static_cast<std::size_t>(layer)];
    block.first_site = static_cast<std::uint64_t>(layer) * kGptjSites;
    block.norm = make.MakeLayerNorm(name("ln_1"), hidden, config_.layer_norm_eps);
    block.attention = {
        .layer = layer,
        .layout = {make.Share(sizes.num_heads), make.Share(sizes.num_heads), sizes.head_dim},
        .rotary = &rotary_,
        .query_key_value =
            columns({{name("attn.q_proj"), hidden}, {name("attn.k_proj"), hidden}, {name("attn.v_proj"), hidden}},
                    /*bias=*/false),
        .output = rows("attn.out_proj", hidden, /*bias=*/false),
        .dropout = config_.attention_dropout,
        .dropout_site = block.first_site + kGptjAttention,
        .first_head = make.ranks().rank() * make.Share(sizes.num_heads)};
    block.mlp = {.up = columns({{name("mlp.fc_in"), inner}}, /*bias=*/true),
                 .down = rows("mlp.fc_out", inner, /*bias=*/true),
                 .activation = config_.activation};
  }

  void Prepare(at::Device device) override {
    const std::vector<float> frequencies = ops::RotaryFrequencies(config_.rotary_dim, 10000);  // of the original code
    rotary_ = RotaryPositions(
        ops::RotaryTable::Make(config_.max_positions, frequencies, ops::RotaryPairs::kNeighbours, device));
  }

  Stream Embed(const at::Tensor& inputs, const at::Tensor&, const ForwardContext& context) const override {
    const at::Tensor embedded = tokens_.Forward(inputs.reshape({-1}), context);
    return {.residual = ops::Dropout(embedded, context.DropoutAt(0, config_.embedding_dropout))};
  }

  Stream Block(std::int64_t layer, const Stream& x, const ForwardContext& context) const override {
    const GptjBlock& block = blocks_[static_cast<std::size_t>(layer)];
    const auto drop = [&](const at::Tensor& y, GptjSite site) {
      return ops::Dropout(y, context.DropoutAt(block.first_site + site, config_.residual_dropout));
    };
    const ops::Normed normed = block.norm.Forward(x.residual, x.delta);
    const ops::LayerInput input = block.norm.Output(normed, context);
    // The MLP goes first, so that it goes back last: what attention keeps is gone when the MLP's gradients need most.
    const at::Tensor mlp = drop(block.mlp.Forward(input, context), kGptjMlpOutput);
    return {normed.sum, ops::Add(drop(block.attention.Forward(input, context), kGptjAttentionOutput), mlp)};
  }

  const GptjConfig& config_;
  const TokenTable table_;
  RotaryPositions rotary_;
  Embedding tokens_;
  std::vector<GptjBlock> blocks_;  ///< by layer; those of other ranks are empty
};

}  // namespace

std::unique_ptr<Model> BuildGptj(std::shared_ptr<const ModelConfig> config) {
  const auto& own = static_cast<const GptjConfig&>(*config);
  return std::make_unique<Gptj>(std::move(config), own);
}

}  // namespace millrace::engine
