#include "millrace/engine/models/model.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "millrace/engine/device/host_copy.h"
#include "millrace/engine/device/host_memory.h"
#include "millrace/engine/models/recorded_steps.h"
#include "millrace/engine/ops/common/deferred_work.h"
#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/trace/recorder.h"

namespace millrace::engine {
namespace {

/// Returns the tensors that are there.
ops::TensorList TensorsOf(const Stream& x) {
  return x.delta.defined() ? ops::TensorList{x.residual, x.delta} : ops::TensorList{x.residual};
}

/// Calls `reached` when a backward pass has the gradients of these hidden states.
Stream OnBackward(const char* name, const Stream& x, std::function<void()> reached) {
  Stream same = x.Detached();
  ops::ConnectMarker(name, {x.residual, x.delta}, TensorsOf(same),
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

/// The backward pass of one part of a model, as a span of a trace. Copies share its beginning.
class BackwardSpan {
 public:
  explicit BackwardSpan(std::string part) {
    if (recorder_ != nullptr)
      state_ = std::make_shared<State>(State{.name = std::move(part) + " backward", .begin = {}});
  }
  explicit operator bool() const { return state_ != nullptr; }
  void Begin() const {
    if (state_) state_->begin = recorder_->Now();
  }
  void End() const {
    if (state_) recorder_->Add(state_->name, trace::Category::kModel, state_->begin, recorder_->Now());
  }

 private:
  struct State {
    std::string name;
    TimePoint begin;
  };
  trace::Recorder* recorder_ = trace::CurrentRecorder();  // outlives the step, and so the graph
  std::shared_ptr<State> state_;
};

std::string BlockName(std::int64_t layer) { return fmt::format("block {}", layer); }

/// Adds `count` rows behind those that are there, if they have an adapter.
void AddAdapted(std::vector<AdaptedRows>& rows, std::int64_t first, std::int64_t count, const AdapterWeights* adapter) {
  if (adapter == nullptr || count == 0) return;
  if (!rows.empty() && rows.back().adapter == adapter && rows.back().first + rows.back().count == first) {
    rows.back().count += count;
  } else {
    rows.push_back({first, count, adapter});
  }
}

bool Learns(const Stream& x) { return ops::Recording({x.residual, x.delta}); }

}  // namespace

/// The inputs of one forward pass, first block first. They stay where they are, or wait in pinned memory of the host;
/// then each comes back while the block behind it goes backward. One thread at a time.
class SavedInputs {
 public:
  /// `copies`: a stream for copies to the host and back; nothing: inputs stay.
  explicit SavedInputs(std::optional<c10::Stream> copies) : copies_(copies) {}

  /// Keeps the input of the next block. Returns what gives it back outside of any graph, to be called once.
  std::function<Stream()> Keep(const Stream& x);

 private:
  class OnHost;

  const std::optional<c10::Stream> copies_;
  std::shared_ptr<OnHost> last_;  ///< of the block before
};

/// The input of a block on the host.
class SavedInputs::OnHost {
 public:
  OnHost(const Stream& x, c10::Stream copies) : residual_(x.residual, copies) {
    if (x.delta.defined()) delta_.emplace(x.delta, copies);
  }
  void Fetch() {
    residual_.Fetch();
    if (delta_) delta_->Fetch();
  }
  Stream Take() { return {residual_.TakeTensor(), delta_ ? delta_->TakeTensor() : at::Tensor()}; }

 private:
  HostCopy residual_;
  std::optional<HostCopy> delta_;
};

std::function<Stream()> SavedInputs::Keep(const Stream& x) {
  const Stream in = x.Detached();
  if (!copies_) return [in] { return in.Detached(); };
  auto kept = std::make_shared<OnHost>(in, *copies_);
  return [kept, before = std::exchange(last_, kept)] {
    Stream taken = kept->Take();
    if (before != nullptr) before->Fetch();
    return taken;
  };
}

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
  linear_layers_ = make.TakeLinearLayers();
}

bool Model::IsOfHead(const NamedParameter& parameter) const {
  return stages_.back().predicts && parameter.begin >= buffer_->groups()[head_group_].begin;
}

void Model::SetRecompute(Recompute what, int every, bool offload) {
  recompute_ = what;
  recompute_every_ = every;
  offloads_.reset();
  const at::Device device = buffer_->device();
  if (offload && !device.is_cpu()) {
    offloads_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
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
                               const std::shared_ptr<const ForwardContext>& context, SavedInputs& inputs) const {
  Stream out;
  {
    const at::NoGradGuard no_grad;
    out = Block(layer, x, *context).Detached();
  }
  ops::Connect("RecomputedBlock", {x.residual, x.delta}, TensorsOf(out),
               [this, layer, context, take = inputs.Keep(x)](ops::TensorList&& gradients) {
                 const at::AutoGradMode grad(true);
                 const Stream again = take();
                 for (at::Tensor& tensor : TensorsOf(again)) tensor.set_requires_grad(true);
                 ops::RunBackward(TensorsOf(Block(layer, again, *context)), gradients);
                 return ops::TensorList{again.residual.grad(),
                                        again.delta.defined() ? again.delta.grad() : at::Tensor()};
               });
  return out;
}

Stream Model::RunBlock(std::int64_t layer, const Stream& x, const std::shared_ptr<const ForwardContext>& context,
                       SavedInputs& inputs) const {
  const PartHooks hooks(*buffer_, block_groups_[static_cast<std::size_t>(layer)]);
  const std::string name = trace::CurrentRecorder() != nullptr ? BlockName(layer) : std::string();
  const trace::Span span(name.c_str(), trace::Category::kModel);
  const BackwardSpan backward(name);
  const bool learns = Learns(x);
  hooks.BeforeForward();
  const auto went_back = [this, hooks, backward] {
    hooks.AfterBackward();
    backward.End();
    if (on_block) on_block();
  };
  const Stream in = learns && (hooks || on_block || backward) ? OnBackward("EndOfBlock", x, went_back) : x;
  Stream out = learns && Recomputes(layer) ? RunAgainBackward(layer, in, context, inputs) : Block(layer, in, *context);
  hooks.AfterForward();
  if (on_block) on_block();
  if (learns && (hooks || backward)) {
    out = OnBackward("BeginningOfBlock", out, [hooks, backward] {
      backward.Begin();
      hooks.BeforeBackward();
    });
  }
  return out;
}

at::Tensor Model::Forward(std::size_t stage, const ModelBatch& batch, const at::Tensor& hidden) {
  const ModelStage& parts = stages_.at(stage);
  const auto context = std::make_shared<const ForwardContext>(ContextOf(batch));
  Stream x{.residual = hidden};
  if (parts.embeds) {
    const trace::Span span("embedding", trace::Category::kModel);
    const PartHooks hooks(*buffer_, embedding_group_);
    hooks.BeforeForward();
    x = Embed(batch.inputs, batch.segments, *context);
    // Autograd passes all parts also behind a frozen embedding, so that hooks see the same passes.
    if (at::GradMode::is_enabled() && buffer_->has_gradients() && !Learns(x)) x.residual.set_requires_grad(true);
    hooks.AfterForward();
    if (hooks && Learns(x)) x = OnBackward("BeginningOfEmbedding", x, [hooks] { hooks.BeforeBackward(); });
  }
  SavedInputs kept(offloads_);
  for (std::int64_t layer = parts.first; layer < parts.last; ++layer) x = RunBlock(layer, x, context, kept);
  if (!parts.predicts) return x.Sum();
  const trace::Span span("head", trace::Category::kModel);
  const BackwardSpan backward("head");
  const PartHooks hooks(*buffer_, head_group_);
  hooks.BeforeForward();
  if ((hooks || backward) && Learns(x)) {
    x = OnBackward("EndOfHead", x, [hooks, backward] {
      hooks.AfterBackward();
      backward.End();
    });
  }
  at::Tensor loss = Loss(x, batch, *context);
  hooks.AfterForward();
  if ((hooks || backward) && ops::Recording({loss})) {
    const auto begin = [hooks, backward] {
      backward.Begin();
      hooks.BeforeBackward();
    };
    loss = OnBackward("BeginningOfHead", {.residual = loss}, begin).residual;
  }
  return loss;
}

void Model::Backward(std::size_t stage, const at::Tensor& output, const at::Tensor& gradient) {
  ops::RunBackward({output}, {gradient});
  // An embedding has no hidden states before it that would tell.
  if (stages_.at(stage).embeds) PartHooks(*buffer_, embedding_group_).AfterBackward();
}

Stream Model::RunBlocks(const at::Tensor& ids, const std::shared_ptr<const ForwardContext>& context) const {
  TORCH_CHECK(ranks_.size() == 1 && stages_.size() == 1 && stages_[0].embeds && stages_[0].predicts,
              "a model that is divided among ranks does not generate text");
  TORCH_CHECK(context->cache == nullptr || config_->generates(), config_->family(), " does not generate text");
  Stream x = Embed(ids, {}, *context);
  SavedInputs kept(std::nullopt);
  for (std::int64_t layer = 0; layer < stages_[0].last; ++layer) x = RunBlock(layer, x, context, kept);
  return x;
}

at::Tensor Model::NextLogits(const at::Tensor& ids, const ForwardContext& context) {
  const auto compute = [this](const at::Tensor& there, const ForwardContext& of) {
    const Stream x = RunBlocks(there, std::shared_ptr<const ForwardContext>(std::shared_ptr<void>(), &of));
    return Scores(x, of, {}).to(at::kFloat);
  };
  const ModelSizes sizes = config_->sizes();
  const ops::Sequences& sequences = context.sequences;
  const ops::HeadLayout layout{sizes.num_heads, sizes.num_kv_heads, sizes.head_dim};
  const at::Device device = buffer_->device();
  const bool repeats = RepeatsSteps() && context.adapted_rows.empty() &&
                       sequences.count() <= RecordedSteps::kMaxSequences && sequences.limit() <= sizes.max_positions &&
                       !ops::UsesPlainKernels() && ops::RepeatsAttendBlocks(layout, buffer_->dtype(), device);
  if (!repeats) return compute(ids.to(device, /*non_blocking=*/true), context);
  std::shared_ptr<RecordedSteps>& recorded = context.cache->Recorded();
  if (recorded == nullptr) recorded = std::make_shared<RecordedSteps>(*context.cache, device);
  return recorded->Run(ids, sequences, *context.tables, sizes.max_positions, compute);
}

at::Tensor Model::Step(std::span<const SequencePart> parts, KvCache& cache) {
  const at::NoGradGuard no_grad;
  static const ops::StepKernels kernels{.independent_rows = true};
  const ops::KernelScope scope(kernels);
  std::vector<std::int64_t> lengths, past, wanted;
  ops::BlockTables tables;
  std::vector<AdaptedRows> adapted, adapted_logits;
  std::int64_t tokens = 0;
  for (const SequencePart& part : parts) {
    lengths.push_back(static_cast<std::int64_t>(part.tokens.size()));
    past.push_back(part.past);
    tables.Add(part.blocks);
    AddAdapted(adapted, tokens, lengths.back(), part.adapter);
    AddAdapted(adapted_logits, static_cast<std::int64_t>(wanted.size()), part.logits, part.adapter);
    tokens += lengths.back();
    for (std::int64_t token = tokens - part.logits; token < tokens; ++token) wanted.push_back(token);
  }
  const auto context =
      std::make_shared<const ForwardContext>(ForwardContext{.sequences = ops::Sequences::Following(lengths, past),
                                                            .cache = &cache,
                                                            .tables = &tables,
                                                            .adapted_rows = std::move(adapted)});
  tables.Check(context->sequences, cache.shape().block_tokens, cache.shape().blocks);
  const at::Device device = buffer_->device();
  const at::Tensor ids = EmptyOnHost({tokens}, at::kLong, device);
  auto* id = ids.data_ptr<std::int64_t>();
  for (const SequencePart& part : parts) id = std::ranges::copy(part.tokens, id).out;
  if (tokens == static_cast<std::int64_t>(parts.size()) && tokens == static_cast<std::int64_t>(wanted.size())) {
    return NextLogits(ids, *context);
  }
  const Stream x = RunBlocks(ids.to(device, /*non_blocking=*/true), context);
  if (wanted.empty()) return {};
  ForwardContext of_logits = *context;
  of_logits.adapted_rows = std::move(adapted_logits);
  return Scores(x, of_logits, ToDevice(at::tensor(wanted, at::kLong), device)).to(at::kFloat);
}

at::Tensor Model::Logits(const at::Tensor& inputs, CachedRows* cached) {
  const at::NoGradGuard no_grad;
  const std::int64_t rows = inputs.size(0), length = inputs.size(1);
  ForwardContext tokens{.sequences = ops::Sequences::Even(rows, length, cached != nullptr ? cached->length() : 0)};
  if (cached != nullptr) {
    tokens.cache = &cached->cache();
    tokens.tables = &cached->tables();
    tokens.tables->Check(tokens.sequences, tokens.cache->shape().block_tokens, tokens.cache->shape().blocks);
  }
  const auto context = std::make_shared<const ForwardContext>(std::move(tokens));
  if (cached != nullptr && length == 1) {
    const at::Tensor logits = NextLogits(inputs.reshape({-1}), *context);
    cached->SetLength(cached->length() + 1);
    return logits.unsqueeze(1);
  }
  const Stream x = RunBlocks(inputs, context);
  at::Tensor last;
  if (cached != nullptr) {
    cached->SetLength(cached->length() + length);
    last = ToDevice(at::arange(length - 1, rows * length, length, at::kLong), inputs.device());
  }
  const at::Tensor logits = Scores(x, *context, last);
  return logits.to(at::kFloat).view({rows, -1, logits.size(1)});
}

at::Tensor Model::HiddenStates(std::span<const std::span<const std::int32_t>> texts) {
  const at::NoGradGuard no_grad;
  static const ops::StepKernels kernels{.independent_rows = true};
  const ops::KernelScope scope(kernels);
  std::vector<std::int64_t> ids;
  std::vector<std::int32_t> bounds{0};
  for (const auto& text : texts) {
    ids.insert(ids.end(), text.begin(), text.end());
    bounds.push_back(static_cast<std::int32_t>(ids.size()));
  }
  const auto context = std::make_shared<const ForwardContext>(
      ForwardContext{.sequences = ops::Sequences::Cut(bounds, static_cast<std::int64_t>(ids.size()))});
  const Stream x = RunBlocks(ToDevice(at::tensor(ids, at::kLong), buffer_->device()), context);
  return Final(x).to(at::kFloat);
}

at::Tensor Model::Predict(std::size_t stage, const at::Tensor& inputs, const at::Tensor& hidden) {
  TORCH_CHECK(ranks_.size() == 1, "a model whose layers are divided among ranks does not predict alone");
  const at::NoGradGuard no_grad;
  const ModelStage& parts = stages_.at(stage);
  const auto context = std::make_shared<const ForwardContext>(
      ForwardContext{.sequences = ops::Sequences::Even(inputs.size(0), inputs.size(1))});
  Stream x = parts.embeds ? Embed(inputs, {}, *context) : Stream{.residual = hidden};
  SavedInputs kept(offloads_);
  for (std::int64_t layer = parts.first; layer < parts.last; ++layer) x = RunBlock(layer, x, context, kept);
  if (!parts.predicts) return x.Sum();
  const at::Tensor logits = Scores(x, *context, {});
  return logits.to(at::kFloat).view({inputs.size(0), inputs.size(1), -1});
}

KvCacheShape Model::CacheShape(std::int64_t blocks, std::int64_t block_tokens) const {
  const ModelSizes sizes = config_->sizes();
  return {.layers = sizes.num_layers,
          .kv_heads = sizes.num_kv_heads,
          .head_dim = sizes.head_dim,
          .blocks = blocks,
          .block_tokens = block_tokens};
}

KvCache Model::MakeCache(std::int64_t blocks, std::int64_t block_tokens, KvNumbers numbers) const {
  const at::ScalarType type = numbers == KvNumbers::kInt8 ? at::kChar : buffer_->dtype();
  return {CacheShape(blocks, block_tokens), type, buffer_->device()};
}

CachedRows Model::MakeCachedRows(std::int64_t rows, std::int64_t capacity) const {
  constexpr std::int64_t kMultiple = 16;  // of MakeCachedLayer()
  return {CacheShape(rows, (capacity + kMultiple - 1) / kMultiple * kMultiple), buffer_->dtype(), buffer_->device()};
}

std::int64_t Model::CacheBytesPerToken(KvNumbers numbers) const {
  const ModelSizes sizes = config_->sizes();
  const auto type_bytes = static_cast<std::int64_t>(at::elementSize(buffer_->dtype()));
  constexpr auto kScaleBytes = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t head_bytes =
      numbers == KvNumbers::kInt8 ? sizes.head_dim + kScaleBytes : sizes.head_dim * type_bytes;
  return 2 * sizes.num_layers * sizes.num_kv_heads * head_bytes;
}

}  // namespace millrace::engine
