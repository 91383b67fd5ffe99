#include "millrace/engine/families/gpt2/gpt2_config.h"

#include <fmt/format.h>

#include <cmath>

#include "millrace/engine/layers/attention.h"
#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/layers/mlp.h"
#include "millrace/engine/models/decoder.h"

namespace millrace::engine {
namespace {

/// The places of a block where elements are dropped. Site 0 is the embedding.
enum Gpt2Site : std::uint64_t { kGpt2Attention = 1, kGpt2AttentionOutput, kGpt2MlpOutput, kGpt2Sites };

struct Gpt2Block {
  Norm attention_norm, mlp_norm;
  SelfAttention attention;
  Mlp mlp;
  std::uint64_t first_site = 0;
};

class Gpt2 final : public Decoder {
 public:
  Gpt2(std::shared_ptr<const ModelConfig> self, const Gpt2Config& config)
      : Decoder(std::move(self)),
        config_(config),
        table_{.name = "transformer.wte.weight",
               .rows = config.vocab_size,
               .columns = config.hidden_size,
               .tied = config.tie_word_embeddings && !config.classifies},
        blocks_(static_cast<std::size_t>(config.num_layers)) {}

 private:
  void MakeEmbedding(LayerFactory& make) override {
    tokens_ = make.MakeTokenEmbedding(table_);
    positions_ = make.MakeEmbedding("transformer.wpe.weight", config_.max_positions, config_.hidden_size);
  }

  void MakeHead(LayerFactory& make) override {
    if (config_.classifies) make.SeeWholeTokens();  // one token a row: every rank computes the whole head
    norm_ = make.MakeLayerNorm("transformer.ln_f", config_.hidden_size, config_.layer_norm_eps);
    if (config_.classifies) {
      head_ = make.MakeLinear({.in_features = config_.hidden_size,
                               .outputs = {{std::string(config_.class_layer()), config_.num_labels}},
                               .predicts = true});
      return;
    }
    head_ = config_.tie_word_embeddings ? make.MakeTiedHead(table_, "", "lm_head")
                                        : make.MakeLinear({.in_features = config_.hidden_size,
                                                           .outputs = {{"lm_head", config_.vocab_size}},
                                                           .division = LinearDivision::kColumns,
                                                           .predicts = true});
  }

  void MakeBlock(std::int64_t layer, LayerFactory& make) override {
    const ModelSizes sizes = config_.sizes();
    const std::int64_t hidden = config_.hidden_size;
    // As in the paper, so that the residual stream's variance does not grow with depth.
    const double residual = config_.initializer_stddev / std::sqrt(2.0 * static_cast<double>(config_.num_layers));
    const auto name = [&](std::string_view part) { return fmt::format("transformer.h.{}.{}", layer, part); };
    const auto columns = [&](const std::vector<LinearSpec::Output>& outputs) {
      return make.MakeLinear({.in_features = hidden,
                              .outputs = outputs,
                              .bias = true,
                              .transposed = true,
                              .division = LinearDivision::kColumns});
    };
    const auto rows = [&](std::string_view part, std::int64_t in) {
      return make.MakeLinear({.in_features = in,
                              .outputs = {{name(part), hidden}},
                              .bias = true,
                              .transposed = true,
                              .stddev = residual,
                              .division = LinearDivision::kRows});
    };
    Gpt2Block& block = blocks_[static_cast<std::size_t>(layer)];
    block.first_site = static_cast<std::uint64_t>(layer) * kGpt2Sites;
    block.attention_norm = make.MakeLayerNorm(name("ln_1"), hidden, config_.layer_norm_eps);
    block.attention = {.layer = layer,
                       .layout = {make.Share(sizes.num_heads), make.Share(sizes.num_heads), sizes.head_dim},
                       .query_key_value = columns(std::vector<LinearSpec::Output>(3, {name("attn.c_attn"), hidden})),
                       .output = rows("attn.c_proj", hidden),
                       .dropout = config_.attention_dropout,
                       .dropout_site = block.first_site + kGpt2Attention,
                       .first_head = make.ranks().rank() * make.Share(sizes.num_heads)};
    block.mlp_norm = make.MakeLayerNorm(name("ln_2"), hidden, config_.layer_norm_eps);
    block.mlp = {.up = columns({{name("mlp.c_fc"), sizes.intermediate_size}}),
                 .down = rows("mlp.c_proj", sizes.intermediate_size),
                 .activation = config_.activation};
  }

  Stream Embed(const at::Tensor& inputs, const at::Tensor&, const ForwardContext& context) const override {
    TORCH_CHECK(context.sequences.limit() <= config_.max_positions, "positions up to ", context.sequences.limit(),
                " exceed the model's ", config_.max_positions);
    const at::Tensor where = context.sequences.PositionsOn(inputs.device()).to(at::kLong);
    const at::Tensor embedded = tokens_.Forward(inputs.reshape({-1}), context) + positions_.Forward(where);
    return {.residual = ops::Dropout(embedded, context.DropoutAt(0, config_.embedding_dropout))};
  }

  Stream Block(std::int64_t layer, const Stream& x, const ForwardContext& context) const override {
    const Gpt2Block& block = blocks_[static_cast<std::size_t>(layer)];
    const auto drop = [&](const at::Tensor& y, Gpt2Site site) {
      return ops::Dropout(y, context.DropoutAt(block.first_site + site, config_.residual_dropout));
    };
    const ops::Normed before = block.attention_norm.Forward(x.residual, x.delta);
    const at::Tensor attended =
        drop(block.attention.Forward(block.attention_norm.Output(before, context), context), kGpt2AttentionOutput);
    const ops::Normed after = block.mlp_norm.Forward(before.sum, attended);
    return {after.sum, drop(block.mlp.Forward(block.mlp_norm.Output(after, context), context), kGpt2MlpOutput)};
  }

  const Gpt2Config& config_;
  const TokenTable table_;
  Embedding tokens_, positions_;
  std::vector<Gpt2Block> blocks_;  ///< by layer; those of other ranks are empty
};

}  // namespace

std::unique_ptr<Model> BuildGpt2(std::shared_ptr<const ModelConfig> config) {
  const auto& own = static_cast<const Gpt2Config&>(*config);
  return std::make_unique<Gpt2>(std::move(config), own);
}

}  // namespace millrace::engine
