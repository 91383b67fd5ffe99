#include "millrace/engine/models/model.h"

#include <torch/csrc/autograd/autograd.h>

#include "millrace/engine/ops/backward/deferred_work.h"
#include "millrace/engine/ops/backward/node.h"

namespace millrace::engine {
namespace {

/// Returns the same values outside of the graph.
Stream Detached(const Stream& x) { return {x.residual.detach(), x.delta.defined() ? x.delta.detach() : at::Tensor()}; }

/// Returns the tensors that are there.
ops::TensorList TensorsOf(const Stream& x) {
  return x.delta.defined() ? ops::TensorList{x.residual, x.delta} : ops::TensorList{x.residual};
}

/// Calls `reached` when a backward pass has the gradients of these hidden states.
Stream OnBackward(const char* name, const Stream& x, std::function<void()> reached) {
  Stream same = Detached(x);
  ops::Connect(name, {x.residual, x.delta}, TensorsOf(same),
               [reached = std::move(reached), both = same.delta.defined()](ops::TensorList&& gradients) {
                 reached();
                 return ops::TensorList{gradients[0], both ? gradients[1] : at::Tensor()};
               });
  return same;
}

/// Tells a buffer's hooks about the passes through one part of a model.
class PartHooks {
 public:
  PartHooks(const ParameterBuffer& buffer, std::size_t group)
      : hooks_(buffer.hooks), uses_(buffer.groups()[group].uses) {}

  explicit operator bool() const { return hooks_ != nullptr; }
  void BeforeForward() const { ForEach(&GroupHooks::BeforeForward); }
  void AfterForward() const { ForEach(&GroupHooks::AfterForward); }
  void BeforeBackward() const { ForEach(&GroupHooks::BeforeBackward); }
  /// Behind the gradients of weights, if these are put off.
  void AfterBackward() const {
    if (hooks_ != nullptr) ops::RunOrDefer([*this] { ForEach(&GroupHooks::AfterBackward); });
  }

