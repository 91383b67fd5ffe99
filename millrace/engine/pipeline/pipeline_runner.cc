#include "millrace/engine/pipeline/pipeline_runner.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <utility>

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/common/deferred_work.h"
#include "millrace/engine/pipeline/stage_messages.h"
#include "millrace/trace/recorder.h"

namespace millrace::engine {
namespace {

/// Returns where a backward pass begins that would begin at `output`, without the memory of `output`.
at::Tensor RootOf(const at::Tensor& output) {
  at::Tensor root = at::empty({}, output.options()).expand(output.sizes());
  torch::autograd::impl::set_gradient_edge(root, torch::autograd::impl::gradient_edge(output));
  return root;
}

/// The batches of one call of the runner.
class MicroBatches {
 public:
  virtual ~MicroBatches() = default;
  /// Returns a batch. Throws ErrorException.
  virtual const ModelBatch& Get(int micro_batch) = 0;
  /// Returns rows · length, also of a batch that Get() has not returned yet.
  virtual std::int64_t Tokens(int micro_batch) = 0;
  /// The last forward pass is done.
  virtual void Release(int micro_batch) = 0;
};

/// Fetches the micro-batches of a training step when they are first used.
class BatchesOnDemand final : public MicroBatches {
 public:
  explicit BatchesOnDemand(const PipelineRunner::BatchSource& next) : next_(next) {}

  const ModelBatch& Get(int micro_batch) override {
    std::shared_ptr<const ModelBatch>& batch = batches_[micro_batch];
    if (batch) return *batch;
    auto next = next_(micro_batch);
    if (!next) throw ErrorException(next.error());
    batch = *std::move(next);
    const std::int64_t tokens = batch->inputs.numel();
    if (tokens_ == 0) tokens_ = tokens;
    if (tokens != tokens_) {
      throw ErrorException(
          Error(Code::kInvalidArgument,
                fmt::format(
                    "micro-batch {} has {} tokens, those before it {}; micro-batches of a step must have the same size",
                    micro_batch, tokens, tokens_)));
    }
    return *batch;
  }
  std::int64_t Tokens(int) override { return tokens_; }
  void Release(int micro_batch) override { batches_.erase(micro_batch); }

 private:
  const PipelineRunner::BatchSource& next_;
  std::map<int, std::shared_ptr<const ModelBatch>> batches_;
  std::int64_t tokens_ = 0;
};

/// Micro-batches of an evaluation. The caller holds all of them.
class GivenBatches final : public MicroBatches {
 public:
  explicit GivenBatches(std::span<const ModelBatch> batches) : batches_(batches) {}
  const ModelBatch& Get(int micro_batch) override { return batches_[static_cast<std::size_t>(micro_batch)]; }
  std::int64_t Tokens(int micro_batch) override { return Get(micro_batch).inputs.numel(); }
  void Release(int) override {}

 private:
  const std::span<const ModelBatch> batches_;
};

/// Does the passes of one call on this rank.
class PassRunner {
 public:
  PassRunner(Model& model, const PipelineShape& shape, Collective* group, MicroBatches& batches,
             const std::function<std::vector<PipelinePass>(int rank)>& passes_of, double loss_factor, Clock& clock)
      : model_(model),
        shape_(shape),
        rank_(group != nullptr ? group->rank() : 0),
        batches_(batches),
        passes_(passes_of(rank_)),
        loss_factor_(loss_factor),
        messages_(
            shape, passes_of, group, [this](const PipelineMessage& message) { return EmptyMessage(message); }, clock) {}

  void Train() {
    for (const PipelinePass& pass : passes_) {
      trace::Span span(NameOf(pass.kind), trace::Category::kPass);
      if (span) span.SetArguments({{"micro_batch", pass.micro_batch}, {"stage", StageOf(pass)}});
      switch (pass.kind) {
        case PassKind::kForward:
          Forward(pass, /*learns=*/true);
          break;
        case PassKind::kBackward:
        case PassKind::kBackwardInput:
          Backward(pass);
          break;
        case PassKind::kBackwardWeight:
          deferred_.at(KeyOf(pass)).RunAll();
          deferred_.erase(KeyOf(pass));
          break;
      }
    }
    messages_.WaitForSends(0);
  }

  void Evaluate() {
    // Nothing comes back that would hold up the first rank. So a rank is at most one group of micro-batches ahead of
    // the next rank's receives. Ranks that wait so are in different groups, and never in a circle.
    const auto group = static_cast<std::size_t>(shape_.stages());
    for (std::size_t i = 0; i < passes_.size(); ++i) {
      Forward(passes_[i], /*learns=*/false);
      if (i % group == group - 1) messages_.WaitForSends(group);
    }
    messages_.WaitForSends(0);
  }

  /// Waits until the device has computed all passes.
  PipelineSums sums() const {
    return {.loss = loss_.defined() ? loss_.item<double>() : 0, .waited = messages_.waited()};
  }

 private:
  /// What is kept from a forward pass to the backward pass.
  struct Kept {
    at::Tensor hidden;  ///< what came in; its gradient goes back
    at::Tensor root;    ///< of the graph
  };
  using Key = std::pair<int, int>;  ///< stage of this rank, micro-batch
  static const char* NameOf(PassKind kind) {
    switch (kind) {
      case PassKind::kForward:
        return "forward";
      case PassKind::kBackward:
        return "backward";
      case PassKind::kBackwardInput:
        return "backward of inputs";
      case PassKind::kBackwardWeight:
        return "backward of weights";
    }
    return "";
  }
  static Key KeyOf(const PipelinePass& pass) { return {pass.stage, pass.micro_batch}; }
  int StageOf(const PipelinePass& pass) const { return pass.stage * shape_.ranks + rank_; }

