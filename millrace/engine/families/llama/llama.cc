#include "millrace/engine/families/llama/llama.h"

#include <fmt/format.h>

#include <optional>

#include "millrace/engine/families/llama/llama_config.h"
#include "millrace/engine/families/llama/rope.h"
#include "millrace/engine/layers/attention.h"
#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/layers/mlp.h"
#include "millrace/engine/models/decoder.h"
#include "millrace/engine/ops/activation.h"
#include "millrace/engine/ops/dropout.h"

namespace millrace::engine {
namespace {

/// The places of a block where elements of what it adds are dropped. Their numbers follow those of all attentions.
enum LlamaSite : std::uint64_t { kLlamaAttentionOutput, kLlamaMlpOutput, kLlamaSites };

/// A norm that a family does not have is missing.
struct LlamaBlock {
  std::optional<Norm> before_attention, after_attention, before_mlp, after_mlp;
  SelfAttention attention;
  GatedMlp mlp;
  std::uint64_t first_site = 0;
};

/// The residual stream in front of a layer, and what the layer sees of it.
struct LayerEntry {
  at::Tensor sum;
  ops::LayerInput input;
};

LayerEntry EnterLayer(const std::optional<Norm>& norm, const Stream& x, const ForwardContext& context) {
  if (norm) {
    const ops::Normed normed = norm->Forward(x.residual, x.delta);
    return {normed.sum, norm->Output(normed, context)};
  }
  const at::Tensor sum = x.delta.defined() ? ops::Add(x.residual, x.delta) : x.residual;
  return {sum, sum};
}

at::Tensor Scaled(const at::Tensor& x, double factor) { return factor == 1 ? x : x * factor; }

class Llama final : public Decoder {
 public:
  Llama(std::shared_ptr<const ModelConfig> self, const LlamaConfig& config)
      : Decoder(std::move(self)),
        config_(config),
        table_{.name = "model.embed_tokens.weight",
               .rows = config.vocab_size,
               .columns = config.hidden_size,
               .tied = config.tie_word_embeddings},
        blocks_(static_cast<std::size_t>(config.num_layers)) {
    logit_scale_ = config.variant.logit_scale;
    logit_softcap_ = config.variant.logit_softcap;
  }

 private:
  void MakeEmbedding(LayerFactory& make) override { embedding_ = make.MakeTokenEmbedding(table_); }

  void MakeHead(LayerFactory& make) override {
    norm_ = make.MakeRmsNorm("model.norm", config_.hidden_size, config_.rms_norm_eps, config_.variant.norm_offset);
    head_ = config_.tie_word_embeddings ? make.MakeTiedHead(table_, "", "lm_head")
                                        : make.MakeLinear({.in_features = config_.hidden_size,
                                                           .outputs = {{"lm_head", config_.vocab_size}},
                                                           .division = LinearDivision::kColumns,
                                                           .predicts = true});
  }

  void MakeBlock(std::int64_t layer, LayerFactory& make) override {
    const LlamaVariant& variant = config_.variant;
    const std::int64_t hidden = config_.hidden_size;
    const auto norm = [&](std::string_view part) -> std::optional<Norm> {
      if (part.empty()) return std::nullopt;
      return make.MakeRmsNorm(NameIn(layer, part), hidden, config_.rms_norm_eps, variant.norm_offset);
    };
    LlamaBlock& block = blocks_[static_cast<std::size_t>(layer)];
    block.first_site = static_cast<std::uint64_t>(config_.num_layers) + static_cast<std::uint64_t>(layer) * kLlamaSites;
    block.before_attention = norm(variant.norms.before_attention);
    MakeAttention(layer, make, block);
    block.after_attention = norm(variant.norms.after_attention);
    block.before_mlp = norm(variant.norms.before_mlp);
    const std::int64_t inner = config_.intermediate_size;
    const std::string joined = NameIn(layer, "mlp.gate_up_proj");
    block.mlp.gate_up =
        make.MakeLinear({.in_features = hidden,
                         .outputs = {{variant.joined_gate ? joined : NameIn(layer, "mlp.gate_proj"), inner},
                                     {variant.joined_gate ? joined : NameIn(layer, "mlp.up_proj"), inner}},
                         .bias = config_.mlp_bias,
                         .division = LinearDivision::kColumns});
    block.mlp.down = make.MakeLinear({.in_features = inner,
                                      .outputs = {{NameIn(layer, "mlp.down_proj"), hidden}},
                                      .bias = config_.mlp_bias,
                                      .division = LinearDivision::kRows});
    block.mlp.activation = variant.activation;
    block.after_mlp = norm(variant.norms.after_mlp);
  }

