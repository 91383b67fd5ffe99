#include "millrace/engine/families/llama/llama_config.h"

#include <fmt/format.h>

#include "millrace/engine/families/llama/rope.h"
#include "millrace/engine/layers/attention.h"
#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/layers/mlp.h"
#include "millrace/engine/models/decoder.h"

namespace millrace::engine {
namespace {

struct LlamaBlock {
  Norm input_norm, post_norm;
  SelfAttention attention;
  GatedMlp mlp;
};

class Llama final : public Decoder {
 public:
  Llama(std::shared_ptr<const ModelConfig> self, const LlamaConfig& config)
      : Decoder(std::move(self)),
        config_(config),
        table_{.name = "model.embed_tokens.weight",
               .rows = config.vocab_size,
               .columns = config.hidden_size,
               .tied = config.tie_word_embeddings},
        blocks_(static_cast<std::size_t>(config.num_layers)) {}

 private:
  void MakeEmbedding(LayerFactory& make) override { embedding_ = make.MakeTokenEmbedding(table_); }

  void MakeHead(LayerFactory& make) override {
    norm_ = make.MakeRmsNorm("model.norm", config_.hidden_size, config_.rms_norm_eps);
    head_ = config_.tie_word_embeddings ? make.MakeTiedHead(table_, "", "lm_head")
                                        : make.MakeLinear({.in_features = config_.hidden_size,
                                                           .outputs = {{"lm_head", config_.vocab_size}},
                                                           .division = LinearDivision::kColumns,
                                                           .predicts = true});
  }

  void MakeBlock(std::int64_t layer, LayerFactory& make) override {
    const std::int64_t hidden = config_.hidden_size, inner = config_.intermediate_size, dim = config_.HeadDim();
    const std::int64_t key_heads = config_.num_kv_heads, queries = config_.num_heads * dim, keys = key_heads * dim;
    const auto name = [&](std::string_view part) { return fmt::format("model.layers.{}.{}", layer, part); };
    const auto norm = [&](std::string_view part, std::int64_t columns) {
      return make.MakeRmsNorm(name(part), columns, config_.rms_norm_eps);
    };
    LlamaBlock& block = blocks_[static_cast<std::size_t>(layer)];
    block.input_norm = norm("input_layernorm", hidden);
    block.attention = {.layer = layer,
                       .layout = {make.Share(config_.num_heads), make.Share(key_heads), dim},
                       .mask = {.causal = true, .window = config_.WindowOf(layer)},
                       .rotary = &rotary_,
                       .dropout = config_.attention_dropout,
                       .dropout_site = static_cast<std::uint64_t>(layer),
                       .first_head = make.ranks().rank() * make.Share(config_.num_heads)};
    block.attention.query_key_value = make.MakeLinear({.in_features = hidden,
                                                       .outputs = {{name("self_attn.q_proj"), queries},
                                                                   {name("self_attn.k_proj"), keys, key_heads},
                                                                   {name("self_attn.v_proj"), keys, key_heads}},
                                                       .bias = config_.qkv_bias,
                                                       .division = LinearDivision::kColumns});
    if (config_.qk_norm) {
      block.attention.query_norm = make.MakeHeadNorm(name("self_attn.q_norm"), dim, config_.rms_norm_eps);
      block.attention.key_norm = make.MakeHeadNorm(name("self_attn.k_norm"), dim, config_.rms_norm_eps);
    }
    block.attention.output = make.MakeLinear({.in_features = queries,
                                              .outputs = {{name("self_attn.o_proj"), hidden}},
                                              .bias = config_.output_bias,
                                              .division = LinearDivision::kRows});
    block.post_norm = norm("post_attention_layernorm", hidden);
    block.mlp.gate_up = make.MakeLinear({.in_features = hidden,
                                         .outputs = {{name("mlp.gate_proj"), inner}, {name("mlp.up_proj"), inner}},
                                         .bias = config_.mlp_bias,
                                         .division = LinearDivision::kColumns});
    block.mlp.down = make.MakeLinear({.in_features = inner,
                                      .outputs = {{name("mlp.down_proj"), hidden}},
                                      .bias = config_.mlp_bias,
                                      .division = LinearDivision::kRows});
  }

  void Prepare(at::Device device) override {
    rotary_ = MakeRotaryPositions(config_.rope_scaling, config_.rope_sizes(), device);
  }

  bool RepeatsSteps() const override { return rotary_.same_for_all_lengths(); }

  Stream Embed(const at::Tensor& inputs, const at::Tensor&, const ForwardContext& context) const override {
    return {.residual = embedding_.Forward(inputs.reshape({-1}), context)};
  }

  Stream Block(std::int64_t layer, const Stream& x, const ForwardContext& context) const override {
    const LlamaBlock& block = blocks_[static_cast<std::size_t>(layer)];
    const ops::Normed before = block.input_norm.Forward(x.residual, x.delta);
    const ops::Normed after =
        block.post_norm.Forward(before.sum, block.attention.Forward(block.input_norm.Output(before, context), context));
    return {after.sum, block.mlp.Forward(block.post_norm.Output(after, context), context)};
  }

  const LlamaConfig& config_;
  const TokenTable table_;
  RotaryPositions rotary_;
  Embedding embedding_;
  std::vector<LlamaBlock> blocks_;  ///< by layer; those of other ranks are empty
};

}  // namespace

std::unique_ptr<Model> BuildLlama(std::shared_ptr<const ModelConfig> config) {
  const auto& own = static_cast<const LlamaConfig&>(*config);
  return std::make_unique<Llama>(std::move(config), own);
}

}  // namespace millrace::engine