 private:
  void ForEach(void (GroupHooks::*call)(std::size_t)) const {
    if (hooks_ == nullptr) return;
    for (const std::size_t group : uses_) (hooks_->*call)(group);
  }
  GroupHooks* hooks_;
  const std::vector<std::size_t>& uses_;
};

bool Learns(const Stream& x) { return ops::Recording({x.residual, x.delta}); }

}  // namespace

void Model::MakeLayers(std::vector<ModelStage> stages, LayerFactory& make) {
  stages_ = std::move(stages);
  ranks_ = make.ranks();
  block_groups_.resize(static_cast<std::size_t>(config_->sizes().num_layers));
  for (const ModelStage& stage : stages_) {
    if (stage.embeds) {
      embedding_group_ = make.BeginPart();
      MakeEmbedding(make);
    }
    for (std::int64_t layer = stage.first; layer < stage.last; ++layer) {
      block_groups_[static_cast<std::size_t>(layer)] = make.BeginPart();
      MakeBlock(layer, make);
    }
    if (stage.predicts) {
      head_group_ = make.BeginPart();
      MakeHead(make);
    }
  }
}

bool Model::IsOfHead(const NamedParameter& parameter) const {
  return stages_.back().predicts && parameter.begin >= buffer_->groups()[head_group_].begin;
}

void Model::SetRecompute(Recompute what, int every) {
  recompute_ = what;
  recompute_every_ = every;
}

bool Model::Recomputes(std::int64_t layer) const {
  return recompute_ == Recompute::kFull && layer % recompute_every_ == 0;
}

ForwardContext Model::ContextOf(const ModelBatch& batch) const {
  const at::Tensor& inputs = batch.inputs;
  ForwardContext context{.sequences = batch.documents.empty() ? ops::Sequences::Even(inputs.size(0), inputs.size(1))
                                                              : ops::Sequences::Cut(batch.documents, inputs.numel()),
                         .dropout = batch.dropout,
                         .without_adapters = batch.as_reference,
                         .selective_recompute = recompute_ == Recompute::kSelective};
  if (ranks_.divides_tokens()) context.first_token = ranks_.rank() * (inputs.numel() / ranks_.size());
  if (batch.dropout) context.noise = {batch.neftune_alpha, *batch.dropout, context.first_token};
  return context;
}

/// The block as one op that keeps nothing but its input, and runs the block again in the backward pass (Chen et al.
/// 2016). Dropout is a function of its place, so the second run drops the same elements.
Stream Model::RunAgainBackward(std::int64_t layer, const Stream& x,
                               const std::shared_ptr<const ForwardContext>& context) const {
  Stream out;
  {
    const at::NoGradGuard no_grad;
    out = Detached(Block(layer, x, *context));
  }
  ops::Connect("RecomputedBlock", {x.residual, x.delta}, TensorsOf(out),
               [this, layer, context, in = Detached(x)](ops::TensorList&& gradients) {
                 const at::AutoGradMode grad(true);
                 const Stream again = Detached(in);
                 for (at::Tensor& tensor : TensorsOf(again)) tensor.set_requires_grad(true);
                 torch::autograd::backward(TensorsOf(Block(layer, again, *context)), gradients);
                 return ops::TensorList{again.residual.grad(),
                                        again.delta.defined() ? again.delta.grad() : at::Tensor()};
               });
  return out;
}

Stream Model::RunBlock(std::int64_t layer, const Stream& x,
                       const std::shared_ptr<const ForwardContext>& context) const {
  const PartHooks hooks(*buffer_, block_groups_[static_cast<std::size_t>(layer)]);
  const bool learns = Learns(x);
  hooks.BeforeForward();
  const auto went_back = [this, hooks] {
    hooks.AfterBackward();
    if (on_block) on_block();
  };
  const Stream in = learns && (hooks || on_block) ? OnBackward("EndOfBlock", x, went_back) : x;
  Stream out = learns && Recomputes(layer) ? RunAgainBackward(layer, in, context) : Block(layer, in, *context);
  hooks.AfterForward();
  if (on_block) on_block();
  if (learns && hooks) out = OnBackward("BeginningOfBlock", out, [hooks] { hooks.BeforeBackward(); });
  return out;
}

at::Tensor Model::Forward(std::size_t stage, const ModelBatch& batch, const at::Tensor& hidden) {
  const ModelStage& parts = stages_.at(stage);
  const auto context = std::make_shared<const ForwardContext>(ContextOf(batch));
  Stream x{.residual = hidden};
  if (parts.embeds) {
    const PartHooks hooks(*buffer_, embedding_group_);
    hooks.BeforeForward();
    x = Embed(batch.inputs, batch.segments, *context);
    // Autograd passes all parts also behind a frozen embedding, so that hooks see the same passes.
    if (at::GradMode::is_enabled() && buffer_->has_gradients() && !Learns(x)) x.residual.set_requires_grad(true);
    hooks.AfterForward();
    if (hooks && Learns(x)) x = OnBackward("BeginningOfEmbedding", x, [hooks] { hooks.BeforeBackward(); });
  }
  for (std::int64_t layer = parts.first; layer < parts.last; ++layer) x = RunBlock(layer, x, context);
  if (!parts.predicts) return x.Sum();
  const PartHooks hooks(*buffer_, head_group_);
  hooks.BeforeForward();
  if (hooks && Learns(x)) x = OnBackward("EndOfHead", x, [hooks] { hooks.AfterBackward(); });
  at::Tensor loss = Loss(x, batch, *context);
  hooks.AfterForward();
  if (hooks && ops::Recording({loss})) {
    loss = OnBackward("BeginningOfHead", {.residual = loss}, [hooks] { hooks.BeforeBackward(); }).residual;
  }
  return loss;
}

void Model::Backward(std::size_t stage, const at::Tensor& output, const at::Tensor& gradient) {
  torch::autograd::backward({output}, {gradient});
  // An embedding has no hidden states before it that would tell.
  if (stages_.at(stage).embeds) PartHooks(*buffer_, embedding_group_).AfterBackward();
}

at::Tensor Model::Logits(const at::Tensor& inputs, KvCache* cache) {
  TORCH_CHECK(ranks_.size() == 1 && stages_.size() == 1 && stages_[0].embeds && stages_[0].predicts,
              "a model that is divided among ranks does not generate text");
  TORCH_CHECK(cache == nullptr || config_->generates(), config_->family(), " does not generate text");
  const at::NoGradGuard no_grad;
  const std::int64_t rows = inputs.size(0), length = inputs.size(1);
  const auto context = std::make_shared<const ForwardContext>(ForwardContext{
      .sequences = ops::Sequences::Even(rows, length, cache != nullptr ? cache->length() : 0), .cache = cache});
  Stream x = Embed(inputs, {}, *context);
  for (std::int64_t layer = 0; layer < stages_[0].last; ++layer) x = RunBlock(layer, x, context);
  at::Tensor last;
  if (cache != nullptr) {
    cache->Advance(length);
    last = at::arange(length - 1, rows * length, length, at::kLong).to(inputs.device());
  }
  const at::Tensor logits = Scores(x, *context, last);
  return logits.to(at::kFloat).view({rows, -1, logits.size(1)});
}

at::Tensor Model::Predict(std::size_t stage, const at::Tensor& inputs, const at::Tensor& hidden) {
  TORCH_CHECK(ranks_.size() == 1, "a model whose layers are divided among ranks does not predict alone");
  const at::NoGradGuard no_grad;
  const ModelStage& parts = stages_.at(stage);
  const auto context = std::make_shared<const ForwardContext>(
      ForwardContext{.sequences = ops::Sequences::Even(inputs.size(0), inputs.size(1))});
  Stream x = parts.embeds ? Embed(inputs, {}, *context) : Stream{.residual = hidden};
  for (std::int64_t layer = parts.first; layer < parts.last; ++layer) x = RunBlock(layer, x, context);
  if (!parts.predicts) return x.Sum();
  const at::Tensor logits = Scores(x, *context, {});
  return logits.to(at::kFloat).view({inputs.size(0), inputs.size(1), -1});
}

KvCache Model::MakeCache(std::int64_t rows, std::int64_t capacity) const {
  const ModelSizes sizes = config_->sizes();
  return {{.layers = sizes.num_layers,
           .rows = rows,
           .kv_heads = sizes.num_kv_heads,
           .head_dim = sizes.head_dim,
           .capacity = capacity},
          buffer_->dtype(),
          buffer_->device()};
}

}  // namespace millrace::engine