  at::Tensor EmptyMessage(const PipelineMessage& message) const {
    const TensorRanks& ranks = model_.ranks();
    const std::int64_t tokens = batches_.Tokens(message.micro_batch) / (ranks.divides_tokens() ? ranks.size() : 1);
    return at::empty({tokens, model_.config().sizes().hidden_size}, model_.buffer().options());
  }

  void Forward(const PipelinePass& pass, bool learns) {
    const int stage = StageOf(pass);
    const auto index = static_cast<std::size_t>(pass.stage);
    const ModelBatch& batch = batches_.Get(pass.micro_batch);
    at::Tensor hidden;
    if (stage > 0) {
      hidden = messages_.Receive({.stage = stage, .micro_batch = pass.micro_batch});
      hidden.set_requires_grad(learns);
    }
    const at::Tensor output = model_.Forward(index, batch, hidden);
    if (stage + 1 == shape_.stages()) {
      AddLoss(output.detach());
    } else {
      messages_.Send({.stage = stage + 1, .micro_batch = pass.micro_batch}, output.detach().contiguous());
    }
    if (learns) kept_[KeyOf(pass)] = {.hidden = hidden, .root = RootOf(output)};
    if (pass.stage + 1 == shape_.virtual_stages) batches_.Release(pass.micro_batch);
  }

  void Backward(const PipelinePass& pass) {
    const int stage = StageOf(pass);
    Kept kept = std::move(kept_.extract(KeyOf(pass)).mapped());
    at::Tensor gradient;
    if (stage + 1 < shape_.stages()) {
      gradient = messages_.Receive({.is_gradient = true, .stage = stage, .micro_batch = pass.micro_batch});
    } else if (loss_factor_ != 1) {
      gradient = at::full({}, loss_factor_, kept.root.options());
    }
    if (pass.kind == PassKind::kBackwardInput) {
      const ops::DeferScope defer(deferred_[KeyOf(pass)]);
      model_.Backward(static_cast<std::size_t>(pass.stage), kept.root, gradient);
    } else {
      model_.Backward(static_cast<std::size_t>(pass.stage), kept.root, gradient);
    }
    if (stage > 0) {
      messages_.Send({.is_gradient = true, .stage = stage - 1, .micro_batch = pass.micro_batch},
                     kept.hidden.grad().contiguous());
    }
  }

  /// Adds in double, where the loss is: a GPU may still compute it.
  void AddLoss(const at::Tensor& loss) {
    const at::Tensor wide = loss.to(at::kDouble);
    loss_ = loss_.defined() ? loss_ + wide : wide;
  }

  Model& model_;
  const PipelineShape shape_;
  const int rank_;
  MicroBatches& batches_;
  const std::vector<PipelinePass> passes_;
  const double loss_factor_;
  StageMessages messages_;
  std::map<Key, Kept> kept_;
  std::map<Key, ops::DeferredWork> deferred_;
  at::Tensor loss_;  ///< float64 scalar; undefined before the first
};

}  // namespace

PipelineRunner::PipelineRunner(Model& model, Collective* pipeline, PipelineOptions options, Clock& clock)
    : model_(model), pipeline_(pipeline), options_(options), clock_(clock) {
  TORCH_CHECK(model.stages().size() == static_cast<std::size_t>(options.virtual_stages), "the model has ",
              model.stages().size(), " stages on this rank, the pipeline ", options.virtual_stages);
}

PipelineShape PipelineRunner::ShapeFor(int micro_batches) const {
  return {.schedule = options_.schedule,
          .ranks = pipeline_ != nullptr ? pipeline_->size() : 1,
          .virtual_stages = options_.virtual_stages,
          .micro_batches = micro_batches};
}

Result<PipelineSums> PipelineRunner::Train(const BatchSource& next, double loss_factor) {
  const PipelineShape shape = ShapeFor(options_.micro_batches);
  BatchesOnDemand batches(next);
  const auto passes = [&](int rank) { return TrainingPasses(shape, rank); };
  PassRunner run(model_, shape, pipeline_, batches, passes, loss_factor, clock_);
  const auto done = CatchTorch("training step", [&] {
    run.Train();
    return run.sums();
  });
  if (done) return *done;
  if (pipeline_ != nullptr) pipeline_->Abort(done.error());  // before `run` waits for what is under way
  return Fail(done.error());
}

Result<PipelineSums> PipelineRunner::Evaluate(std::span<const ModelBatch> batches) {
  const PipelineShape shape = ShapeFor(static_cast<int>(batches.size()));
  GivenBatches given(batches);
  const auto passes = [&](int) { return EvaluationPasses(shape); };
  PassRunner run(model_, shape, pipeline_, given, passes, /*loss_factor=*/1, clock_);
  const auto done = CatchTorch("evaluation", [&] {
    const at::NoGradGuard no_gradients;
    run.Evaluate();
    return run.sums();
  });
  if (done) return *done;
  if (pipeline_ != nullptr) pipeline_->Abort(done.error());
  return Fail(done.error());
}

}  // namespace millrace::engine
