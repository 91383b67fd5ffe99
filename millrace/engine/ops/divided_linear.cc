#include "millrace/engine/ops/divided_linear.h"

#include <memory>
#include <utility>

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/common/deferred_work.h"
#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/exchange.h"

namespace millrace::engine::ops {
namespace {

/// A tensor that an exchange is making.
struct InExchange {
  at::Tensor result;
  Collective::Operation operation;  ///< null: the result is there
  at::Tensor Wait() {
    if (operation) ThrowIfFailed(std::exchange(operation, nullptr)->Wait());
    return std::move(result);
  }
};

InExchange StartGathering(const at::Tensor& rows, const TensorRanks& ranks) {
  at::Tensor all = at::empty({rows.size(0) * ranks.size(), rows.size(1)}, rows.options());
  Collective::Operation gather = ranks.group->StartAllGather(all, rows.contiguous());
  return {std::move(all), std::move(gather)};
}

/// Sums `x` over the ranks, into its own memory. With sequence parallelism, the result is this rank's rows of the sum.
InExchange StartSumming(at::Tensor x, const TensorRanks& ranks) {
  if (!ranks.sequence_parallel) {
    Collective::Operation sum = ranks.group->StartAllReduce(x);
    return {std::move(x), std::move(sum)};
  }
  TORCH_CHECK(x.size(0) % ranks.size() == 0, x.size(0), " tokens do not divide among ", ranks.size(), " ranks");
  at::Tensor mine = at::empty({x.size(0) / ranks.size(), x.size(1)}, x.options());
  Collective::Operation scatter = ranks.group->StartReduceScatter(mine, x);
  return {std::move(mine), std::move(scatter)};
}

/// The whole input of a column-parallel layer in its backward pass: kept from the forward pass or made again.
class WholeInput {
 public:
  WholeInput(at::Tensor kept, std::function<at::Tensor()> again, TensorRanks ranks)
      : kept_(std::move(kept)), again_(std::move(again)), ranks_(ranks) {}
  /// Begins to make it. Get() does so otherwise.
  void Start() {
    if (kept_.defined()) return;
    const at::Tensor own = std::exchange(again_, nullptr)();
    gathering_ = ranks_.sequence_parallel ? StartGathering(own, ranks_) : InExchange{own, nullptr};
    kept_ = gathering_.result;
  }
  at::Tensor Get() {
    Start();
    (void)gathering_.Wait();
    return kept_;
  }

 private:
  at::Tensor kept_;
  std::function<at::Tensor()> again_;
  const TensorRanks ranks_;
  InExchange gathering_;
};

}  // namespace

at::Tensor ColumnLinear(const LayerInput& input, const LinearWeights& weights, const TensorRanks& ranks) {
  const at::Tensor& x = input.value;
  if (ranks.size() == 1) return Linear(input, weights);
  if (!(HasFused(x) || IsOnCuda(x)) || !weights.takes_gradients()) return Linear(EnterDividedLayer(x, ranks), weights);
  const at::Tensor whole = ranks.sequence_parallel ? StartGathering(x.detach(), ranks).Wait() : x.detach();
  auto pass = std::make_shared<LinearPass>(weights);
  at::Tensor out = pass->Forward(whole, /*keeps_input=*/!input.again);
  const TensorList inputs = weights.InputsWith(x);
  if (Recording(inputs)) {
    const bool needs_x = pass->needs_input();
    const at::Tensor kept = needs_x && !input.again ? whole : at::Tensor();
    Connect("ColumnLinear", inputs, {out},
            [kept, again = needs_x ? input.again : nullptr, needs_x, pass, ranks, wanted = x.requires_grad(),
             count = inputs.size()](TensorList&& gradients) {
              const at::Tensor& dout = gradients[0];
              std::shared_ptr<WholeInput> made;
              if (needs_x) made = std::make_shared<WholeInput>(kept, again, ranks);
              // The product for the gradient of x hides this exchange.
              if (needs_x && !IsDeferring()) made->Start();
              InExchange dx;
              if (wanted) dx = StartSumming(pass->InputGradient(dout), ranks);
              RunOrDefer([=] { pass->AddGradients(made ? made->Get() : at::Tensor(), dout); });
              TensorList result(count);
              result[0] = dx.Wait();
              return result;
            });
  }
  return out;
}

at::Tensor RowLinear(const LayerInput& input, const LinearWeights& weights, const TensorRanks& ranks) {
  const at::Tensor& x = input.value;
  if (ranks.size() == 1) return Linear(input, weights);
  if (!(HasFused(x) || IsOnCuda(x)) || !weights.takes_gradients()) {
    TORCH_CHECK(!weights.update.has_magnitudes(), "the plain op does not sum the norms of rows over ranks");
    return LeaveDividedLayer(Linear(input, weights), ranks);
  }
  auto pass = std::make_shared<LinearPass>(
      weights, [ranks](const at::Tensor& squares) { ThrowIfFailed(ranks.group->AllReduce(squares)); });
  at::Tensor out = StartSumming(pass->Forward(x, /*keeps_input=*/!input.again), ranks).Wait();
  const TensorList inputs = weights.InputsWith(x);
  if (Recording(inputs)) {
    const bool needs_x = pass->needs_input();
    const at::Tensor kept = needs_x && !input.again ? x.detach() : at::Tensor();
    Connect("RowLinear", inputs, {out},
            [kept, again = needs_x ? input.again : nullptr, pass, ranks, wanted = x.requires_grad(),
             count = inputs.size()](TensorList&& gradients) {
              InExchange gathering =
                  ranks.sequence_parallel ? StartGathering(gradients[0], ranks) : InExchange{gradients[0], nullptr};
              // Making the input again hides this exchange. If the weights' gradients are put off, so is the input.
              const bool made_now = again && !IsDeferring();
              at::Tensor made = made_now ? again() : kept;
              const at::Tensor dout = gathering.Wait();
              RunOrDefer([made = std::move(made), again = made_now ? nullptr : again, pass, dout] {
                pass->AddGradients(again ? again() : made, dout);
              });
              TensorList result(count);
              if (wanted) result[0] = pass->InputGradient(dout);
              return result;
            });
  }
  return out;
}

}  // namespace millrace::engine::ops
