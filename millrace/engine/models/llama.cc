#include "millrace/engine/models/llama.h"

#include <fmt/format.h>

#include "millrace/engine/ops/ops.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine {
namespace {

/// The parameters of a layer in the order of the buffer. Those that one GEMM uses lie side by side.
enum LayerParameter { kInputNorm, kQuery, kKey, kValue, kOutput, kPostNorm, kGate, kUp, kDown, kPerLayer };

std::vector<ParameterSpec> Specs(const ModelConfig& config) {
  using Init = ParameterSpec::Init;
  const std::int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const std::int64_t queries = config.num_heads * config.HeadDim(), keys = config.num_kv_heads * config.HeadDim();
  std::vector<ParameterSpec> specs;
  specs.push_back({.name = "model.embed_tokens.weight",
                   .shape = {config.vocab_size, hidden},
                   .uses = config.tie_word_embeddings ? 2 : 1});
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const auto name = [&](std::string_view part) { return fmt::format("model.layers.{}.{}.weight", layer, part); };
    specs.push_back({name("input_layernorm"), {hidden}, Init::kOnes});
    specs.push_back({name("self_attn.q_proj"), {queries, hidden}});
    specs.push_back({name("self_attn.k_proj"), {keys, hidden}, Init::kNormal, true});
    specs.push_back({name("self_attn.v_proj"), {keys, hidden}, Init::kNormal, true});
    specs.push_back({name("self_attn.o_proj"), {hidden, queries}});
    specs.push_back({name("post_attention_layernorm"), {hidden}, Init::kOnes});
    specs.push_back({name("mlp.gate_proj"), {inner, hidden}});
    specs.push_back({name("mlp.up_proj"), {inner, hidden}, Init::kNormal, true});
    specs.push_back({name("mlp.down_proj"), {hidden, inner}});
  }
  specs.push_back({"model.norm.weight", {hidden}, Init::kOnes});
  if (!config.tie_word_embeddings) specs.push_back({"lm_head.weight", {config.vocab_size, hidden}});
  return specs;
}

struct Layer {
  Weight input_norm, query_key_value, output, post_norm, gate_up, down;
};

class Llama final : public Model {
 public:
  Llama(const ModelConfig& config, at::ScalarType dtype, at::Device device)
      : config_(config),
        buffer_(Specs(config), dtype, device),
        rope_(ops::RopeTable::Make(config.max_positions, config.HeadDim(), config.rope_theta, device)) {
    TakeWeights();
  }

  const ModelConfig& config() const override { return config_; }
  ParameterBuffer& buffer() override { return buffer_; }

  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& labels,
                     std::span<const std::int32_t> documents) override {
    const auto sequences = documents.empty() ? ops::Sequences::Even(inputs.size(0), inputs.size(1))
                                             : ops::Sequences::Cut(documents, inputs.numel());
    return ops::LinearCrossEntropy(Hidden(inputs, sequences, nullptr), head_, labels.reshape({-1}));
  }

  at::Tensor Logits(const at::Tensor& inputs, KvCache* cache) override {
    const at::NoGradGuard no_grad;
    const std::int64_t rows = inputs.size(0), length = inputs.size(1);
    const auto sequences = ops::Sequences::Even(rows, length, cache != nullptr ? cache->length() : 0);
    at::Tensor hidden = Hidden(inputs, sequences, cache).view({rows, length, config_.hidden_size});
    if (cache != nullptr) {
      cache->Advance(length);
      hidden = hidden.narrow(1, length - 1, 1);
    }
    const at::Tensor flat = hidden.reshape({-1, config_.hidden_size});
    return ops::Linear(flat, head_).to(at::kFloat).view({rows, hidden.size(1), config_.vocab_size});
  }

 private:
  /// Returns the final norm's output [rows · length, hidden]. With a cache, each sequence is a row that follows the
  /// row's tokens in the cache.
  at::Tensor Hidden(const at::Tensor& inputs, const ops::Sequences& sequences, KvCache* cache) {
    if (has_gradients_ != buffer_.gradients().defined()) TakeWeights();
    // The residual stream is residual + delta, where `delta` is the output of the block before. The next norm sums
    // them.
    at::Tensor residual = ops::Embedding(embedding_, inputs.reshape({-1})), delta;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      ops::Normed normed = ops::AddRmsNorm(residual, delta, layer.input_norm, config_.rms_norm_eps);
      delta = Attention(static_cast<std::int64_t>(i), normed.out, sequences, cache);
      normed = ops::AddRmsNorm(normed.sum, delta, layer.post_norm, config_.rms_norm_eps);
      delta = ops::Linear(ops::Swiglu(ops::Linear(normed.out, layer.gate_up)), layer.down);
      residual = normed.sum;
    }
    return ops::AddRmsNorm(residual, delta, norm_, config_.rms_norm_eps).out;
  }

  at::Tensor Attention(std::int64_t index, const at::Tensor& x, const ops::Sequences& sequences, KvCache* cache) {
    const Layer& layer = layers_[static_cast<std::size_t>(index)];
    const ops::HeadLayout layout{config_.num_heads, config_.num_kv_heads, config_.HeadDim()};
    const at::Tensor qkv = ops::Rope(ops::Linear(x, layer.query_key_value), rope_, layout, sequences);
    if (cache == nullptr) return ops::Linear(ops::CausalAttention(qkv, layout, sequences), layer.output);

    const at::Tensor all =
        qkv.view({sequences.count(), sequences.longest(), layout.heads + 2 * layout.kv_heads, layout.head_dim})
            .transpose(1, 2);
    const auto [keys, values] = cache->Append(index, all.narrow(1, layout.heads, layout.kv_heads),
                                              all.narrow(1, layout.heads + layout.kv_heads, layout.kv_heads));
    const at::Tensor mixed = cache->length() == 0
                                 ? ops::CausalAttention(qkv, layout, sequences)
                                 : ops::reference::AttendCached(all.narrow(1, 0, layout.heads), keys, values);
    return ops::Linear(mixed.view({sequences.tokens(), layout.heads * layout.head_dim}), layer.output);
  }

  void TakeWeights() {
    has_gradients_ = buffer_.gradients().defined();
    embedding_ = buffer_.Use(0);
    layers_.clear();
    for (std::int64_t i = 0; i < config_.num_layers; ++i) {
      const auto first = static_cast<std::size_t>(1 + i * kPerLayer);
      layers_.push_back({buffer_.Use(first + kInputNorm), buffer_.Use(first + kQuery, 3), buffer_.Use(first + kOutput),
                         buffer_.Use(first + kPostNorm), buffer_.Use(first + kGate, 2), buffer_.Use(first + kDown)});
    }
    const auto last = static_cast<std::size_t>(1 + config_.num_layers * kPerLayer);
    norm_ = buffer_.Use(last);
    head_ = config_.tie_word_embeddings ? embedding_ : buffer_.Use(last + 1);
  }

  const ModelConfig config_;
  ParameterBuffer buffer_;
  const ops::RopeTable rope_;
  bool has_gradients_ = false;
  Weight embedding_, norm_, head_;
  std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> MakeLlama(const ModelConfig& config, at::ScalarType dtype, at::Device device) {
  return std::make_unique<Llama>(config, dtype, device);
}

}  // namespace millrace::engine
