#include "millrace/engine/families/llama/llama.h"

#include <fmt/format.h>

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
  Llama(std::shared_ptr<const ModelConfig> self, const LlamaConfig& config, LayerFactory& make)
      : Decoder(std::move(self), make.ranks()), config_(config) {
    const std::int64_t hidden = config.hidden_size;
    embedding_ = make.MakeTokenEmbedding("model.embed_tokens.weight", config.vocab_size, hidden);
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) blocks_.push_back(MakeBlock(layer, make));
    norm_ = make.MakeRmsNorm("model.norm", hidden, config.rms_norm_eps);
    head_ = config.tie_word_embeddings ? make.MakeTiedHead(embedding_, "")
                                       : make.MakeLinear({.in_features = hidden,
                                                          .outputs = {{"lm_head", config.vocab_size}},
                                                          .division = LinearDivision::kColumns});
  }

 private:
  LlamaBlock MakeBlock(std::int64_t layer, LayerFactory& make) const {
    const std::int64_t hidden = config_.hidden_size, inner = config_.intermediate_size, dim = config_.HeadDim();
    const std::int64_t queries = config_.num_heads * dim, keys = config_.num_kv_heads * dim;
    const auto name = [&](std::string_view part) { return fmt::format("model.layers.{}.{}", layer, part); };
    const auto norm = [&](std::string_view part, std::int64_t columns) {
      return make.MakeRmsNorm(name(part), columns, config_.rms_norm_eps);
    };
    LlamaBlock block;
    block.input_norm = norm("input_layernorm", hidden);
    block.attention = {.layer = layer,
                       .layout = {make.Share(config_.num_heads), make.Share(config_.num_kv_heads), dim},
                       .mask = {.causal = true, .window = config_.sliding_window},
                       .rotary = &rotary_,
                       .dropout = config_.attention_dropout,
                       .dropout_site = static_cast<std::uint64_t>(layer),
                       .first_head = make.ranks().rank() * make.Share(config_.num_heads)};
    block.attention.query_key_value = make.MakeLinear({.in_features = hidden,
                                                       .outputs = {{name("self_attn.q_proj"), queries},
                                                                   {name("self_attn.k_proj"), keys},
                                                                   {name("self_attn.v_proj"), keys}},
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
    return block;
  }

  void Prepare(at::Device device) override {
    rotary_ =
        ops::RotaryTable::Make(config_.max_positions, LlamaFrequencies(config_), ops::RotaryPairs::kHalves, device);
  }

  at::Tensor Hidden(const at::Tensor& inputs, const ForwardContext& context) const override {
    // The residual stream is residual + delta, where `delta` is the output of the block before. The next norm sums
    // them.
    at::Tensor residual = embedding_.Forward(inputs.reshape({-1})), delta;
    for (const LlamaBlock& block : blocks_) {
      const ops::Normed before = block.input_norm.Forward(residual, delta);
      const ops::Normed after = block.post_norm.Forward(before.sum, block.attention.Forward(before.out, context));
      residual = after.sum;
      delta = block.mlp.Forward(after.out);
    }
    return norm_.Forward(residual, delta).out;
  }

  const LlamaConfig& config_;
  ops::RotaryTable rotary_;
  Embedding embedding_;
  std::vector<LlamaBlock> blocks_;
  Norm norm_;
};

}  // namespace

std::unique_ptr<Model> LlamaConfig::Build(std::shared_ptr<const ModelConfig> self, LayerFactory& make) const {
  return std::make_unique<Llama>(std::move(self), *this, make);
}

}  // namespace millrace::engine