  void MakeAttention(std::int64_t layer, LayerFactory& make, LlamaBlock& block) {
    const LlamaVariant& variant = config_.variant;
    const std::int64_t dim = config_.HeadDim(), heads = config_.num_heads, key_heads = config_.num_kv_heads;
    const std::int64_t hidden = config_.hidden_size, queries = heads * dim, keys = key_heads * dim;
    const bool has_window = config_.WindowOf(layer) > 0 && variant.window_rope_theta > 0;
    block.attention = {.layer = layer,
                       .layout = {make.Share(heads), make.Share(key_heads), dim},
                       .rule = {.causal = true,
                                .window = config_.WindowOf(layer),
                                .scale = variant.attention_scale,
                                .softcap = variant.attention_softcap},
                       .rotary = !config_.HasRope(layer) ? nullptr
                                 : has_window            ? &window_rotary_
                                                         : &rotary_,
                       .dropout = config_.attention_dropout,
                       .dropout_site = static_cast<std::uint64_t>(layer),
                       .first_head = make.ranks().rank() * make.Share(heads)};
    const auto name = [&](std::string_view part) {
      return NameIn(layer, variant.joined_qkv ? std::string_view("self_attn.qkv_proj") : part);
    };
    block.attention.query_key_value = make.MakeLinear({.in_features = hidden,
                                                       .outputs = {{name("self_attn.q_proj"), queries},
                                                                   {name("self_attn.k_proj"), keys, key_heads},
                                                                   {name("self_attn.v_proj"), keys, key_heads}},
                                                       .bias = config_.qkv_bias,
                                                       .division = LinearDivision::kColumns});
    const std::string query_norm = NameIn(layer, "self_attn.q_norm"), key_norm = NameIn(layer, "self_attn.k_norm");
    const double eps = config_.rms_norm_eps;
    if (variant.qk_norm == QueryKeyNorm::kHeads) {
      block.attention.query_norm = make.MakeHeadNorm(query_norm, dim, eps, variant.norm_offset);
      block.attention.key_norm = make.MakeHeadNorm(key_norm, dim, eps, variant.norm_offset);
    } else if (variant.qk_norm == QueryKeyNorm::kAllHeads) {
      block.attention.all_queries_norm = make.MakeAllHeadsNorm(query_norm, queries, heads, eps);
      block.attention.all_keys_norm = make.MakeAllHeadsNorm(key_norm, keys, key_heads, eps);
    }
    block.attention.output = make.MakeLinear({.in_features = queries,
                                              .outputs = {{NameIn(layer, "self_attn.o_proj"), hidden}},
                                              .bias = config_.output_bias,
                                              .division = LinearDivision::kRows});
  }

  void Prepare(at::Device device) override {
    const LlamaVariant& variant = config_.variant;
    const auto pairs = variant.rotates_neighbours ? ops::RotaryPairs::kNeighbours : ops::RotaryPairs::kHalves;
    rotary_ = MakeRotaryPositions(config_.rope_scaling, config_.rope_sizes(), pairs, device);
    if (variant.window_rope_theta == 0) return;
    RopeSizes sizes = config_.rope_sizes();
    sizes.theta = variant.window_rope_theta;
    sizes.max_positions = config_.sizes().max_positions;
    window_rotary_ = MakeRotaryPositions({}, sizes, pairs, device);
  }

  bool RepeatsSteps() const override { return rotary_.same_for_all_lengths(); }

  Stream Embed(const at::Tensor& inputs, const at::Tensor&, const ForwardContext& context) const override {
    const at::Tensor embedded = embedding_.Forward(inputs.reshape({-1}), context);
    const double scale = config_.variant.embedding_scale;
    if (!config_.variant.rounds_embedding_scale) return {.residual = Scaled(embedded, scale)};
    return {.residual = embedded * at::scalar_tensor(scale, embedded.scalar_type()).item<double>()};
  }

  Stream Block(std::int64_t layer, const Stream& x, const ForwardContext& context) const override {
    const LlamaBlock& block = blocks_[static_cast<std::size_t>(layer)];
    // What a layer adds to the residual stream.
    const auto added = [&](const at::Tensor& out, const std::optional<Norm>& norm, LlamaSite site) {
      const at::Tensor normed = norm ? norm->Forward(out).out : out;
      return Scaled(ops::Dropout(normed, context.DropoutAt(block.first_site + site, config_.variant.residual_dropout)),
                    config_.variant.residual_scale);
    };
    const LayerEntry before = EnterLayer(block.before_attention, x, context);
    const at::Tensor attended =
        added(block.attention.Forward(before.input, context), block.after_attention, kLlamaAttentionOutput);
    const LayerEntry after = EnterLayer(block.before_mlp, {before.sum, attended}, context);
    return {after.sum, added(block.mlp.Forward(after.input, context), block.after_mlp, kLlamaMlpOutput)};
  }

  static std::string NameIn(std::int64_t layer, std::string_view part) {
    return fmt::format("model.layers.{}.{}", layer, part);
  }

  const LlamaConfig& config_;
  const TokenTable table_;
  RotaryPositions rotary_, window_rotary_;
  Embedding embedding_;
  std::vector<LlamaBlock> blocks_;  ///< by layer; those of other ranks are empty
};

}  // namespace

std::unique_ptr<Model> BuildLlama(std::shared_ptr<const ModelConfig> config) {
  const auto& own = static_cast<const LlamaConfig&>(*config);
  return std::make_unique<Llama>(std::move(config), own);
}

}  // namespace millrace::engine
