#include "millrace/engine/families/gptj/gptj.h"

#include <fmt/format.h>

#include "millrace/engine/layers/attention.h"
#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/layers/mlp.h"
#include "millrace/engine/models/decoder.h"

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
  Gptj(std::shared_ptr<const ModelConfig> self, const GptjConfig& config, LayerFactory& make)
      : Decoder(std::move(self), make.ranks()), config_(config) {
    const std::int64_t hidden = config.hidden_size;
    tokens_ = make.MakeTokenEmbedding("transformer.wte.weight", config.vocab_size, hidden);
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) blocks_.push_back(MakeBlock(layer, make));
    norm_ = make.MakeLayerNorm("transformer.ln_f", hidden, config.layer_norm_eps);
    head_ = config.tie_word_embeddings ? make.MakeTiedHead(tokens_, "lm_head.bias")
                                       : make.MakeLinear({.in_features = hidden,
                                                          .outputs = {{"lm_head", config.vocab_size}},
                                                          .bias = true,
                                                          .division = LinearDivision::kColumns});
  }

 private:
  GptjBlock MakeBlock(std::int64_t layer, LayerFactory& make) const {
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
    GptjBlock block;
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
    return block;
  }

  void Prepare(at::Device device) override {
    const std::vector<float> frequencies = ops::RotaryFrequencies(config_.rotary_dim, 10000);  // of the original code
    rotary_ = ops::RotaryTable::Make(config_.max_positions, frequencies, ops::RotaryPairs::kNeighbours, device);
  }

  at::Tensor Hidden(const at::Tensor& inputs, const ForwardContext& context) const override {
    const at::Tensor embedded = tokens_.Forward(inputs.reshape({-1}));
    at::Tensor residual = ops::Dropout(embedded, context.DropoutAt(0, config_.embedding_dropout)), delta;
    for (const GptjBlock& block : blocks_) {
      const auto drop = [&](const at::Tensor& x, GptjSite site) {
        return ops::Dropout(x, context.DropoutAt(block.first_site + site, config_.residual_dropout));
      };
      const ops::Normed normed = block.norm.Forward(residual, delta);
      residual = normed.sum;
      delta = drop(block.attention.Forward(normed.out, context), kGptjAttentionOutput) +
              drop(block.mlp.Forward(normed.out), kGptjMlpOutput);
    }
    return norm_.Forward(residual, delta).out;
  }

  const GptjConfig& config_;
  ops::RotaryTable rotary_;
  Embedding tokens_;
  std::vector<GptjBlock> blocks_;
  Norm norm_;
};

}  // namespace

std::unique_ptr<Model> GptjConfig::Build(std::shared_ptr<const ModelConfig> self, LayerFactory& make) const {
  return std::make_unique<Gptj>(std::move(self), *this, make);
}

}  // namespace millrace::engine
