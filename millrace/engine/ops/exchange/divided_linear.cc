#include "millrace/engine/ops/exchange/divided_linear.h"

#include <memory>
#include <utility>

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/deferred/deferred_work.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/exchange/exchange.h"
#include "millrace/engine/ops/node.h"

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
  Collective::Operation scatter = ranks.group->StartReduceScatter(mine, std::move(x));
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

at::Tensor ColumnLinear(const LayerInput& input, const Weight& weight, const Weight& bias, const TensorRanks& ranks) {
  const at::Tensor& x = input.value;
  if (ranks.size() == 1) return Linear(input, weight, bias);
  if (!HasFused(x) || !weight.gradient.defined() || bias.autograd_adds()) {
    return Linear(EnterDividedLayer(x, ranks), weight, bias);
  }
  const at::Tensor whole = ranks.sequence_parallel ? StartGathering(x.detach(), ranks).Wait() : x.detach();
  at::Tensor out = LinearForward(whole, weight, bias);
  if (Recording({x, weight.value})) {
    Connect(
        "ColumnLinear", {x, weight.value, bias.value}, {out},
        [kept = input.again ? at::Tensor() : whole, again = input.again, weight, bias, ranks](TensorList&& gradients) {
          const at::Tensor& dout = gradients[0];
          auto made = std::make_shared<WholeInput>(kept, again, ranks);
          // The product for the gradient of x hides this exchange.
          if (!IsDeferring()) made->Start();
          InExchange dx = StartSumming(LinearInputGradient(dout, weight), ranks);
          RunOrDefer([=] { AddLinearGradients(made->Get(), weight, bias, dout); });
          return TensorList{dx.Wait(), at::Tensor(), at::Tensor()};
        });
  }
  return out;
}

at::Tensor RowLinear(const LayerInput& input, const Weight& weight, const TensorRanks& ranks) {
  const at::Tensor& x = input.value;
  if (ranks.size() == 1) return Linear(input, weight);
  if (!HasFused(x) || !weight.gradient.defined()) return LeaveDividedLayer(Linear(input, weight), ranks);
  at::Tensor out = StartSumming(LinearForward(x, weight, {}), ranks).Wait();
  if (Recording({x, weight.value})) {
    const at::Tensor kept = input.again ? at::Tensor() : x.detach();
    Connect("RowLinear", {x, weight.value}, {out}, [=, again = input.again](TensorList&& gradients) {
      const at::Tensor dout = ranks.sequence_parallel ? StartGathering(gradients[0], ranks).Wait() : gradients[0];
      RunOrDefer([=] { AddLinearGradients(kept.defined() ? kept : again(), weight, {}, dout); });
      return TensorList{LinearInputGradient(dout, weight), at::Tensor()};
    });
  }
  return out;
}

}  // namespace millrace::engine::ops
